"""Conformance tests of schedules: their progress, the workers that keep them, and their pauses."""

from __future__ import annotations

import pytest
from store_kit import HOUR, LEASE, SECOND, Kit, noted

from redrive.errors import NotAllowed
from redrive.record_fields import replace
from redrive.store.filters import AuditFilter
from redrive.store.settings import NewSchedule, ScheduleProgress, ScheduleRow

DAILY = NewSchedule(tenant="default", workflow="w", name="daily", expression="0 6 * * *", zone="UTC")
KEY = DAILY.key
OTHERS = replace(DAILY, tenant="other")
LATER = replace(DAILY, expression="0 7 * * *")


async def keep(kit: Kit, worker: int, schedule: NewSchedule = DAILY) -> ScheduleRow:
    (row,) = await kit.store.schedules.keep([schedule], worker=worker)
    return row


async def test_a_schedule_begins_when_it_is_first_kept(kit: Kit) -> None:
    worker, began = await kit.worker(), kit.clock.now()
    first = await keep(kit, worker)
    assert (first.key, first.expression, first.zone) == (KEY, "0 6 * * *", "UTC")
    assert (first.passed, first.last_run, first.paused_at, first.kept) == (began, None, None, True)
    kit.clock.move(SECOND)
    rows = await kit.store.schedules.keep([OTHERS, DAILY], worker=worker)
    assert [row.key for row in rows] == [OTHERS.key, KEY]
    assert [row.passed for row in rows] == [began + SECOND, began]


async def test_a_schedule_advances_once_and_only_forwards(kit: Kit) -> None:
    worker, now = await kit.worker(), kit.clock.now()
    await kit.store.schedules.keep([DAILY, OTHERS], worker=worker)
    first = ScheduleProgress(schedule=DAILY, at=now + HOUR, run="r1")
    other = ScheduleProgress(schedule=OTHERS, at=now + HOUR, run=None)
    assert await kit.store.schedules.record_progress([other, first]) == [True, True]
    assert await kit.store.schedules.record_progress([first, other]) == [False, False]
    assert await kit.store.schedules.record_progress([replace(first, at=now + 1, run="r0")]) == [False]
    assert await kit.store.schedules.record_progress([replace(first, at=now + 2 * HOUR, run=None)]) == [True]
    row = await keep(kit, worker)
    assert (row.passed, row.last_at, row.last_run) == (now + 2 * HOUR, now + HOUR, "r1")


async def test_a_new_expression_applies_when_the_old_worker_is_gone(kit: Kit) -> None:
    old, new, began = await kit.worker(), await kit.worker(), kit.clock.now()
    await keep(kit, old)
    kit.clock.move(SECOND)
    assert (await keep(kit, new, LATER)).expression == DAILY.expression
    await kit.store.retire(old)
    changed = await keep(kit, new, LATER)
    assert (changed.expression, changed.passed) == (LATER.expression, began + SECOND)
    stale = ScheduleProgress(schedule=DAILY, at=began + HOUR, run="r1")
    assert await kit.store.schedules.record_progress([stale]) == [False]
    assert (await keep(kit, old)).expression == LATER.expression


async def test_an_unchanged_schedule_continues_where_it_was(kit: Kit) -> None:
    old, began = await kit.worker(), kit.clock.now()
    await keep(kit, old)
    kit.clock.move(LEASE + HOUR)
    assert [row.kept for row in await kit.store.schedules.known()] == [False]
    row = await keep(kit, await kit.worker())
    assert (row.passed, row.kept) == (began, True)


async def test_a_run_is_requested_once_and_by_its_own_tenant_only(kit: Kit) -> None:
    schedules, worker = kit.store.schedules, await kit.worker()
    await schedules.keep([DAILY, OTHERS], worker=worker)
    asked = noted("schedule.requested")
    with pytest.raises(NotAllowed):
        await kit.store.tenant_view("other").schedules.request(KEY, asked)
    assert await kit.store.tenant_view("default").schedules.request(KEY, asked)
    assert not await schedules.request(KEY, asked), "the first request counts"
    (row,) = await schedules.requested()
    assert (row.key, row.requested_at) == (KEY, kit.clock.now())
    answer = ScheduleProgress(schedule=DAILY, at=kit.clock.now(), run="r1")
    assert await schedules.record_progress([replace(answer, at=1)], requested=True) == [False]
    assert await schedules.record_progress([answer], requested=True) == [True]
    assert await schedules.record_progress([answer], requested=True) == [False]
    row = await keep(kit, worker)
    assert (row.requested_at, row.last_at, row.last_run, row.passed) == (None, kit.clock.now(), "r1", kit.clock.now())
    lines = (await kit.store.audit(AuditFilter(event="schedule.requested"), limit=9, cursor=None)).items
    assert len(lines) == 1
    await kit.store.retire(worker)
    assert not await schedules.request(KEY, asked), "no live worker could start it"


async def test_a_pause_is_recorded_once_and_occurrences_during_it_are_skipped(kit: Kit) -> None:
    schedules, worker = kit.store.schedules, await kit.worker()
    await keep(kit, worker)
    assert await schedules.pause(KEY, noted("schedule.paused"))
    assert not await schedules.pause(KEY, noted("schedule.paused", by="bob"))
    assert not await schedules.pause(OTHERS.key, noted("schedule.paused"))
    row = await keep(kit, worker)
    assert (row.paused_at, row.paused_by) == (kit.clock.now(), "ann")
    kit.clock.move(HOUR)
    assert await schedules.resume(KEY, noted("schedule.resumed"))
    assert not await schedules.resume(KEY, noted("schedule.resumed"))
    row = await keep(kit, worker)
    assert (row.paused_at, row.paused_by, row.passed) == (None, None, kit.clock.now())
    page = await kit.store.audit(AuditFilter(), limit=10, cursor=None)
    assert [(line.event, line.by) for line in page.items] == [("schedule.resumed", "ann"), ("schedule.paused", "ann")]


async def test_only_schedules_without_a_live_worker_are_removed(kit: Kit) -> None:
    schedules, worker = kit.store.schedules, await kit.worker()
    await keep(kit, worker)
    assert not await schedules.remove(KEY, noted("schedule.removed"))
    await kit.store.retire(worker)
    assert await schedules.remove(KEY, noted("schedule.removed"))
    assert await schedules.known() == []


async def test_a_view_shows_and_changes_only_schedules_of_its_tenant_and_workflows(kit: Kit) -> None:
    worker = await kit.worker()
    second = replace(DAILY, workflow="v")
    await kit.store.schedules.keep([DAILY, OTHERS, second], worker=worker)
    view = kit.store.tenant_view("default").schedules
    assert [(row.key, row.kept) for row in await view.known()] == [(second.key, True), (KEY, True)]
    assert await view.known(tenant="other") == []
    assert [row.key for row in await kit.store.tenant_view("default", ["v"]).schedules.known()] == [second.key]
    assert await view.pause(KEY, noted("schedule.paused"))
    assert await view.resume(KEY, noted("schedule.resumed"))
    assert not await view.remove(KEY, noted("schedule.removed"))
    for wrong in (OTHERS.key, KEY):
        narrow = kit.store.tenant_view("default", ["v"]).schedules
        with pytest.raises(NotAllowed):
            await narrow.pause(wrong, noted("schedule.paused"))
    with pytest.raises(NotAllowed):
        await view.resume(OTHERS.key, noted("schedule.resumed"))
    with pytest.raises(NotAllowed):
        await view.keep([DAILY], worker=worker)
    with pytest.raises(NotAllowed):
        await view.record_progress([])
    assert [row.paused_at for row in await kit.store.schedules.known()] == [None, None, None]
