"""Runs and dead letters found by the fields that their workflow declared, also where payloads are sealed."""

import asyncio
import base64
import json
from pathlib import Path

import pytest
from console import piped

from redrive import NonRetryable, Redrive, RunFailed

KEY = base64.b64encode(bytes([7]) * 32).decode()
CUSTOMERS = {"1E5": 7, "ann@example.org": 8}


@pytest.fixture(params=["", KEY], ids=["in clear", "sealed"])
def runs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the failed run of each customer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_URL", "sqlite:///shop.db")
    monkeypatch.setenv("REDRIVE_ENCRYPTION_KEYS", request.param)
    return asyncio.run(play())


async def play() -> dict[str, str]:
    app = Redrive()

    @app.workflow(index=["order.customer", "number", "paid"])
    async def sell(order: dict[str, str], number: int, paid: bool) -> None:
        raise NonRetryable("nothing is for sale")

    found = {}
    async with app:
        for customer, number in CUSTOMERS.items():
            handle = await sell.start({"customer": customer}, number, number == 7)
            found[customer] = handle.id
            with pytest.raises(RunFailed):
                await handle.result(timeout=30)
    return found


@pytest.mark.parametrize(
    "wanted", [["order.customer=1E5"], ["number=7"], ["paid=true"], ["paid=true", "order.customer=1E5"]]
)
def test_runs_and_letters_are_found_by_their_fields(runs: dict[str, str], wanted: list[str]) -> None:
    options = [word for pair in wanted for word in ("--index", pair)]
    assert piped("runs", "list", "-q", *options).output == f"{runs['1E5']}\n"
    assert piped("dlq", "list", "-q", *options).output == f"dl-{runs['1E5']}\n"


def test_fields_that_match_no_run_find_none(runs: dict[str, str]) -> None:
    options = ["--index", "paid=true", "--index", "number=8"]
    assert piped("runs", "list", "-q", *options).output == ""
    assert piped("dlq", "list", "-q", *options).output == ""


@pytest.mark.parametrize("verb", ["replay", "resolve", "ignore"])
def test_letters_are_replayed_and_closed_by_their_fields(runs: dict[str, str], verb: str) -> None:
    begun = piped("dlq", verb, "--all", "--index", "order.customer=ann@example.org", "--dry-run", "--json")
    assert (begun.exit_code, json.loads(begun.stdout)["total"]) == (0, 1), begun.output


@pytest.mark.parametrize("command", [["runs", "list"], ["dlq", "list"], ["dlq", "ignore", "--all"]])
@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["number"], "is not FIELD=VALUE: write --index customer.email=ann@example.org"),
        (["=7"], "is not FIELD=VALUE"),
        (["number=7", "number=8"], "--index gives 'number' twice"),
    ],
)
def test_an_index_option_without_a_field_or_with_a_repeated_one_is_refused(
    command: list[str], pairs: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = piped(*command, *(word for pair in pairs for word in ("--index", pair)))
    assert (result.exit_code, words in " ".join(result.stderr.split())) == (2, True), result.output


def test_a_field_without_all_is_refused(runs: dict[str, str]) -> None:
    result = piped("dlq", "ignore", "--index", "number=7")
    assert (result.exit_code, "or --all and a filter" in " ".join(result.stderr.split())) == (2, True)
    assert len(piped("dlq", "list", "-q").output.split()) == 2
