"""Waits for events, in virtual time: early, late, several at once, over crashes and replays."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import redrive
import redrive.errors
from redrive import Redrive, RunFilter
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.desk.models import EventStatus
from redrive.errors import Conflict, InputError, MisusedStep, NotFound, TooManyEvents
from redrive.testing import engine
from redrive.worker.status_note import make_status_note

DAY = 86_400_000_000


@dataclass
class Approval:
    by: str
    limit: int = 0


def new_app(**options: Any) -> Redrive:
    return Redrive("sqlite:///:memory:", **options)


async def test_an_event_that_came_early_is_returned_at_once() -> None:
    app = new_app()

    @app.step
    async def work() -> None: ...

    @app.workflow
    async def order() -> str:
        await work()
        return str(await redrive.wait_for("approved"))

    async with engine(app) as e:
        handle = await order.start(delay="1h")
        assert (await handle.send("approved", "ann")).seq == 1
        report = await e.finish(handle)
        assert report.result == "ann"
        assert report.step("redrive.wait_for approved").kind is EntryKind.WAIT
        (event,) = await app.runs.events(handle.id)
        assert (event.status, event.step, event.payload, event.by) == (EventStatus.TAKEN, 1, "ann", "unknown")


async def test_a_run_waits_in_memory_and_later_in_the_store() -> None:
    """A waiting run is held for a while, then released. In both cases an event continues it at once."""
    app = new_app()

    @app.workflow
    async def order() -> list[str]:
        return [await redrive.wait_for("a"), await redrive.wait_for("b")]

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        assert await handle.status() is RunStatus.SLEEPING
        (held,) = e.worker.executions
        await e.send(handle, "a", "1")
        assert e.worker.executions == [held]
        await e.advance("1m")
        assert e.worker.executions == []
        row = await e.store.run(handle.id)
        assert row is not None
        assert (row.status, row.worker, row.available_at) == (RunStatus.SLEEPING, None, None)
        assert [run.id for run in (await app.runs.list(RunFilter(waits_for="b"))).items] == [handle.id]
        assert (await app.runs.list(RunFilter(waits_for="a"))).items == []
        await e.send(handle, "b", "2")
        assert await handle.result() == ["1", "2"]
        assert (await app.runs.list(RunFilter(waits_for="b"))).items == []


@pytest.mark.parametrize(("offset", "wins"), [(-1, True), (0, True), (1, False)])
@pytest.mark.parametrize("held", [True, False])
async def test_the_time_of_the_event_decides_not_the_time_of_the_look(offset: int, wins: bool, held: bool) -> None:
    """A late look finds the event or not by when it came. An event that came too late stays for the next wait."""
    app = new_app(hold="30d" if held else "0s")

    @app.workflow
    async def order() -> Any:
        first = await redrive.wait_for("approved", timeout="3d", default="too late")
        return [first, await redrive.wait_for("approved", default=None, timeout="1h")]

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        began = e.clock.now()
        e.clock.move_to(began + 3 * DAY + offset)  # nothing looks meanwhile
        await app.runs.send(handle.id, "approved", "ann")
        e.clock.move_to(began + 4 * DAY)
        report = await e.finish(handle)
        assert report.result == (["ann", None] if wins else ["too late", "ann"])


async def test_a_wait_ends_at_exactly_its_limit() -> None:
    app = new_app()

    @app.workflow
    async def order() -> str:
        try:
            await redrive.wait_for("approved", timeout="3d")
        except TimeoutError as error:
            return f"{type(error).__name__}: {error}"
        return "came"

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        await e.advance(timedelta(days=3) - timedelta(microseconds=1))
        assert await handle.status() is RunStatus.SLEEPING
        await e.advance(timedelta(microseconds=1))
        assert await handle.result() == "WaitExpired: redrive.wait_for approved got no answer within 3 d"
        wait = (await handle.describe()).steps[0]
        assert wait.ended_at is not None
        assert (wait.status, wait.ended_at - wait.began_at) == (StepStatus.FAILED, timedelta(days=3))


async def test_a_wait_that_expires_and_is_not_caught_is_a_dead_letter_that_can_be_replayed() -> None:
    """A replay waits again with a fresh limit; a user may also give the answer, which is checked by its type."""
    app = new_app()

    @app.workflow(events={"approved": Approval})
    async def order() -> str:
        approval = await redrive.wait_for("approved", timeout="1d")
        return f"{approval.by} {approval.limit}"

    async with engine(app) as e:
        reports = [await e.run(order) for _ in range(4)]
        letters = [report.letter for report in reports]
        for letter in letters:
            assert letter is not None
            assert (letter.code, letter.category, letter.step) == ("timeout", "timeout", "redrive.wait_for approved")
        first, second, third, fourth = (letter.id for letter in letters if letter is not None)
        await app.dlq.replay(first, by="ann")
        await e.advance("23h")
        await e.send(reports[0].id, "approved", {"by": "bob", "limit": 7})
        assert (await e.finish(app.handle(reports[0].id))).result == "bob 7"
        with pytest.raises(InputError):
            await app.dlq.replay(second, "SKIP", output={"limit": "many"}, by="ann")
        await app.dlq.replay(second, "SKIP", output={"by": "cid", "limit": 1}, by="ann")
        assert (await e.finish(app.handle(reports[1].id))).result == "cid 1"
        await app.dlq.complete(third, {"by": "dan"}, by="ann")
        assert (await e.finish(app.handle(reports[2].id))).result == "dan 0"
        await app.dlq.replay(fourth, "STEP_ONLY", by="ann")
        await e.send(reports[3].id, "approved", Approval("eve"))
        assert await app.handle(reports[3].id).status() in (RunStatus.SUCCESS, RunStatus.PARTIAL)


async def test_the_first_of_several_names_wins_and_many_are_collected() -> None:
    app = new_app()

    @app.workflow
    async def order() -> list[Any]:
        first = await redrive.wait_for_any("paid", "withdrawn", timeout="1h")
        notes = await redrive.receive("note", upto=3, within="5s")
        more = await redrive.receive("note", upto=3, within="5s")
        return [first.name, first.payload, first.by, notes, more]

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        for text in "ab":
            await e.send(handle, "note", text)
            await e.advance("2s")
        await e.send(handle, "withdrawn", {"why": "late"}, by="ann")
        await e.send(handle, "paid")
        await e.advance("2s")
        for text in "cde":
            await e.send(handle, "note", text)
            await e.advance("1s")
        report = await e.finish(handle)
        assert report.result == ["withdrawn", {"why": "late"}, "ann", ["a", "b"], ["c", "d", "e"]]
        unread = [event.payload for event in await app.runs.events(handle.id) if event.status is EventStatus.UNREAD]
        assert unread == [None]


async def test_branches_that_wait_for_one_name_are_served_in_order() -> None:
    app = new_app()

    @app.workflow
    async def order() -> list[Any]:
        return await asyncio.gather(*(redrive.wait_for("ticket") for _ in range(3)), redrive.wait_for("other"))

    for hold in ("5s", "0s"):
        app = new_app(hold=hold)
        app.workflow(order.fn)
        started = app.registered_workflows["order"]
        async with engine(app) as e:
            handle = await started.start()
            await e.settle()
            for number in range(3):
                await e.send(handle, "ticket", number)
                await e.advance("10s")
            await e.send(handle, "other", "x")
            assert await handle.result() == [0, 1, 2, "x"]


async def test_a_wait_that_is_given_up_leaves_its_event_unread() -> None:
    app = new_app()

    @app.workflow
    async def order() -> Any:
        try:
            async with redrive.timeout("1h"):
                await redrive.wait_for("approved")
        except TimeoutError:
            pass
        waits = [asyncio.ensure_future(redrive.wait_for(name)) for name in ("a", "b")]
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await redrive.sleep("1h")
        return [done.pop().result(), await redrive.wait_for("a"), await redrive.wait_for("approved")]

    async with engine(app) as e:
        handle = await order.start()
        await e.advance("2h")
        await e.send(handle, "b", "B")
        assert (await app.runs.list(RunFilter(waits_for="a"))).items == []
        await e.send(handle, "a", "A")
        await e.send(handle, "approved", "ann")
        await e.crash()
        assert (await e.finish(handle)).result == ["B", "A", "ann"]


async def test_an_event_that_does_not_fit_is_set_aside_and_the_wait_continues() -> None:
    app = new_app()

    @app.workflow
    async def order() -> Any:
        return (await redrive.wait_for("approved", type=Approval)).by

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        await e.send(handle, "approved", {"limit": "many"})
        await e.send(handle, "approved", "nonsense")
        assert await handle.status() is RunStatus.SLEEPING
        await e.send(handle, "approved", Approval("ann"))
        assert await handle.result() == "ann"
        events = await app.runs.events(handle.id)
        assert [event.status for event in events] == [EventStatus.SET_ASIDE, EventStatus.SET_ASIDE, EventStatus.TAKEN]
        assert all(event.reason for event in events[:2])


async def test_declared_events_are_checked_when_they_are_sent() -> None:
    app = new_app()

    @app.workflow(events={"approved": Approval, "note": str})
    async def order() -> Any:
        return (await redrive.wait_for("approved")).limit

    @app.workflow(events={})
    async def closed() -> Any:
        return await redrive.wait_for("approved")

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        for name, payload in (("approved", {"limit": 3}), ("approved", 7), ("note", 7), ("other", 1)):
            with pytest.raises(InputError):
                await handle.send(name, payload)
        assert await app.runs.events(handle.id) == ()
        await e.send(handle, "approved", Approval("ann", 9))
        assert await handle.result() == 9
        report = await e.run(closed)
        assert report.letter is not None
        assert "has no event" in str(report.error)


async def test_a_key_is_one_event_and_another_payload_is_a_conflict() -> None:
    app = new_app()

    @app.workflow
    async def order() -> Any:
        return [await redrive.wait_for("a"), await redrive.wait_for("a", timeout="1h", default="one")]

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        answers = await asyncio.gather(*(handle.send("a", {"x": 1, "y": 2}, key="click") for _ in range(100)))
        assert set(answers) == {answers[0]}
        with pytest.raises(Conflict):
            await handle.send("a", {"x": 2}, key="click")
        with pytest.raises(Conflict):
            await handle.send("b", {"x": 1, "y": 2}, key="click")
        for other in (True, 1.0):  # equal to 1 in Python, not in JSON
            with pytest.raises(Conflict):
                await handle.send("a", {"x": other, "y": 2}, key="click")
        assert (await e.finish(handle)).result == [{"x": 1, "y": 2}, "one"]
        assert (await handle.send("a", {"y": 2, "x": 1}, key="click")).seq == 1  # also after its end
        with pytest.raises(Conflict, match="takes no more events"):
            await handle.send("a", 1)


async def test_runs_send_events_to_each_other_once() -> None:
    """Workflow code records what it sent; a step sends under its own key, so that its repeats are the same event."""
    app = new_app()
    tries = 0

    @app.workflow
    async def receiver() -> Any:
        return await redrive.receive("ping", upto=10, within="1h")

    @app.step
    async def notify(run: str) -> None:
        nonlocal tries
        tries += 1
        await app.runs.send(run, "ping", "from the step")
        if tries < 3:
            raise ConnectionError

    @app.workflow
    async def sender(run: str) -> Any:
        sent = await app.handle(run).send("ping", "from the workflow")
        with pytest.raises(InputError, match="same tenant, 'default'"):
            await app.runs.send(run, "ping", "elsewhere", tenant="acme")
        await app.runs.send(run, "ping", "in her name", by="ann", tenant="default")
        await notify(run)
        await redrive.sleep("1m")
        return sent.seq

    async with engine(app) as e:
        target = await receiver.start()
        handle = await sender.start(target.id)
        await e.settle()
        await e.crash()
        assert (await e.finish(handle)).result == 1
        assert tries == 3
        assert sorted((await e.finish(target)).result) == ["from the step", "from the workflow", "in her name"]
        own = f"run:{handle.id}"
        assert [event.by for event in await app.runs.events(target.id)] == [own, "ann", own]


async def test_a_run_that_ends_takes_its_waits_with_it() -> None:
    """Cancelling, the deadline and a rollback end a wait. Later events are refused, or kept where a replay may ask."""
    app = new_app()
    undone: list[str] = []

    @app.step
    async def book() -> str:
        return "seat"

    @book.compensate
    async def unbook(result: str) -> None:
        undone.append(result)

    @app.workflow(rollback=True)
    async def trip() -> None:
        await book()
        await redrive.wait_for("paid")

    @app.workflow(timeout="1h")
    async def plain() -> Any:
        return await redrive.wait_for("paid")

    async with engine(app) as e:
        cancelled, late = await trip.start(), await plain.start()
        await e.advance("10m")
        await cancelled.cancel(by="ann")
        await e.settle()
        assert (await cancelled.status(), undone) == (RunStatus.CANCELLED, ["seat"])
        assert [step.status for step in (await cancelled.describe()).steps][1] is StepStatus.CANCELLED
        with pytest.raises(Conflict):
            await cancelled.send("paid")
        assert (await app.runs.list(RunFilter(waits_for="paid"))).items != []
        await e.advance("1h")
        assert await late.status() is RunStatus.TIMED_OUT
        assert (await app.runs.list(RunFilter(waits_for="paid"))).items == []
        assert (await late.send("paid", 5)).status is RunStatus.TIMED_OUT  # kept for a replay
        letter = (await late.describe()).letter_id
        assert letter is not None
        await app.dlq.replay(letter, by="ann")
        assert (await e.finish(late)).result == 5


async def test_replays_return_or_copy_the_events_of_entries_that_do_not_stand() -> None:
    app = new_app()
    fails = True

    @app.step
    async def ship() -> None:
        if fails:
            raise redrive.NonRetryable("closed")

    @app.workflow
    async def order() -> Any:
        first = await redrive.wait_for("approved")
        await ship()
        return first

    async with engine(app) as e:
        runs = []
        for _ in range(3):
            handle = await order.start()
            await e.settle()
            await e.send(handle, "approved", "ann", key="k")
            runs.append((handle, (await e.finish(handle)).letter))
        fails = False
        letters = [letter.id for _, letter in runs if letter is not None]
        await app.dlq.replay(letters[0], by="ann")
        assert (await e.finish(runs[0][0])).result == "ann"  # the answer is kept
        await app.dlq.replay(letters[1], "FROM_STEP", from_step=0, by="ann")
        assert (await e.finish(runs[1][0])).result == "ann"  # its event is there again
        new = await app.dlq.replay(letters[2], "FULL", by="ann")
        assert (await e.finish(app.handle(new.run_id))).result == "ann"
        assert (await runs[2][0].send("approved", "ann", key="k")).run_id == new.run_id


@pytest.mark.parametrize(("limit", "most"), [("MAX_UNREAD", 3), ("MAX_UNREAD_BYTES", 3)])
async def test_too_many_unread_events_are_refused(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(f"redrive.desk.event_sender.{limit}", most)
    app = new_app()

    @app.workflow
    async def order() -> Any:
        await redrive.sleep("1h")
        return await redrive.receive("note", upto=10)

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        for number in range(3):
            await handle.send("note", number)
        with pytest.raises(TooManyEvents, match=r"have reached a limit .* send more when"):
            await handle.send("note", 4)
        assert (await e.finish(handle)).result == [0, 1, 2]


async def test_misuse_is_refused_with_a_reason() -> None:
    app = new_app()

    @app.step
    async def wrong() -> None:
        await redrive.wait_for("approved")

    @app.workflow
    async def order(what: str) -> Any:
        if what == "step":
            await wrong()
        elif what == "name":
            await redrive.wait_for("a/b")
        elif what == "names":
            await redrive.wait_for_any()
        else:
            await redrive.receive("a", upto=0)

    with pytest.raises(MisusedStep, match="only inside a run"):
        await redrive.wait_for("approved")
    redrive.set_status("outside a run nothing happens")
    async with engine(app) as e:
        for what in ("step", "name", "names", "upto"):
            report = await e.run(order, what)
            assert report.status == "DLQ_PENDING"
        with pytest.raises(NotFound):
            await app.runs.send("nothing", "approved")
        handle = await order.start("upto", delay="1h")
        for name in ("", "a/b", "a#b", "x" * 201, "a\nb", " ", " a", "a ", "\ud800", "a\ufffd"):
            with pytest.raises(InputError, match="cannot name an event"):
                await handle.send(name)
        assert await app.runs.events(handle.id, after=2**70) == ()
    for given in ([1], {"a/b": str}, {"a": object()}):
        with pytest.raises(redrive.errors.RegistrationError):
            app.workflow(name="bad", events=given)(order.fn)  # type: ignore[arg-type]


def test_a_def_workflow_waits_for_events() -> None:
    app = new_app()

    @app.workflow
    def order() -> Any:
        redrive.set_status("waiting")
        return redrive.wait_for("approved", timeout="1h", default="nothing")

    async def check() -> None:
        async with engine(app) as e:
            handle = await order.start()
            await e.settle()
            await e.send(handle, "approved", "ann")
            assert await handle.result() == "ann"
            assert (await e.run(order)).result == "nothing"

    asyncio.run(check())


async def test_the_status_that_code_sets_is_readable_while_the_run_goes_on() -> None:
    app = new_app()

    @app.step
    async def pack() -> None:
        redrive.set_status("packing\0", progress=0.5, box=3)

    @app.workflow
    async def order() -> None:
        redrive.set_status("checking")
        await redrive.wait_for("paid")
        await pack()
        redrive.set_status("sent", progress=1)

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        note = (await handle.describe()).note
        assert note is not None
        assert (note.text, note.progress, note.data) == ("checking", None, None)
        await e.crash()
        await e.send(handle, "paid")
        report = await e.finish(handle)
        note = report.described.note
        assert note is not None
        assert (note.text, note.progress, note.data) == ("sent", 1.0, None)
        assert make_status_note("a\0b", None, {}).text == "a\\x00b", "any store holds it"
        for bad in ({"text": ""}, {"text": "x", "progress": 2}, {"text": "x", "box": object()}):
            with pytest.raises(InputError):
                redrive.set_status(**bad)  # type: ignore[arg-type]
