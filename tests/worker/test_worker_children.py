"""Children: runs that other runs start and wait for, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import redrive
from redrive import LetterFilter, Redrive
from redrive.cli.dlq.letter_page import render_letter
from redrive.core.states import EntryKind, RunStatus
from redrive.errors import ChildFailed, Conflict, InputError
from redrive.observability.metrics import make_registry, render_metrics
from redrive.observability.tracing import set_request_trace
from redrive.store.filters import RunFilter
from redrive.testing import engine
from redrive.worker.waits import Waits


def new_app(**options: Any) -> Redrive:
    return Redrive("sqlite:///:memory:", **options)


async def open_letters(app: Redrive) -> list[Any]:
    return list((await app.dlq.list(LetterFilter(status="OPEN"))).items)


class Family:
    """A parent with a child whose step can be broken and repaired."""

    def __init__(self, **options: Any) -> None:
        self.app = app = new_app()
        self.broken = True
        self.calls: list[str] = []

        @app.step(retry=redrive.RetryPolicy(max_retries=0))
        async def book(order: str) -> str:
            self.calls.append(f"book {order}")
            if self.broken:
                raise ValueError("no room")
            return f"label {order}"

        @app.step
        async def pay(order: str) -> str:
            self.calls.append(f"pay {order}")
            return "paid"

        @app.workflow
        async def ship(order: str) -> str:
            return await book(order)

        @app.workflow
        async def parent(order: str) -> str:
            await pay(order)
            return f"got {await ship.run(order, **options)}"

        @app.workflow
        async def grandparent(order: str) -> str:
            return f"{await parent.run(order)}!"

        self.ship, self.parent, self.grandparent = ship, parent, grandparent


async def test_a_parent_gets_the_result_of_its_child() -> None:
    family = Family()
    family.broken = False
    async with engine(family.app) as e:
        report = await e.run(family.parent, "A-1", correlation_id="c-1", tenant="acme")
        assert report.result == "got label A-1"
        kinds = [(step.kind, step.name) for step in report.steps]
        assert kinds[1:] == [(EntryKind.START, "redrive.start ship"), (EntryKind.WAIT, "redrive.result ship")]
        (child,) = [run for run in (await family.app.runs.list()).items if run.workflow == "ship"]
        assert (child.parent, child.tenant, child.correlation_id) == (report.id, "acme", "c-1")
        assert await family.ship.run("B-2") == "label B-2"  # outside a run: start and wait


async def test_a_waiting_parent_is_in_memory_for_a_while_and_later_in_the_store() -> None:
    app = new_app()

    @app.workflow
    async def child(seconds: int) -> int:
        await redrive.sleep(seconds)
        return seconds

    @app.workflow
    async def parent(seconds: int) -> int:
        return await child.run(seconds)

    async with engine(app) as e:
        for seconds in (1, 3600):
            handle = await parent.start(seconds)
            await e.settle()
            await e.advance(0.5 if seconds == 1 else 600)
            run = await e.store.run(handle.id)
            assert run is not None
            assert run.status is RunStatus.SLEEPING
            assert (run.worker is None) is (seconds == 3600)
            await e.crash()
            assert (await e.finish(handle)).result == seconds


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_dead_letter_of_a_child_parks_its_parents_and_a_replay_continues_them(levels: int) -> None:
    family = Family()
    async with engine(family.app) as e:
        handle = await (family.parent if levels == 1 else family.grandparent).start("A-1")
        await e.settle()
        await e.advance("1h")
        assert await handle.status() is RunStatus.SLEEPING
        (letter,) = await open_letters(family.app)  # one problem, one letter
        assert letter.workflow == "ship"
        stats = await e.store.stats()
        assert (stats.waiting["run"], stats.stuck_parents, stats.oldest_stuck) == (levels, 1, stats.oldest_letter)
        metrics = render_metrics(make_registry(None, lambda: stats), "")[0].decode()
        assert f'workflow_waits{{kind="run"}} {levels}.0' in metrics
        assert "workflow_parents_oldest_letter_age_seconds 36" in metrics  # an hour and a few seconds
        (child,) = await e.children(handle)
        assert (child.workflow, child.letter_id) == (("ship", letter.id) if levels == 1 else ("parent", None))
        parents = (await family.app.runs.list(RunFilter(waits_for=letter.run_id))).items
        shown = "\n".join(render_letter(await family.app.dlq.get(letter.id), parents))
        assert f"These runs wait for it: {parents[0].id} (parent)" in shown
        family.broken = False
        await family.app.dlq.replay(letter.id, by="ann")
        assert (await e.finish(handle)).result == "got label A-1" + "!" * (levels - 1)
        assert family.calls == ["pay A-1", "book A-1", "book A-1"]


async def test_a_letter_that_is_closed_fails_the_parent_which_may_catch_it() -> None:
    family = Family()
    app = family.app

    @app.workflow
    async def careful(order: str) -> list[str]:
        try:
            await family.ship.run(order)
        except ChildFailed as error:
            return [error.status, error.category, error.error_type, str(error.is_a(ValueError)), error.run_id]
        return []

    async with engine(app) as e:
        first, second = await family.parent.start("A-1"), await careful.start("B-2")
        await e.settle()
        letters = await open_letters(app)
        for letter in letters:
            await app.dlq.ignore(letter.id, by="ann")
        failed, caught = await e.finish(first), await e.finish(second)
        assert (failed.status, failed.letter is not None) == ("DLQ_PENDING", True)
        assert failed.letter is not None
        assert failed.letter.step == "redrive.result ship"
        assert "ended as FAILED" in str(failed.error)
        child = next(each.run_id for each in letters if each.run_id in str(failed.error))
        assert caught.result[:4] == ["FAILED", "internal", "builtins.ValueError", "True"]
        assert caught.result[4] != child


@pytest.mark.parametrize("mode", ["FROM_FAILED", "FULL", "STEP_ONLY"])
async def test_a_replay_of_a_parent_replays_its_failed_child_from_its_failed_step(mode: str) -> None:
    family = Family()
    app = family.app
    async with engine(app) as e:
        handle = await family.grandparent.start("A-1")
        await e.settle()
        for _ in range(2):  # give up on the child, then on the parent
            (letter,) = await open_letters(app)
            await app.dlq.ignore(letter.id, by="ann")
            await e.settle()
        (letter,) = await open_letters(app)
        assert letter.run_id == handle.id
        dry: Any = await app.dlq.replay(letter.id, mode, dry_run=True)
        assert "is replayed first" in dry.warnings[-1]
        family.broken = False
        replay: Any = await app.dlq.replay(letter.id, mode, by="ann")
        report = await e.finish(app.handle(replay.run_id))
        assert (report.status, report.result) == ("SUCCESS", "got label A-1!")
        assert family.calls == ["pay A-1", "book A-1", "book A-1"], "nothing else is done again"


async def test_a_parent_of_a_cancelled_child_is_continued_with_a_new_one_or_a_given_result() -> None:
    family = Family()
    app = family.app
    async with engine(app) as e:
        reports = []
        for order in ("A-1", "B-2"):
            handle = await family.parent.start(order)
            await e.settle()
            (letter,) = [each for each in await open_letters(app) if each.workflow == "ship"]
            family.broken = False
            await app.dlq.replay(letter.id, by="ann")
            await app.runs.cancel(letter.run_id, by="ann")
            await e.settle()
            reports.append(await e.finish(handle))
            family.broken = True
        first, second = reports
        assert first.letter is not None
        assert second.letter is not None
        with pytest.raises(Conflict, match="it ended as CANCELLED"):
            await app.dlq.replay(first.letter.id, by="ann")
        family.broken = False
        start = first.step("redrive.start ship")
        await app.dlq.replay(first.letter.id, "FROM_STEP", from_step=start.index, new_operation=True, by="ann")
        assert (await e.finish(app.handle(first.id))).result == "got label A-1"
        await app.dlq.replay(second.letter.id, "COMPLETE", output="by hand", by="ann")
        assert (await e.finish(app.handle(second.id))).result == "got by hand"


async def test_a_full_replay_of_a_child_takes_its_place() -> None:
    family = Family()
    app = family.app
    async with engine(app) as e:
        handle = await family.parent.start("A-1")
        await e.settle()
        (letter,) = await open_letters(app)
        family.broken = False
        replay = await app.dlq.replay(letter.id, "FULL", input={"order": "B-2"}, by="ann")
        assert (await e.finish(handle)).result == "got label B-2"
        new = await e.store.run(replay.run_id)
        assert new is not None
        assert new.parent == handle.id


async def test_on_letter_fail_ends_the_wait_at_the_letter() -> None:
    family = Family(on_letter="fail")
    async with engine(family.app) as e:
        report = await e.run(family.parent, "A-1")
        assert report.status == "DLQ_PENDING"
        assert len(await open_letters(family.app)) == 2


async def test_any_run_of_the_tenant_can_be_waited_for_with_a_limit() -> None:
    app = new_app()

    @app.workflow
    async def slow() -> str:
        return await redrive.wait_for("go")

    @app.workflow
    async def waiter(run_id: str) -> str:
        try:
            return await app.handle(run_id).result(timeout="1h")
        except TimeoutError:
            return "late"
        except ChildFailed as error:
            return f"{error.error_type} {error.status}"

    async with engine(app) as e:
        target = await slow.start()
        handles = [await waiter.start(target.id) for _ in range(3)]
        await e.settle()
        await e.send(target, "go", "done")
        assert [(await e.finish(handle)).result for handle in handles] == ["done"] * 3
        assert (await e.run(waiter, target.id)).result == "done"  # it ended before
        other = await slow.start()
        assert (await e.run(waiter, other.id)).result == "late"
        await other.cancel(by="ann")
        assert (await e.run(waiter, other.id)).result == "redrive.errors.RunFailed CANCELLED"
        foreign = await slow.start(tenant="acme")
        assert (await e.run(waiter, foreign.id)).result.startswith("redrive.errors.NotFound")


async def test_children_are_cancelled_with_their_parent_unless_they_are_left() -> None:
    app = new_app()

    @app.workflow
    async def child() -> None:
        await redrive.wait_for("never")

    @app.workflow
    async def parent(how: str) -> None:
        if how == "wait":
            await child.run()
        left = asyncio.ensure_future(child.run(on_parent_end="leave" if how == "leave" else "cancel"))
        await redrive.sleep("10m")
        if how == "fail":
            raise ValueError("broken")
        left.cancel()

    async with engine(app) as e:

        async def find_child(run: str) -> RunStatus:
            (found,) = [each for each in (await app.runs.list()).items if each.parent == run]
            return found.status

        cancelled, ended, left, failed = [await parent.start(how) for how in ("wait", "end", "leave", "fail")]
        await e.settle()
        await cancelled.cancel(by="ann")
        await e.advance("1h")
        assert await find_child(cancelled.id) is RunStatus.CANCELLED
        assert await find_child(ended.id) is RunStatus.CANCELLED
        assert await find_child(left.id) is RunStatus.SLEEPING
        assert await find_child(failed.id) is RunStatus.SLEEPING  # the letter may be replayed
        (letter,) = await open_letters(app)
        await app.dlq.ignore(letter.id, by="ann")
        await e.advance("1h")
        assert await find_child(failed.id) is RunStatus.CANCELLED


async def test_misuse_is_refused_with_a_reason() -> None:
    app = new_app()

    @app.workflow
    async def child(level: int = 0) -> int:
        return level if level == 0 else await child.run(level - 1) + 1

    @app.workflow
    async def parent(what: str) -> Any:
        if what == "choice":
            return await child.run(on_letter="never")
        if what == "end":
            return await child.run(on_parent_end="maybe")
        if what == "tenant":
            return await child.run(tenant="acme")
        if what == "deep":
            return await child.run(60)
        return await app.handle(redrive.run_info().run_id).result()

    async with engine(app) as e:
        for what, text in {
            "choice": "on_letter is 'never': give one of wait, fail",
            "end": "on_parent_end is 'maybe'",
            "tenant": "leave tenant out",
            "self": "cannot wait for its own result",
        }.items():
            report = await e.run(parent, what)
            assert text in str(report.error), what
        with pytest.raises(InputError, match="on_parent_end is an option of child runs"):
            await child.start(on_parent_end="cancel")
        with pytest.raises(redrive.errors.RegistrationError):

            @app.workflow
            async def bad(on_letter: str) -> None: ...

        deep = await parent.start("deep")
        await e.settle()
        (letter,) = [each for each in await open_letters(app) if each.workflow == "child"]
        assert (letter.code, "at most 50 runs" in letter.reason) == ("policy_violation", True)
        assert await deep.status() is RunStatus.SLEEPING


def test_a_def_workflow_runs_a_child() -> None:
    app = new_app()

    @app.workflow
    async def child(x: int) -> int:
        return x + 1

    @app.workflow
    def parent(x: int) -> int:
        return child.run(x) + child.run(x)  # type: ignore[operator, return-value]

    async def check() -> None:
        async with engine(app) as e:
            assert (await e.run(parent, 1)).result == 4

    asyncio.run(check())


@pytest.mark.parametrize("way", ["limit", "block", "branch"])
async def test_a_wait_that_is_given_up_cancels_its_child_unless_another_branch_waits_for_it(way: str) -> None:
    app = new_app()

    @app.workflow
    async def child() -> None:
        await redrive.sleep(10_000)

    @app.workflow
    async def parent(shared: bool) -> str:
        handle = await child.start(on_parent_end="cancel")
        second = asyncio.create_task(handle.result()) if shared else None
        await redrive.sleep(1)
        if way == "branch":
            waiting = asyncio.create_task(handle.result())
            await redrive.sleep(10)
            waiting.cancel()
        else:
            with suppress(TimeoutError):
                if way == "limit":
                    await handle.result(timeout="10s")
                else:
                    async with redrive.timeout("10s"):
                        await handle.result()
        await redrive.sleep(10)
        if second is None:
            await redrive.sleep(100)
            return "given up"
        await second
        return "shared"

    async with engine(app) as e:
        alone, shared = await parent.start(False), await parent.start(True)
        await e.settle()
        await e.advance("30s")
        (child_of_alone,) = (await app.runs.list(redrive.RunFilter(parent=alone.id))).items
        (child_of_shared,) = (await app.runs.list(redrive.RunFilter(parent=shared.id))).items
        assert (child_of_alone.status, child_of_shared.status) == (RunStatus.CANCELLED, RunStatus.SLEEPING)
        assert await alone.status() is RunStatus.SLEEPING
        (line,) = [each for each in (await app.audit.list()).items if each.event == "run.cancelled"]
        assert (line.subject, line.by) == (child_of_alone.id, f"run:{alone.id}")
        assert [(await e.finish(each)).result for each in (alone, shared)] == ["given up", "shared"]


async def test_a_child_that_was_given_up_before_a_crash_is_cancelled_when_its_parent_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = new_app()

    @app.workflow
    async def child() -> None:
        await redrive.sleep(10_000)

    @app.workflow
    async def parent() -> None:
        with suppress(TimeoutError):
            async with redrive.timeout("10s"):
                await child.run()
        for _ in range(2):
            await redrive.sleep(100)

    async with engine(app) as e:
        with monkeypatch.context() as broken:
            broken.setattr(Waits, "_cancel_child", no_cancellation)
            handle = await parent.start()
            await e.settle()
            await e.advance("30s")
        (run,) = (await app.runs.list(redrive.RunFilter(parent=handle.id))).items
        assert run.status is RunStatus.SLEEPING
        await e.crash()
        await e.advance("2m")
        assert await app.handle(run.id).status() is RunStatus.CANCELLED
        assert await handle.status() is RunStatus.SLEEPING


async def no_cancellation(self: Waits, request: Any) -> None:
    """Stand in for the crash of a worker after it recorded that a wait was given up."""


async def test_children_inherit_the_priority_and_the_trace_of_their_parent() -> None:
    family = Family()
    family.broken = False
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with engine(family.app) as e:
        set_request_trace(trace)
        try:
            handle = await family.grandparent.start("A-1", priority=7)
        finally:
            set_request_trace(None)
        await e.finish(handle)
        runs = (await family.app.runs.list()).items
        details = [await family.app.runs.get(run.id) for run in runs]
        assert [run.priority for run in details] == [7, 7, 7]
        assert {run.trace_id for run in details} == {"0af7651916cd43dd8448eb211c80319c"}
