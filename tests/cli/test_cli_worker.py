"""`redrive worker` as a process: its output, the work it executes, and its shutdown."""

import asyncio
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from worker_process import PATIENCE, WorkerProcess, working

from redrive import Redrive, RunFilter

ROOT = Path(__file__).resolve().parents[2]

# The steps wait for files, so that a test decides when they end.
JOBS = """
import asyncio, pathlib, time
import redrive

app = redrive.Redrive("sqlite:///jobs.db", grace="10m", lease="5s")

def may_go() -> bool:
    return pathlib.Path("go").exists()

@app.step
async def patient() -> str:
    while not may_go():
        await asyncio.sleep(0.02)
    return "done"

@app.step
def stubborn() -> str:
    while not may_go():
        time.sleep(0.02)
    return "done"

@app.workflow
async def gentle() -> str:
    first = await patient()
    await redrive.sleep("1ms")
    return first

@app.workflow
async def threaded() -> str:
    return await stubborn()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS, encoding="utf-8")
    return tmp_path


@pytest.fixture
def jobs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Redrive:
    """Load the worker's app in this process, to start and read runs."""
    monkeypatch.chdir(folder)
    app = runpy.run_path(str(folder / "jobs.py"))["app"]
    assert isinstance(app, Redrive)
    return app


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def start_and_wait_for_step(app: Redrive, workflow: str) -> str:
    """Start a run and wait until a worker executes its step; return the run's id."""
    async with app.client():
        handle = await app.find(workflow).start()

        async def executing() -> bool:
            return [step.status for step in (await handle.describe()).steps] == ["RUNNING"]

        await until(executing)
        return handle.id


async def result_of(app: Redrive, run_id: str, workflow: str) -> object:
    async with app.client():
        return await app.handle(run_id, workflow).result(timeout=PATIENCE)


def redrive(folder: Path, *words: str) -> str:
    """Run a command; return its output on both streams."""
    command = [sys.executable, "-P", "-m", "redrive", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return " ".join((done.stdout + done.stderr).split())


async def test_a_worker_takes_only_its_queues_and_the_others_are_reported(folder: Path, jobs: Redrive) -> None:
    (folder / "go").touch()
    async with jobs.client():
        left = await jobs.find("gentle").start(queue="reports")
        with working(folder, "jobs:app", "--queue", "emails", "--queue", "default") as worker:
            assert "from emails, default; store" in worker.lines[-1]
            taken = [await jobs.find("gentle").start(queue=name) for name in ("emails", "default")]
            assert [await handle.result(timeout=PATIENCE) for handle in taken] == ["done", "done"]
            why = redrive(folder, "runs", "why", left.id, "--url", "sqlite:///jobs.db")
            doctor = redrive(folder, "doctor", "--url", "sqlite:///jobs.db")
        assert (await left.describe()).status == "PENDING"
    assert "1 worker has workflow 'gentle', but none takes runs from queue 'reports'. Start one that does" in why
    assert "worker module:app --url sqlite:///jobs.db --queue reports" in why
    assert "1 due run of 'gentle' in queue 'reports': no live worker that has the workflow takes this queue" in doctor


async def test_a_process_does_not_claim_runs_it_starts_in_another_queue(tmp_path: Path) -> None:
    app = Redrive(f"sqlite:///{tmp_path}/one.db", queues=["emails"])

    @app.workflow
    async def greet() -> str:
        return "hello"

    async with app:
        assert await (await greet.start(queue="emails")).result(timeout=PATIENCE) == "hello"
        other = await greet.start()
        assert await (await greet.start(queue="emails")).result(timeout=PATIENCE) == "hello"
        assert (await other.describe()).status == "PENDING"
        (left,) = await app.runs.queues()
        assert (left.queue, left.due, left.workers) == ("default", 1, 0)


def test_a_worker_describes_itself_in_one_line(folder: Path) -> None:
    with working(folder, "jobs:app", "--concurrency", "7", "--url", "sqlite:///other.db") as worker:
        (line,) = worker.lines
    assert f"redrive worker {worker.process.pid}: working on gentle, threaded;" in line
    assert "store sqlite:///other.db" in line
    assert "up to 7 runs at a time" in line
    assert (folder / "other.db").exists()
    assert not (folder / "jobs.db").exists()


def test_a_worker_takes_the_store_from_the_environment_if_the_app_names_none(tmp_path: Path) -> None:
    code = "from redrive import Redrive\napp = Redrive()\n@app.workflow\nasync def w() -> None: ...\n"
    (tmp_path / "plain.py").write_text(code, encoding="utf-8")
    environment = {"REDRIVE_URL": "sqlite:///from_environment.db"}
    with working(tmp_path, "plain:app", environment=environment) as worker:
        assert "store sqlite:///from_environment.db" in worker.lines[-1]


def test_a_worker_whose_store_was_removed_stops_at_one_signal(folder: Path) -> None:
    with working(folder, "jobs:app") as worker:
        for file in folder.glob("jobs.db*"):
            file.unlink()
        worker.signal()
        worker.wait_for("stopped; open runs continue when a worker starts")
        assert worker.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_current_step_and_releases_the_other_runs(
    folder: Path, jobs: Redrive, number: signal.Signals
) -> None:
    with working(folder, "jobs:app") as worker:
        run_id = asyncio.run(start_and_wait_for_step(jobs, "gentle"))
        worker.signal(number)
        worker.wait_for("stopping: running steps have 10 m to end")
        (folder / "go").touch()
        worker.wait_for("stopped; open runs continue when a worker starts")
        assert worker.wait() == 0

    async def look() -> None:
        async with jobs.client():
            run = await jobs.runs.get(run_id)
            assert run.status == "PENDING"
            assert [(step.name, step.status, step.attempt) for step in run.steps] == [("patient", "SUCCESS", 1)]

    asyncio.run(look())
    with working(folder, "jobs:app"):
        assert asyncio.run(result_of(jobs, run_id, "gentle")) == "done"


@pytest.mark.parametrize("workflow", ["gentle", "threaded"])
def test_a_second_signal_stops_at_once_without_using_up_an_attempt(folder: Path, jobs: Redrive, workflow: str) -> None:
    with working(folder, "jobs:app") as worker:
        run_id = asyncio.run(start_and_wait_for_step(jobs, workflow))
        worker.signal()
        worker.wait_for("stopping: running steps")
        worker.signal()
        worker.wait_for("stopping at once")
        assert worker.wait() == 0  # The step itself would never end.

    async def look() -> None:
        async with jobs.client():
            run = await jobs.runs.get(run_id)
            (step,) = run.steps
            assert (run.status, run.crashes, step.attempt) == ("PENDING", 0, 1)
            assert [attempt.status for attempt in step.attempts] == ["RELEASED"]

    asyncio.run(look())
    (folder / "go").touch()
    with working(folder, "jobs:app"):
        assert asyncio.run(result_of(jobs, run_id, workflow)) == "done"


def test_a_worker_fails_with_a_message_for_an_unusable_store(folder: Path) -> None:
    worker = WorkerProcess(folder, "jobs:app", "--url", "sqlite:///no/such/folder/jobs.db")
    try:
        assert worker.wait() == 1
        worker.wait_for("folder no/such/folder of")
    finally:
        worker.end()


def test_the_example_prints_its_documented_output(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples/orders.py", tmp_path)
    command = [sys.executable, "orders.py", "A-1042", "19.90"]
    with working(tmp_path, "orders:app") as worker:
        first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True)
        again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True)
        worker.signal()
        assert worker.wait() == 0
    assert "parcel A-1042" in first.stdout
    assert "charge: attempt 1 of 6, network error, waiting" in first.stdout
    assert "charge: attempt 2, succeeded" in first.stdout
    assert again.stdout == first.stdout  # The second start found the first run.

    async def count() -> int:
        async with Redrive(f"sqlite:///{tmp_path / 'orders.db'}").client() as app:
            return len((await app.runs.list(RunFilter(workflow="fulfil"))).items)

    assert asyncio.run(count()) == 1
