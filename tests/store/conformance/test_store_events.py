"""Conformance tests of events: sent once, kept until taken, and waits that no event can slip past."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from letter_kit import failed, reopens, restarts
from store_kit import DAY, SECOND, Kit, becomes, ends_in_letter, noted, writes

from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.core.transitions import EntryWrite, EventUse, RunWrite, StatusNoteWrite, Transition, WaitWrite
from redrive.errors import NotAllowed
from redrive.record_fields import replace
from redrive.store.chores import PurgeRequest
from redrive.store.claims import ClaimedRun
from redrive.store.events import NewEvent, SendResult
from redrive.store.filters import AuditFilter, RunFilter
from redrive.store.runs import RunRow


def event(run: ClaimedRun | RunRow, name: str = "approved", **more: Any) -> NewEvent:
    given: dict[str, Any] = {"payload": '{"by":"ann"}', "by": "ann", "most": 10_000, "most_bytes": 1_000_000}
    return NewEvent(run_id=run.public_id, tenant=run.tenant, name=name, **{**given, **more})


async def sent(kit: Kit, run: ClaimedRun | RunRow, name: str = "approved", **more: Any) -> SendResult:
    result = await kit.store.send(event(run, name, **more))
    assert result is not None
    return result


def wait_entry(index: int = 0, status: StepStatus = StepStatus.RUNNING, **more: Any) -> EntryWrite:
    return EntryWrite(index=index, key=f"/wait#{index}", kind=EntryKind.WAIT, name="wait", status=status, **more)


def waits(run: ClaimedRun | RunRow, *names: str, index: int = 0, limit: int | None = None, **more: Any) -> Transition:
    """Return a transition that begins a wait for events."""
    rows = tuple(WaitWrite(index=index, kind="event", subject=name) for name in names or ("approved",))
    return writes(run, wait_entry(index, wake_in=limit), waits=rows, **more)


def suspended(seen: int, wake_in: int | None = None) -> RunWrite:
    return RunWrite(status=RunStatus.SLEEPING, take=True, seen=seen, wake_in=wake_in)


async def test_events_are_numbered_and_kept_until_they_are_taken(kit: Kit) -> None:
    """An event may come before the run is claimed. Events are read in the order in which they were stored."""
    (id,) = await kit.start()
    run = await kit.store.run(id)
    assert run is not None
    results = [await sent(kit, run, name, payload=f'"{name}"', key=name) for name in ("a", "b", "c")]
    assert [(each.seq, each.status, each.woke, each.worker) for each in results] == [
        (number, RunStatus.PENDING, False, None) for number in (1, 2, 3)
    ]
    worker = await kit.worker()
    (claimed,) = (await kit.claim(worker)).runs
    box = await kit.store.mailbox(claimed.id)
    assert box is not None
    assert (box.wakeups, box.fence) == (3, claimed.fence)
    assert [(each.seq, each.name, each.payload, each.key, each.by, each.at) for each in box.events] == [
        (number, name, f'"{name}"', name, "ann", kit.clock.now()) for number, name in enumerate("abc", 1)
    ]
    uses = (EventUse(seq=2, index=0), EventUse(seq=3, index=0, refused="does not fit"))
    answered = writes(claimed, wait_entry(status=StepStatus.SUCCESS, done=0, output="1"), uses=uses, ended_waits=(0,))
    assert (await kit.store.apply([answered], worker=worker))[0].kept
    box = await kit.store.mailbox(claimed.id)
    assert box is not None
    assert [each.name for each in box.events] == ["a"]
    rows = await kit.store.events(claimed.id)
    assert [(each.name, each.taken, each.refused) for each in rows] == [
        ("a", None, None), ("b", 0, None), ("c", 0, "does not fit")
    ]  # fmt: skip
    assert [each.seq for each in await kit.store.events(claimed.id, after=1, most=1)] == [2]
    assert await kit.store.wakeups([claimed.id, 12345]) == {claimed.id: 3}
    assert await kit.store.mailbox(12345) is None


async def test_a_key_is_one_event_and_the_first_one_is_returned(kit: Kit) -> None:
    _, run = await kit.held()
    first = await sent(kit, run, key="k", payload='"one"')
    again = await sent(kit, run, key="k", payload='"two"')
    assert (first.seq, first.first) == (1, None)
    assert again.seq is None
    assert again.first is not None
    assert (again.first.seq, again.first.payload, again.first.name) == (1, '"one"', "approved")
    assert (await sent(kit, run)).seq == 2
    assert (await sent(kit, run)).seq == 3
    assert len(await kit.store.events(run.id)) == 3


async def test_many_senders_of_one_key_store_one_event(kit: Kit) -> None:
    _, run = await kit.held()
    results = await asyncio.gather(*(sent(kit, run, key="click") for _ in range(20)))
    assert sorted(each.seq or each.first.seq for each in results if each.seq or each.first) == [1] * 20
    assert sum(each.seq is not None for each in results) == 1
    others = await asyncio.gather(*(sent(kit, run) for _ in range(20)))
    assert sorted(each.seq or 0 for each in others) == list(range(2, 22))


async def test_a_run_takes_events_while_its_code_may_ask_for_them(kit: Kit) -> None:
    refusing = {RunStatus.SUCCESS, RunStatus.CANCELLED, RunStatus.COMPENSATED, RunStatus.COMPENSATING}
    for status in (*refusing, RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.PARTIAL):
        worker, run = await kit.held()
        takes = status not in refusing
        wake_in = DAY if status is RunStatus.COMPENSATING else None
        await kit.store.apply([becomes(run, status, take=True, wake_in=wake_in)], worker=worker)
        result = await sent(kit, run)
        assert (result.seq == 1, result.status, result.woke) == (takes, status, False)
        assert len(await kit.store.events(run.id)) == takes


async def test_a_run_with_too_many_unread_events_takes_no_more(kit: Kit) -> None:
    worker, run = await kit.held()
    for _ in range(3):
        assert (await sent(kit, run, most=3, key=kit.clock.new_id())).seq
    full = await sent(kit, run, most=3)
    assert (full.seq, full.full) == (None, True)
    use = writes(run, uses=(EventUse(seq=1, index=0),))
    await kit.store.apply([use], worker=worker)
    assert (await sent(kit, run, most=3)).seq == 4


async def test_unread_events_of_a_run_are_limited_in_bytes(kit: Kit) -> None:
    """A single event may be larger than the limit: it has passed the limit of payloads."""
    worker, run = await kit.held()
    text = f'"{"ż" * 600}"'
    assert (await sent(kit, run, payload=text, most_bytes=1000)).seq == 1
    full = await sent(kit, run, payload='"b"', most_bytes=1000)
    assert (full.seq, full.full) == (None, True)
    await kit.store.apply([writes(run, uses=(EventUse(seq=1, index=0),))], worker=worker)
    assert (await sent(kit, run, payload='"b"', most_bytes=1000)).seq == 2
    full = await sent(kit, run, payload=text, most_bytes=1000)
    assert (full.seq, full.full) == (None, True), "the new event counts too"
    assert (await sent(kit, run, payload='"c"', most_bytes=1000)).seq == 3
    await kit.fail(worker, run)
    assert (await kit.store.apply([restarts(await kit.look(run), kit.new())]))[0].kept
    full = await sent(kit, run, payload='"d"', most_bytes=1000)
    assert (full.seq, full.full) == (None, True), "copies of events count"


async def test_an_event_makes_a_run_due_that_waits_for_it(kit: Kit) -> None:
    """An event wakes only a run that waits for its name, and takes nothing from a worker that holds the run."""
    worker, run = await kit.held()
    await kit.store.apply([waits(run, "approved", "withdrawn", change=suspended(0))], worker=worker)
    assert (await kit.look(run)).available_at is None
    assert (await sent(kit, run, "note")).woke is False
    assert (await kit.claim(worker)).runs == []
    kit.clock.move(SECOND)
    result = await sent(kit, run, "withdrawn")
    assert (result.woke, (await kit.look(run)).available_at) == (True, kit.clock.now())
    (again,) = (await kit.claim(worker)).runs
    held = await sent(kit, run)
    assert (again.id, held.woke, held.worker) == (run.id, False, worker)
    found = await kit.look(run)
    assert (found.status, found.worker, found.available_at) == (RunStatus.RUNNING, worker, None)


@pytest.mark.parametrize(("seen", "due"), [(0, True), (1, False)])
@pytest.mark.parametrize("wake_in", [None, DAY])
async def test_a_run_that_is_suspended_after_an_unseen_event_is_due_at_once(
    kit: Kit, seen: int, due: bool, wake_in: int | None
) -> None:
    worker, run = await kit.held()
    await sent(kit, run)
    await kit.store.apply([waits(run, change=suspended(seen, wake_in))], worker=worker)
    now, found = kit.clock.now(), await kit.look(run)
    assert found.available_at == (now if due else None if wake_in is None else now + wake_in)
    assert bool((await kit.claim(worker)).runs) is due


async def test_a_wait_expires_only_at_its_limit_and_without_an_unseen_event(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([waits(run, limit=10 * SECOND)], worker=worker)
    expired = writes(run, wait_entry(status=StepStatus.FAILED, done=0, failure="{}"), expires=(0, 0), ended_waits=(0,))

    async def try_expiry(seen: int) -> bool:
        (result,) = await kit.store.apply([replace(expired, expires=(0, seen))], worker=worker)
        return result.kept

    assert not await try_expiry(0)  # too early
    kit.clock.move(10 * SECOND - 1)
    assert not await try_expiry(0)
    await sent(kit, run)
    kit.clock.move(1)
    assert not await try_expiry(0)  # an event came that the worker has not seen
    assert [each.status for each in await kit.store.journal(run.id)] == [StepStatus.RUNNING]
    other = writes(run, wait_entry(1, StepStatus.SUCCESS, done=1))
    results = await kit.store.apply([replace(expired, expires=(0, 0)), other], worker=worker)
    assert [each.kept for each in results] == [False, True]  # others of the batch are written
    assert await try_expiry(1)
    assert [each.status for each in await kit.store.journal(run.id)] == [StepStatus.FAILED, StepStatus.SUCCESS]
    before = await kit.store.journal(run.id)
    assert await try_expiry(1)  # sent again because the reply was lost: nothing changes
    assert await kit.store.journal(run.id) == before
    assert not (await kit.store.apply([replace(expired, fence=run.fence - 1, expires=(0, 1))], worker=worker))[0].kept


async def test_runs_are_listed_by_the_event_that_they_wait_for(kit: Kit) -> None:
    """A wait that is over, cancelled from outside, superseded, or of an ended run is not listed."""
    worker = await kit.worker()
    await kit.start(6)
    runs = (await kit.claim(worker)).runs
    await kit.store.apply([waits(run, "paid", change=suspended(0)) for run in runs[:5]], worker=worker)
    await kit.store.apply([waits(runs[5], "other", change=suspended(0))], worker=worker)

    async def waiting(**more: Any) -> list[int]:
        page = await kit.store.runs(RunFilter(waits_for="paid", **more), limit=50, cursor=None)
        return sorted(run.id for run in page.items)

    ids = [run.id for run in runs]
    assert await waiting() == ids[:5] == await waiting(status="SLEEPING", tenant="default")
    assert await waiting(status="SUCCESS") == [] == await waiting(tenant="other")
    rows = [await kit.look(run) for run in runs]
    answered = writes(rows[0], wait_entry(status=StepStatus.SUCCESS, done=0), ended_waits=(0,))
    cancelled = replace(becomes(rows[1], RunStatus.CANCELLED, take=True), closes=True)
    await kit.store.apply([answered, cancelled, ends_in_letter(rows[2])])
    assert await waiting() == ids[3:5]
    again = await kit.look(rows[2])
    await kit.store.apply([reopens(again, supersedes=(0,))])
    assert await waiting() == ids[3:5]
    summaries = await kit.store.run_summaries(RunFilter(waits_for="paid"), most=10)
    assert sorted(each.id for each in summaries) == ids[3:5]


async def test_an_event_of_a_superseded_entry_is_unread_again(kit: Kit) -> None:
    worker, run = await kit.held()
    await sent(kit, run, "a")
    await sent(kit, run, "b")
    await sent(kit, run, "c")
    uses = (EventUse(seq=1, index=0), EventUse(seq=2, index=1), EventUse(seq=3, index=1, refused="no"))
    await kit.store.apply([writes(run, wait_entry(0), wait_entry(1), uses=uses)], worker=worker)
    await kit.fail(worker, run)
    await kit.store.apply([reopens(await kit.look(run), supersedes=(1,))])
    box = await kit.store.mailbox(run.id)
    assert box is not None
    assert [(each.name, each.refused) for each in box.events] == [("b", None), ("c", None)]


async def test_a_full_replay_copies_the_events_and_gets_the_later_ones(kit: Kit) -> None:
    _worker, run = await failed(kit)
    await sent(kit, run, "a", key="k")
    await kit.store.apply([writes(run, uses=(EventUse(seq=1, index=0),))])
    await sent(kit, run, "b")
    new = kit.new()
    assert (await kit.store.apply([restarts(await kit.look(run), new)]))[0].kept
    fresh = await kit.store.run(new.public_id)
    assert fresh is not None
    box = await kit.store.mailbox(fresh.id)
    assert box is not None
    assert box.wakeups == 2
    assert [(each.seq, each.name, each.key, each.taken) for each in box.events] == [
        (1, "a", "k", None), (2, "b", None, None)
    ]  # fmt: skip
    later = await sent(kit, run, "c")
    assert (later.run, later.run_id, later.seq) == (fresh.id, new.public_id, 3)
    repeat = await sent(kit, run, "a", key="k")
    assert repeat.run == fresh.id
    assert repeat.first is not None
    assert len(await kit.store.events(run.id)) == 2


async def test_the_status_that_code_sets_is_the_latest_one(kit: Kit) -> None:
    worker, run = await kit.held()
    assert await kit.store.status_note(run.id) is None
    notes = [StatusNoteWrite(text="packing", progress=0.25, data='{"box":1}'), StatusNoteWrite(text="sent")]
    for note in notes:
        await kit.store.apply([writes(run, note=note)], worker=worker)
        kit.clock.move(SECOND)
    found = await kit.store.status_note(run.id)
    assert found is not None
    assert (found.text, found.progress, found.data, found.at) == ("sent", None, None, kit.clock.now() - SECOND)
    both = [writes(run, note=notes[1]), writes(run, note=notes[0])]
    await kit.store.apply(both, worker=worker)
    found = await kit.store.status_note(run.id)
    assert found is not None
    assert (found.text, found.progress, found.data) == ("packing", 0.25, '{"box":1}')
    lost = replace(writes(run, note=notes[1]), fence=run.fence + 7)
    assert not (await kit.store.apply([lost], worker=worker))[0].kept
    assert (await kit.store.status_note(run.id)) == found


async def test_an_event_is_audited_with_its_run(kit: Kit) -> None:
    _, run = await kit.held()
    line = noted("event.sent", subject="?", tenant=run.tenant, after='{"event":"approved"}', token="t1")
    await sent(kit, run, audit=line, key="k")
    await sent(kit, run, audit=line, key="k")
    page = await kit.store.audit(AuditFilter(subject=run.public_id), limit=10, cursor=None)
    assert [(row.event, row.by, row.after) for row in page.items] == [("event.sent", "ann", '{"event":"approved"}')]


async def test_another_tenant_neither_sends_nor_sees_events(kit: Kit) -> None:
    worker, run = await kit.held(tenant="acme")
    await sent(kit, run)
    await kit.store.apply([writes(run, note=StatusNoteWrite(text="packing"))], worker=worker)
    own, other = kit.store.tenant_view("acme"), kit.store.tenant_view("other")
    assert await other.send(replace(event(run), tenant="other")) is None
    with pytest.raises(NotAllowed):
        await other.send(event(run))
    assert await kit.store.send(replace(event(run), tenant="other")) is None
    assert await other.events(run.id) == []
    assert await other.status_note(run.id) is None
    assert await own.events(run.id) == []
    assert await own.status_note(run.id) is None
    limited = kit.store.tenant_view("acme", frozenset({"another"}))
    assert await limited.send(event(run)) is None
    result = await own.send(event(run))
    assert result is not None
    assert result.seq == 2
    assert [each.seq for each in await own.events(run.id)] == [1, 2]
    note = await own.status_note(run.id)
    assert note is not None
    assert note.text == "packing"


async def test_a_purge_removes_events_waits_and_statuses(kit: Kit) -> None:
    worker, run = await kit.held()
    await sent(kit, run)
    await kit.store.apply([waits(run, note=StatusNoteWrite(text="packing"))], worker=worker)
    await kit.store.apply([becomes(run, RunStatus.SUCCESS, take=True, output="1")], worker=worker)
    kit.clock.move(30 * DAY)
    await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=100))
    assert await kit.store.run(run.public_id) is None
    assert await kit.store.events(run.id) == []
    assert await kit.store.status_note(run.id) is None
    assert await kit.store.send(event(run)) is None
