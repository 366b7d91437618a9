"""Rollbacks under crashes: at every store call, and with killed worker processes (P7)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cluster
import engines
import pytest
from saga_kit import Refused, deed, new_app, trip
from saga_worker import build

from redrive.testing import Engine, RunReport, crash_everywhere, engine

WORKER = Path(__file__).with_name("saga_worker.py")
PLACES = engines.KINDS
BACK = ["undo_car", "undo_hotel", "undo_flight"]


async def test_a_crash_at_every_call_undoes_everything_in_order() -> None:
    t = trip()

    async def reset(e: Engine) -> None:
        t.outside.calls.clear()
        t.outside.keys.clear()

    async def check(e: Engine, run: RunReport) -> None:
        assert list(dict.fromkeys(t.outside.undone)) == BACK
        assert [t.outside.undone.index(name) for name in BACK] == sorted(map(t.outside.undone.index, BACK))
        assert all(len(keys) == 1 for keys in t.outside.keys.values())
        assert run.letter is not None
        assert (run.letter.status, run.letter.resolution) == ("RESOLVED", "rolled_back")

    points = await crash_everywhere(t.trip, 7, setup=reset, check=check)
    during = [point.call for point in points if point.manner == "a crash during"]
    assert set(BACK) <= set(during)


async def test_a_crash_at_every_call_of_a_rollback_that_fails_and_is_resumed() -> None:
    t = trip()

    async def reset(e: Engine) -> None:
        t.outside.calls.clear()
        t.outside.broken["undo_hotel"] = Refused

    async def resume(e: Engine, run: RunReport) -> None:
        assert (run.status, "undo_flight" in t.outside.names) == ("DLQ_PENDING", False)
        del t.outside.broken["undo_hotel"]
        await (await t.app.saga(run.id)).resume(by="ada")
        await e.finish_all()
        assert (await t.app.runs.get(run.id)).status == "COMPENSATED"
        assert list(dict.fromkeys(t.outside.undone)) == BACK
        assert t.outside.undone.count("undo_hotel") >= 2
        assert len((await t.app.dlq.list()).items) == 1

    assert len(await crash_everywhere(t.trip, 7, setup=reset, check=resume)) > 60


async def test_a_crash_at_every_call_of_a_rollback_after_a_deadline() -> None:
    app, outside = new_app(), trip().outside
    flight, hotel = (deed(app, outside, name) for name in ("flight", "hotel"))

    @app.workflow(rollback=True, timeout="1h")
    async def travel(number: int) -> None:
        await flight(number)
        await hotel(number)
        await e_sleep()

    async def e_sleep() -> None:
        import redrive

        await redrive.sleep("3h")

    async def reset(e: Engine) -> None:
        outside.calls.clear()

    async def check(e: Engine, run: RunReport) -> None:
        assert run.status == "TIMED_OUT"
        assert list(dict.fromkeys(outside.undone)) == ["undo_hotel", "undo_flight"]

    await crash_everywhere(travel, 7, setup=reset, check=check)


async def test_a_deploy_during_a_rollback_loses_nothing() -> None:
    t = trip()
    undo = t.steps["hotel"].undo
    assert undo is not None
    t.outside.broken["undo_hotel"] = ConnectionError
    from redrive import RetryPolicy

    undo.step.set_options(retry=RetryPolicy(max_retries=3, base_delay=3, jitter=0))
    async with engine(t.app) as e:
        handle = await t.trip.start(7)
        await e.settle()
        await e.restart()  # while it waits in memory
        assert await handle.status() == "COMPENSATING"
        del t.outside.broken["undo_hotel"]
        run = await e.finish(handle)
        assert (run.status, run.described.crashes) == ("COMPENSATED", 0)
        assert t.outside.undone == ["undo_car", "undo_hotel", "undo_hotel", "undo_flight"]


# -- real processes -----------------------------------------------------------------------------------------


@asynccontextmanager
async def database(kind: str, folder: Path) -> AsyncIterator[str]:
    """Yield the URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/redrive.db"
        return
    cluster.need_postgres()
    async with cluster.fresh(kind) as url:
        yield url


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what another process does rings no bell here
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", PLACES)
async def test_a_rollback_of_a_killed_worker_is_continued_by_another(tmp_path: Path, kind: str) -> None:
    ledger = tmp_path / "ledger"

    def lines() -> list[str]:
        return ledger.read_text().split("\n")[:-1] if ledger.exists() else []

    async with database(kind, tmp_path) as url:
        app = build(url, tmp_path)
        workers: list[subprocess.Popen[bytes]] = []
        try:
            async with app.client():
                workers.append(subprocess.Popen([sys.executable, WORKER, url, tmp_path]))
                handle = await app.find("travel").start(7)
                await until(lambda: "begin hotel" in lines(), "the hotel is being given back")
                workers[0].kill()
                workers[0].wait()
                assert await handle.status() == "COMPENSATING"
                workers.append(subprocess.Popen([sys.executable, WORKER, url, tmp_path]))
                await until(lambda: lines().count("begin hotel") == 2, "another worker continues")
                (tmp_path / "gate").touch()
                await until(lambda: "end flight" in lines(), "everything is undone")
                async with asyncio.timeout(60):
                    while await handle.status() != "COMPENSATED":  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                entries = (await app.saga(handle.id)).entries
                (letter,) = (await app.dlq.list()).items
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    assert lines() == ["begin car", "end car", "begin hotel", "begin hotel", "end hotel", "begin flight", "end flight"]
    assert [(entry.action, entry.status, entry.attempt) for entry in entries] == [(name, "SUCCESS", 1) for name in BACK]
    assert (letter.status, letter.resolution) == ("RESOLVED", "rolled_back")
