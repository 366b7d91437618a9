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
from desk_kit import shop

from redrive import Redrive, RunFailed
from redrive.desk.bulk import BulkAction
from redrive.store.filters import LetterFilter

pytestmark = pytest.mark.heavy

PEOPLE = Path(__file__).with_name("desk_people.py")
NODE = Path(__file__).with_name("desk_node.py")
PLACES = engines.KINDS
PATIENCE = 60


@asynccontextmanager
async def place(kind: str, folder: Path) -> AsyncIterator[str]:
    """Yield the URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/redrive.db"
        return
    cluster.need_postgres()
    async with cluster.fresh(kind) as url:
        yield url


async def ask(url: str, letter: str, modes: list[str], each: int) -> list[list[Any]]:
    """Start a process for each mode, with `each` users who decide at once, and return the answers."""
    computers = [await _open(PEOPLE, url, letter, mode, each) for mode in modes]
    try:
        async with asyncio.timeout(PATIENCE):
            for computer in computers:
                assert await computer.stdout.readline() == b"ready\n"
            told = await asyncio.gather(*[computer.communicate(b"go\n") for computer in computers])
    finally:
        for computer in computers:
            if computer.returncode is None:
                computer.kill()
                await computer.wait()
    return [answer for out, _ in told for answer in json.loads(out)]


async def _open(*arguments: Any) -> Any:
    words = [sys.executable, *map(str, arguments)]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    return await asyncio.create_subprocess_exec(*words, **pipes)


@pytest.mark.parametrize(("kind", "mode"), engines.paired("FROM_FAILED", "FULL"))
async def test_fifty_two_users_in_four_processes_get_one_answer(tmp_path: Path, kind: str, mode: str) -> None:
    async with place(kind, tmp_path) as url:
        s = shop(Redrive(url))
        async with s.app:
            handle = await s.order.start("lamp", 40)
            with pytest.raises(RunFailed):
                await handle.result(PATIENCE)
            s.ledger.broken.clear()
            (letter,) = (await s.app.dlq.list()).items
            answers = await ask(url, letter.id, [mode] * 4, 13)
            assert len(answers) == 52
            assert len({tuple(answer) for answer in answers}) == 1
            kept, number, said, run_id, by, _ = answers[0]
            assert (kept, number, said, run_id == handle.id) == ("replay", 1, mode, mode != "FULL")
            assert await s.app.handle(run_id, "order").result(PATIENCE)
            assert s.ledger.counts == {"reserve": 2 if mode == "FULL" else 1, "charge": 2, "ship": 1}
            now = await s.app.dlq.get(letter.id)
            assert ([r.by for r in now.replays], now.status) == ([by], "RESOLVED")


@pytest.mark.parametrize("kind", PLACES)
async def test_exactly_one_of_replay_resolve_and_ignore_wins_across_processes(tmp_path: Path, kind: str) -> None:
    async with place(kind, tmp_path) as url:
        s = shop(Redrive(url))
        async with s.app:
            handle = await s.order.start("lamp", 40)
            with pytest.raises(RunFailed):
                await handle.result(PATIENCE)
            s.ledger.broken.clear()
            (letter,) = (await s.app.dlq.list()).items
            answers = await ask(url, letter.id, ["FROM_FAILED", "resolve", "ignore", "FULL"], 12)
            good = [tuple(answer) for answer in answers if answer != ["conflict"]]
            assert (len(good), len(set(good))) == (12, 1), set(good)
            lines = [line.event for line in (await s.app.dlq.get(letter.id)).history]
            deciding = {"dlq.retry", "dlq.resolved", "dlq.skipped"}
            assert len([event for event in lines if event in deciding]) == 1
            if good[0][0] == "replay":
                assert await s.app.handle(good[0][3], "order").result(PATIENCE)
            assert s.ledger.counts["charge"] == (2 if good[0][0] == "replay" else 1)


async def until_known(app: Redrive, id: str, known: Callable[[BulkAction], bool]) -> BulkAction:
    """Wait until the condition holds for a set, and return the set."""
    async with asyncio.timeout(PATIENCE):
        while not known(found := await app.dlq.set(id)):  # noqa: ASYNC110 - others work on it
            await asyncio.sleep(0.02)
    return found


@pytest.mark.parametrize("kind", PLACES)
async def test_two_processes_keep_one_rate_together(tmp_path: Path, kind: str) -> None:
    """The processes together never exceed the rate in any second, whichever takes a batch."""
    async with place(kind, tmp_path) as url:
        s = shop(Redrive(url))
        async with s.app:
            for handle in await s.order.start_many([("lamp", amount) for amount in range(80)]):
                with pytest.raises(RunFailed):
                    await handle.result(PATIENCE)
        nodes = [await _open(NODE, url) for _ in range(2)]
        try:
            async with asyncio.timeout(PATIENCE), s.app.client():
                for node in nodes:
                    assert await node.stdout.readline() == b"ready\n"
                set = await s.app.dlq.resolve_many(LetterFilter(), by="ann", rate="40/s")
                await until_known(s.app, set.id, lambda found: found.done == 80)
                items = (await s.app.dlq.set_items(set.id, limit=100)).items
        finally:
            for node in nodes:
                node.kill()
                await node.wait()
        times = sorted(item.at.timestamp() for item in items if item.at is not None)
        spans = [later - first for first, later in zip(times, times[40:], strict=False)]
        assert len(times) == 80
        assert min(spans) > 0.9, spans  # each process has its own clock
