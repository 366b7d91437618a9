"""Patches: a run keeps the path that it took, on every worker and after every crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import engines
import pytest
from file_worker import make_app, until, worker_of

import redrive
from redrive import Redrive
from redrive.core.states import RunStatus
from redrive.errors import InputError
from redrive.store.workers import Catalogue, NewWorker
from redrive.testing import crash_everywhere, engine


class Shop:
    """A workflow whose code a test replaces between two workers: `old`, `patched`, or `clean` without the old path."""

    def __init__(self, **settings: Any) -> None:
        self.release = "old"
        self.app = app = Redrive(**settings)

        @app.step
        async def send_by(way: str) -> str:
            return way

        @app.workflow
        async def order() -> list[str]:
            await redrive.wait_for("packed")
            first = await send_by("courier" if self._is_new() else "post")
            await redrive.wait_for("paid")
            return [first, "new" if self._is_new() else "old"]

        @app.workflow
        async def parcels() -> list[str]:
            async def one(number: int) -> str:
                await redrive.wait_for(f"packed {number}")
                return await send_by("courier" if self._is_new() else "post")

            sent = await asyncio.gather(*map(one, range(3)))
            await redrive.wait_for("paid")
            return [*sent, "new" if self._is_new() else "old"]

        self.order, self.parcels = order, parcels

    def _is_new(self) -> bool:
        return self.release == "clean" or (self.release == "patched" and redrive.patched("courier"))


@pytest.mark.parametrize("kind", engines.KINDS)
async def test_a_run_that_passed_a_patch_before_it_existed_keeps_the_old_path(kind: str) -> None:
    shop = Shop()
    async with engines.on(kind) as on_store, on_store(shop.app) as e:
        passed, before = await shop.order.start(), await shop.order.start()
        await e.send(passed, "packed")
        shop.release = "patched"
        await e.restart()
        started = await shop.order.start()
        for run in (before, started):
            await e.send(run, "packed")
        await e.crash()
        await e.send(passed, "paid")
        shop.release = "clean"  # the last run with the old path has ended
        await e.restart()
        for run in (before, started):
            await e.send(run, "paid")
        ends = [(await e.finish(run)).result for run in (passed, before, started)]
        notes = [
            [(step.key, step.output) for step in (await run.describe()).steps if step.kind == "patch"]
            for run in (passed, before, started)
        ]
    assert ends == [["post", "old"], ["courier", "new"], ["courier", "new"]]
    key = "/redrive.patched courier#0"
    assert notes == [[(key, False)], [(key, True)], [(key, True)]]


async def test_each_branch_keeps_the_path_that_it_took_and_later_code_follows_the_function() -> None:
    shop = Shop()
    async with engine(shop.app) as e:
        run = await shop.parcels.start()
        await e.send(run, "packed 1")
        shop.release = "patched"
        await e.restart()
        await e.send(run, "packed 0")
        await e.crash()
        await e.send(run, "packed 2")
        await e.restart()
        await e.send(run, "paid")
        assert (await e.finish(run)).result == ["courier", "post", "courier", "new"]


async def test_the_function_decides_for_the_tasks_that_it_creates() -> None:
    app, decided = Redrive(), []

    @app.step
    async def touch() -> None: ...

    @app.workflow
    async def work(patch: bool) -> list[bool]:
        if patch:
            decided.append(redrive.patched("all"))

        async def one() -> bool:
            await touch()
            return redrive.patched("all")

        return list(await asyncio.gather(one(), one()))

    async with engine(app) as e:
        report = await e.run(work, True)
        assert (report.result, decided) == ([True, True], [True])
        assert [step.key for step in report.steps if step.kind == "patch"] == ["/redrive.patched all#0"]
        alone = await e.run(work, False)
        assert [step.key[:2] for step in alone.steps if step.kind == "patch"] == ["0/", "1/"]


async def test_a_task_that_ended_before_a_later_part_of_the_run_keeps_the_old_path() -> None:
    """Other branches recorded the later part, and the task itself recorded nothing behind the place."""
    app, release = Redrive(), ["old"]

    @app.step
    async def touch(what: str) -> str:
        return what

    @app.workflow
    async def work() -> list[str]:
        async def pick() -> str:
            picked = await touch("picked")
            return await touch("weighed") if release[0] == "new" and redrive.patched("weigh") else picked

        first = await asyncio.gather(pick(), pick())
        second = await asyncio.gather(touch("sent"), touch("billed"))
        await redrive.wait_for("paid")
        return [*first, *second]

    async with engine(app) as e:
        run = await work.start()
        await e.settle()
        release[0] = "new"
        await e.restart()
        await e.send(run, "paid")
        assert (await e.finish(run)).result == ["picked", "picked", "sent", "billed"]


async def test_a_patched_run_survives_a_crash_at_every_store_call() -> None:
    app = Redrive()

    @app.step
    async def send_by(way: str) -> str:
        return way

    @app.workflow
    async def order() -> str:
        await send_by("door")
        return await send_by("courier" if redrive.patched("courier") else "post")

    async def check(_: Any, report: Any) -> None:
        assert report.result == "courier"

    await crash_everywhere(order, check=check)


async def test_a_def_workflow_asks_for_a_patch_too() -> None:
    app = Redrive()

    @app.workflow
    def work() -> bool:
        return redrive.patched("plain")

    async with engine(app) as e:
        assert (await e.run(work)).result is True


async def test_a_patch_outside_a_run_is_taken_and_one_in_a_step_is_refused() -> None:
    app = Redrive()

    @app.step
    async def inside() -> bool:
        return redrive.patched("x")

    @app.workflow
    async def work() -> bool:
        return bool(await inside())

    assert redrive.patched("x")
    async with engine(app) as e:
        report = await e.run(work)
    assert report.error is not None
    assert report.error.error_type == "redrive.errors.MisusedStep"


@pytest.mark.parametrize("name", ["", "a/b", "a#b", "two\nlines", "x" * 101, None])
def test_a_name_that_a_patch_cannot_have_is_refused(name: Any) -> None:
    with pytest.raises(InputError, match="cannot name a patch: use 1 to 100 printable characters"):
        redrive.patched(name)


async def test_a_replay_from_the_failure_takes_the_newest_code() -> None:
    app, release = Redrive(), ["old"]

    @app.step
    async def call(what: str) -> str:
        if what == "broken":
            raise ValueError(what)
        return what

    @app.workflow
    async def work() -> str:
        await call("first")
        return await call("repaired" if release[0] == "new" and redrive.patched("repair") else "broken")

    async with engine(app) as e:
        failed = await e.run(work)
        assert failed.letter is not None
        release[0] = "new"
        await e.restart()
        await app.dlq.replay(failed.letter.id)
        assert (await e.finish(app.handle(failed.id, "work"))).result == "repaired"


def build_release(folder: Path, version: str, **settings: Any) -> tuple[Redrive, Any]:
    """Return an app with the code before a patch (`1`), with it (`2`) or without its old path (`3`)."""
    app = make_app(folder, **{"hold": 0.01, "version": version, **settings})

    @app.step
    async def send_by(way: str) -> str:
        return f"{way} by {version}"

    @app.workflow
    async def order(in_task: bool) -> str:
        new = redrive.patched("courier") if version == "2" else version == "3"
        await redrive.wait_for("go")
        sent = send_by("courier" if new else "post")
        return (await asyncio.gather(sent))[0] if in_task else await sent

    return app, order


@pytest.mark.parametrize("in_task", [False, True])
async def test_older_code_leaves_a_run_that_took_a_patch_to_the_workers_that_have_it(
    tmp_path: Path, in_task: bool
) -> None:
    second, order = build_release(tmp_path, "2")
    async with second:
        handle = await order.start(in_task)

        async def waits() -> bool:
            return await handle.status() is RunStatus.SLEEPING and not worker_of(second).executions

        await until(waits, "the run left memory")
    first, _ = build_release(tmp_path, "1", code_wait="1h")
    async with first.client():
        has_it = NewWorker(name="elsewhere", version="2", workflows=("order",), lease=60_000_000)
        elsewhere = await first.runtime.store.enlist(has_it, Catalogue(version="2", workflows=(), steps=()))
    async with first:
        await first.runs.send(handle.id, "go")

        async def left_alone() -> bool:
            row = await first.runtime.store.run(handle.id)
            return row is not None and row.diverged_at is not None

        await until(left_alone, "the older code released the run")
        assert not any(step.name == "send_by" for step in (await first.runs.get(handle.id)).steps)
        await first.runtime.store.retire(elsewhere)
    third, _ = build_release(tmp_path, "3")
    async with third:
        assert await third.handle(handle.id, "order").result("20s") == "courier by 3"
