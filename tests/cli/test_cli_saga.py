"""`redrive saga` and `runs rollback`: progress of a rollback, and decisions about it."""

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from runpy import run_path

import pytest
from console import Terminal, piped

from redrive import Redrive

TRIP = """
from pathlib import Path

from redrive import NonRetryable, Redrive, RetryPolicy
from redrive.actions import Manual

app = Redrive("sqlite:///trip.db", lease="5s")
ONCE = RetryPolicy(max_retries=0)


@app.step
async def flight(number: int) -> str:
    return f"F-{number}"


@flight.compensate(retry=ONCE)
async def refund(number: int, result: str) -> None:
    with Path("calls.txt").open("a") as file:
        file.write(f"refund {result}\\n")
    if Path("bank-is-down").exists():
        raise ConnectionError("the bank does not answer")


@app.step(compensate=Manual("Call the carrier and stop parcel {{result}}"))
async def ship(number: int) -> str:
    return f"P-{number}"


@app.step(retry=ONCE)
async def visa(number: int) -> str:
    raise NonRetryable("no visa")


@app.workflow(rollback=True)
async def travel(number: int) -> str:
    await flight(number)
    return await visa(number)


@app.workflow(rollback=True)
async def parcel(number: int) -> str:
    await flight(number)
    await ship(number)
    return await visa(number)


@app.workflow
async def plain(number: int) -> str:
    await flight(number)
    return await visa(number)
"""


@dataclass(frozen=True)
class Trips:
    """Runs by state: `stuck` at the bank, `waiting` for a manual step, `plain` without a rollback."""

    folder: Path
    stuck: str
    waiting: str
    plain: str

    def work(self) -> None:
        """Run a worker until all due work is done."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        app: Redrive = run_path(str(self.folder / "trip.py"))["app"]
        async with app:
            async with asyncio.timeout(60):
                while await _busy(app):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


async def _busy(app: Redrive) -> bool:
    """Return True while a worker has work. A run that waits for a manual step is not work for it."""
    for run in (await app.runs.list()).items:
        waits = any(entry.waits_for_person for entry in (await app.saga(run.id)).entries)
        if run.status in ("PENDING", "RUNNING", "SLEEPING") or (run.status == "COMPENSATING" and not waits):
            return True
    return False


@pytest.fixture
def trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trips]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_URL", f"sqlite:///{tmp_path}/trip.db")
    monkeypatch.delenv("REDRIVE_APP", raising=False)
    (tmp_path / "trip.py").write_text(TRIP)
    (tmp_path / "bank-is-down").touch()
    yield asyncio.run(_travel(tmp_path))
    sys.modules.pop("trip", None)


async def _travel(folder: Path) -> Trips:
    app: Redrive = run_path(str(folder / "trip.py"))["app"]
    async with app:
        ids = {}
        for name, status in (("travel", "DLQ_PENDING"), ("parcel", "COMPENSATING"), ("plain", "DLQ_PENDING")):
            handle = await app.find(name).start(7)
            ids[name] = handle.id
            async with asyncio.timeout(60):
                while await handle.status() != status:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        async with asyncio.timeout(60):
            while not [e for e in (await app.saga(ids["parcel"])).entries if e.waits_for_person]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    return Trips(folder, ids["travel"], ids["parcel"], ids["plain"])


def test_a_rollback_is_shown_as_lines_and_as_json(trips: Trips) -> None:
    shown = piped("saga", "show", trips.stuck[:-2])
    assert shown.exit_code == 0
    assert shown.stdout.startswith("flight\trefund\tfunction\tDLQ\t1\t")
    told = json.loads(piped("saga", "show", trips.waiting, "--json").stdout)
    assert (told["status"], told["done"]) == ("COMPENSATING", 0)
    assert [(e["step"], e["type"], e["status"]) for e in told["entries"]] == [
        ("ship", "manual", "RUNNING"),
        ("flight", "function", "PENDING"),
    ]
    assert told["entries"][0]["instructions"] == "Call the carrier and stop parcel P-7"
    assert "payload_hash" in told["entries"][0]
    assert piped("saga", "show", trips.plain).stdout == ""


def test_a_terminal_shows_the_progress_of_a_rollback_and_the_next_command(trips: Trips) -> None:
    terminal = Terminal(trips.folder, "saga", "show", trips.waiting)
    assert terminal.end() == 0
    terminal.close()
    assert f"Run {trips.waiting} is COMPENSATING: 0 of 2 undone." in terminal.text
    assert "redrive saga done" in terminal.text


def test_a_stopped_rollback_is_previewed_resumed_and_finished(trips: Trips) -> None:
    tried = piped("saga", "resume", trips.stuck, "--dry-run")
    assert "would resume at the failed compensation" in tried.stdout
    assert "Undone, in this order:\n    refund" in tried.stdout
    assert "Nothing was changed." in tried.stdout
    (trips.folder / "bank-is-down").unlink()
    resumed = piped("saga", "resume", trips.stuck, "--by", "ada")
    assert (resumed.exit_code, resumed.stdout) == (0, f"the rollback of run {trips.stuck} continues\n")
    trips.work()
    assert json.loads(piped("runs", "show", trips.stuck, "--json").stdout)["status"] == "COMPENSATED"
    assert "The run failed and was rolled back" in piped("runs", "why", trips.stuck).stdout
    assert "Its run was rolled back." in piped("dlq", "show", trips.stuck).stdout
    assert "A rollback was resumed" in piped("audit", "list", "--by", "ada").stdout


@pytest.mark.parametrize(("verb", "status"), [("skip", "SKIPPED"), ("done", "SUCCESS")])
def test_a_manual_compensation_is_skipped_or_marked_as_done(trips: Trips, verb: str, status: str) -> None:
    (trips.folder / "bank-is-down").unlink()
    wrong = piped("saga", verb, trips.waiting, "flight")
    assert wrong.exit_code == 5
    assert "the next compensation is 'ship.undo' of step 'ship', not 'flight'" in wrong.stderr
    done = piped("saga", verb, trips.waiting, "ship", "--reason", "on the phone", "--by", "ada")
    assert done.exit_code == 0, done.stderr
    trips.work()
    entries = json.loads(piped("saga", "show", trips.waiting, "--json").stdout)["entries"]
    assert [entry["status"] for entry in entries] == [status, "SUCCESS"]


def test_a_failed_run_is_rolled_back_on_request(trips: Trips) -> None:
    (trips.folder / "bank-is-down").unlink()
    tried = piped("runs", "rollback", trips.plain, "--dry-run")
    assert f"The rollback of run {trips.plain} would start." in tried.stdout
    begun = piped("runs", "rollback", trips.plain, "--by", "ada", "--reason", "x")
    assert (begun.exit_code, begun.stdout) == (0, f"run {trips.plain} is being rolled back\n")
    trips.work()
    assert json.loads(piped("runs", "show", trips.plain, "--json").stdout)["status"] == "COMPENSATED"
    assert piped("saga", "show", "unknown").exit_code == 3


def test_why_and_show_describe_rollbacks(trips: Trips) -> None:
    waiting = piped("runs", "why", trips.waiting).stdout
    assert "The run is being rolled back" in waiting
    assert "The rollback needs a manual step: Call the carrier and stop parcel P-7" in waiting
    assert f"saga done {trips.waiting} /ship#0" in waiting
    stuck = piped("runs", "why", trips.stuck).stdout
    assert "The rollback of the run failed" in stuck
    assert f"saga resume {trips.stuck}" in stuck
    letter = piped("dlq", "show", trips.stuck).stdout
    assert "The rollback failed." in letter
    assert f"saga skip {trips.stuck} STEP" in letter
    shown = piped("runs", "show", trips.stuck).stdout
    assert "↩ refund" in shown
    assert f"saga show {trips.stuck}" in shown
