"""`redrive circuits`, and the output of other commands about circuits."""

import asyncio
import json
from pathlib import Path

import pytest
from console import piped

from redrive import Circuit, Redrive, RetryPolicy
from redrive.testing import VirtualClock, engine


@pytest.fixture
def parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a store with an open circuit and a run that waits for it; return the run's id."""
    url = f"sqlite:///{tmp_path}/bank.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_URL", url)

    async def play() -> str:
        app = Redrive(url)

        @app.step(circuit=Circuit("payments"), retry=RetryPolicy(max_retries=0))
        async def charge(amount: int) -> int:
            raise ConnectionError("the bank does not answer")

        @app.workflow
        async def pay(amount: int) -> int:
            return await charge(amount)

        async with engine(app, store=url, clock=VirtualClock()) as e:
            for _ in range(5):
                await e.run(pay, 1)
            handle = await pay.start(2)
            await e.settle()
            return handle.id

    return asyncio.run(play())


def test_circuits_are_listed_with_the_number_of_waiting_runs(parked: str) -> None:
    (line,) = [line.split("\t") for line in piped("circuits", "list").output.splitlines()]
    assert line[:3] == ["payments", "default", "OPEN"]
    assert line[4] == "1"
    assert piped("circuits", "list", "-q", "--status", "closed").output == ""
    (item,) = json.loads(piped("circuits", "list", "--json").output)["items"]
    assert (item["key"], item["parked"], item["settings"]["failures"]) == ("payments", 1, 5)


def test_a_circuit_is_shown_with_all_details(parked: str) -> None:
    output = piped("circuits", "show", "payments").output
    for words in ("payments of tenant default is OPEN", "1 run waits", "5 failures within 1 m", "failures=5"):
        assert words in output
    missing = piped("circuits", "show", "post")
    assert missing.exit_code == 3
    assert "has no recorded state" in missing.output


def test_a_circuit_is_opened_closed_and_reset(parked: str) -> None:
    closed = piped("circuits", "close", "payments", "--by", "ann", "--reason", "it is back")
    assert closed.exit_code == 0
    assert "closed circuit 'payments': it is CLOSED, 1 run waits for it" in closed.output
    assert json.loads(piped("circuits", "open", "payments", "--json").output)["status"] == "OPEN"
    assert "until a user closes it" in piped("circuits", "show", "payments").output
    assert piped("circuits", "reset", "payments", "-q").output == "payments\n"
    audit = piped("audit", "list", "--event", "circuit.").output
    for words in ("A circuit was closed", "A circuit was opened", "A circuit was reset", "ann", "it is back"):
        assert words in audit


def test_circuits_of_two_tenants_are_named_with_their_tenant(parked: str) -> None:
    acme = ["payments", "--tenant", "acme"]
    opened = piped("circuits", "open", *acme, "--yes").output
    assert "opened circuit 'payments' of tenant 'acme': it is OPEN" in opened
    ways = [opened, piped("circuits", "show", *acme).output, piped("doctor").output]
    for told in ways:
        assert "payments --tenant acme" in " ".join(told.split())
    assert "would reset circuit 'payments' of tenant 'acme'" in piped("circuits", "reset", *acme, "--dry-run").output
    assert "--tenant" not in piped("runs", "why", parked).output
    assert piped("circuits", "close", *acme).exit_code == 0
    assert json.loads(piped("circuits", "show", "payments", "--json").output)["status"] == "OPEN"


def test_a_dry_run_changes_nothing(parked: str) -> None:
    assert "would close circuit 'payments'" in piped("circuits", "close", "payments", "--dry-run").output
    assert json.loads(piped("circuits", "show", "payments", "--json").output)["status"] == "OPEN"


def test_an_unknown_circuit_is_refused_with_a_suggestion(parked: str) -> None:
    refused = piped("circuits", "open", "paymnts")
    assert refused.exit_code == 3
    assert "circuit 'paymnts' of tenant 'default' is unknown; did you mean 'payments'?" in refused.output
    assert "payments" in refused.output
    assert piped("circuits", "open", "post", "--yes").exit_code == 0
    assert piped("circuits", "close", "unheard-of").exit_code == 3
    unreadable = piped("circuits", "list", "--tenant", "\udcff")  # a byte that is not UTF-8
    assert (unreadable.exit_code, unreadable.exception.__class__) == (5, SystemExit)


def test_settings_are_set_and_unset(parked: str) -> None:
    assert "'window' is not FIELD=VALUE: write failures=20" in piped("circuits", "set", "payments", "window").output
    done = piped("circuits", "set", "payments", "failures=20", "window=2m", "--json")
    assert json.loads(done.output)["override"] == {"failures": 20, "window": 120.0}
    assert "failures=20  (set by hand)" in piped("circuits", "show", "payments").output
    assert piped("circuits", "set", "payments", "--unset").exit_code == 0
    assert "set by hand" not in piped("circuits", "show", "payments").output
    for wrong in (["failures=0"], ["filures=3"], [], ["failures=3", "--unset"], ["failures"]):
        assert piped("circuits", "set", "payments", *wrong).exit_code == 2, wrong


def test_the_reason_of_a_parked_run_is_explained(parked: str) -> None:
    output = piped("runs", "why", parked).output
    for words in ("The run is parked: circuit 'payments' is open", "5 failures within 1 m", "1 run waits for it"):
        assert words in " ".join(output.split())
    shown = piped("runs", "show", parked).output
    assert "parked on    circuit 'payments'" in shown
    assert "the circuit was open" in " ".join(shown.split())


def test_the_doctor_reports_open_circuits(parked: str) -> None:
    output = " ".join(piped("doctor").output.split())
    assert "'payments' of tenant 'default' is OPEN" in output
    assert "1 run parked" in output
