"""Failure handlers and events on the command line."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from console import piped

from redrive import Redrive, RunFailed

CODE = """
from redrive import FailureEvent, NonRetryable, Redrive

app = Redrive("sqlite:///watch.db")


@app.on_failure
async def tell(event: FailureEvent) -> None:
    return None


@app.workflow
async def pay(card: str) -> str:
    if card == "bad":
        raise NonRetryable("declined")
    return card
"""


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Return the ids of a failed run and of the run that handled its failure."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watchers.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("REDRIVE_APP", "watchers:app")
    monkeypatch.delenv("REDRIVE_URL", raising=False)
    yield asyncio.run(_play())
    sys.modules.pop("watchers", None)


async def _play() -> tuple[str, str]:
    from watchers import app  # type: ignore[import-not-found]

    async with app:
        handle = await app.find("pay").start("bad")
        with pytest.raises(RunFailed):
            await handle.result(30)
        (handler,) = (await handle.describe()).handled_by
        await app.handle(handler).result(30)
        return handle.id, handler


def test_runs_and_letters_show_their_handlers(failed: tuple[str, str]) -> None:
    run, handler = failed
    assert f"handled by   {handler}" in piped("runs", "show", run).output
    assert f"handled by   {handler}" in piped("dlq", "show", run).output
    assert f"handler for  {run}" in piped("runs", "show", handler).output
    assert "handler for" not in piped("runs", "show", run).output


def test_handlers_are_listed_by_run_id_or_prefix(failed: tuple[str, str]) -> None:
    run, handler = failed
    assert piped("runs", "list", "-q", "--handler-for", run).output.split() == [handler]
    assert piped("runs", "list", "-q", "--handler-for", run[:20]).output.split() == [handler]
    assert piped("runs", "list", "-q", "--handler-for", handler).output.split() == []
    assert piped("runs", "show", "-q", handler[:20]).output.split() == [
        handler
    ]  # A handler is found like any other run.


def test_a_repeated_event_starts_one_run(failed: tuple[str, str]) -> None:
    start = ("runs", "start", "pay", "-q", "--stream", "orders", "--event", "e-1", "--input")
    ids = {piped(*start, '{"card": "visa"}').output for _ in range(3)}
    assert len(ids) == 1
    other = piped(*start, '{"card": "amex"}')
    assert other.exit_code == 4
    assert "event 'e-1' of stream 'orders' was received before" in other.stderr
    assert len(_runs("pay")) == 2


def _runs(workflow: str) -> list[str]:
    async def look() -> list[str]:
        from redrive import RunFilter

        async with Redrive("sqlite:///watch.db").client() as app:
            return [run.id for run in (await app.runs.list(RunFilter(workflow=workflow))).items]

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--event", "e-1"), "--event and --stream belong together"),
        (("--stream", "s"), "--event and --stream belong together"),
        (("--event", "e-1", "--stream", "s", "--key", "k"), "--event excludes --key"),
        (("--event", "e-1", "--stream", "s", "--many", "-"), "--many excludes"),
    ],
)
def test_invalid_event_options_are_refused(failed: tuple[str, str], options: tuple[str, ...], words: str) -> None:
    refused = piped("runs", "start", "pay", *options)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert len(_runs("pay")) == 1
