"""Concurrent decisions from several processes, on both databases (P6, trap A7), and bulk actions on several nodes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cluster
import engines
import pytest
from desk_kit import Shop, shop

from redrive import Redrive, RunFailed
from redrive.desk.bulk import BulkAction
from redrive.desk.models import DeadLetter
from redrive.store.filters import LetterFilter

pytestmark = pytest.mark.heavy

PEOPLE = Path(__file__).with_name("desk_people.py")
NODE = Path(__file__).with_name("desk_node.py")
PLACES = engines.KINDS
PATIENCE = 60


@asynccontextmanager
async def database(kind: str, folder: Path) -> AsyncIterator[str]:
    """Yield the URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/redrive.db"
        return
    cluster.need_postgres()
    async with cluster.fresh(kind) as url:
        yield url


@asynccontextmanager
async def processes(script: Path, url: str, count: int) -> AsyncIterator[list[Any]]:
    """Start processes of a script and wait until they are ready; kill them at the end."""
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    begun = [await asyncio.create_subprocess_exec(sys.executable, str(script), url, **pipes) for _ in range(count)]
    try:
        async with asyncio.timeout(PATIENCE):
            for process in begun:
                assert await process.stdout.readline() == b"ready\n"
        yield begun
    finally:
        for process in begun:
            process.kill()
            await process.wait()


async def ask(computers: list[Any], letter: str, modes: list[str], each: int) -> list[list[Any]]:
    """Let `each` users of every process decide on a letter at once, in one mode per process; return the answers."""
    for computer, mode in zip(computers, modes, strict=True):
        computer.stdin.write(json.dumps([letter, mode, each]).encode() + b"\n")
    async with asyncio.timeout(PATIENCE):
        told = [await computer.stdout.readline() for computer in computers]
    return [answer for line in told for answer in json.loads(line)]


async def fail(s: Shop) -> DeadLetter:
    """Let an order fail and return its letter."""
    s.ledger.broken.add("charge")
    handle = await s.order.start("lamp", 40)
    with pytest.raises(RunFailed):
        await handle.result(PATIENCE)
    s.ledger.broken.clear()
    s.ledger.calls.clear()
    return await s.app.dlq.get(f"dl-{handle.id}")


@pytest.mark.parametrize(("kind", "mode"), engines.paired("FROM_FAILED", "FULL"))
async def test_users_in_four_processes_get_one_answer_and_one_decision_wins(
    tmp_path: Path, kind: str, mode: str
) -> None:
    async with database(kind, tmp_path) as url:
        s = shop(Redrive(url))
        async with s.app, processes(PEOPLE, url, 4) as computers:
            await check_equal_decisions(s, computers, mode)
            await check_different_decisions(s, computers)


async def check_equal_decisions(s: Shop, computers: list[Any], mode: str) -> None:
    letter = await fail(s)
    answers = await ask(computers, letter.id, [mode] * 4, 13)
    assert len(answers) == 52
    assert len({tuple(answer) for answer in answers}) == 1
    kept, number, said, run_id, by, _ = answers[0]
    assert (kept, number, said, run_id == letter.run_id) == ("replay", 1, mode, mode != "FULL")
    assert await s.app.handle(run_id, "order").result(PATIENCE)
    assert s.ledger.counts == {**({"reserve": 1} if mode == "FULL" else {}), "charge": 1, "ship": 1}
    now = await s.app.dlq.get(letter.id)
    assert ([r.by for r in now.replays], now.status) == ([by], "RESOLVED")


async def check_different_decisions(s: Shop, computers: list[Any]) -> None:
    letter = await fail(s)
    answers = await ask(computers, letter.id, ["FROM_FAILED", "resolve", "ignore", "FULL"], 12)
    good = [tuple(answer) for answer in answers if answer != ["conflict"]]
    assert (len(good), len(set(good))) == (12, 1), set(good)
    lines = [line.event for line in (await s.app.dlq.get(letter.id)).history]
    deciding = {"dlq.retry", "dlq.resolved", "dlq.skipped"}
    assert len([event for event in lines if event in deciding]) == 1
    if good[0][0] == "replay":
        assert await s.app.handle(good[0][3], "order").result(PATIENCE)
    assert s.ledger.counts["charge"] == (1 if good[0][0] == "replay" else 0)


async def until_known(app: Redrive, id: str, known: Callable[[BulkAction], bool]) -> BulkAction:
    """Wait until the condition holds for a set, and return the set."""
    async with asyncio.timeout(PATIENCE):
        while not known(found := await app.dlq.set(id)):  # noqa: ASYNC110 - others work on it
            await asyncio.sleep(0.02)
    return found


@pytest.mark.parametrize("kind", PLACES)
async def test_two_processes_keep_one_rate_together(tmp_path: Path, kind: str) -> None:
    """The processes together never exceed the rate in any second, whichever takes a batch."""
    async with database(kind, tmp_path) as url:
        s = shop(Redrive(url))
        async with s.app:
            for handle in await s.order.start_many([("lamp", amount) for amount in range(80)]):
                with pytest.raises(RunFailed):
                    await handle.result(PATIENCE)
        async with processes(NODE, url, 2), asyncio.timeout(PATIENCE), s.app.client():
            set = await s.app.dlq.resolve_many(LetterFilter(), by="ann", rate="40/s")
            await until_known(s.app, set.id, lambda found: found.done == 80)
            items = (await s.app.dlq.set_items(set.id, limit=100)).items
        times = sorted(item.at.timestamp() for item in items if item.at is not None)
        spans = [later - first for first, later in zip(times, times[40:], strict=False)]
        assert len(times) == 80
        assert min(spans) > 0.9, spans  # each process has its own clock
