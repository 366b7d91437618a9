"""Conformance tests of failure groups: every change of a letter is counted once, by any number of nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from store_kit import DAY, HOUR, SECOND, Kit, becomes, ends_in_letter

from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite, LetterStatusWrite, RunWrite, Transition
from redrive.errors import InputError, NotAllowed
from redrive.record_fields import replace
from redrive.store.bulk import NewBulk
from redrive.store.chores import PurgeRequest
from redrive.store.claims import ClaimedRun
from redrive.store.filters import AuditFilter, GroupFilter, LetterFilter
from redrive.store.groups import GroupChange, GroupOrder, GroupPage, GroupRow, GroupTotals, GroupVerb
from redrive.store.runs import RunRow

ALL = GroupFilter(status=None)


async def letters(
    kit: Kit, count: int, *, tenant: str = "default", version: str = "v1", **more: Any
) -> list[ClaimedRun]:
    """Start runs that end in letters of one kind."""
    await kit.start(count, tenant=tenant)
    worker = await kit.worker(version=version)
    runs = (await kit.claim(worker, capacity=count)).runs
    ends = [ends_in_letter(run, **more) for run in runs]
    await kit.store.apply([replace(end, version=version) for end in ends], worker=worker)
    return runs


async def listed(kit: Kit, where: GroupFilter = ALL) -> GroupPage:
    """Fold all changes, then return all groups."""
    while await kit.store.fold(1000):
        pass
    return await kit.store.groups(where, limit=100, cursor=None)


async def only(kit: Kit) -> GroupRow:
    (group,) = (await listed(kit)).items
    return group


def moved(run: RunRow, status: LetterStatus, ended: RunStatus = RunStatus.FAILED) -> Transition:
    """Return a decision about a letter."""
    change = RunWrite(status=ended, take=True, wake_in=0 if ended is RunStatus.PENDING else None)
    move = LetterStatusWrite(letter=f"dl-{run.public_id}", status=status, by="ann", resolution="seen to")
    return Transition(run=run.id, tenant=run.tenant, fence=run.fence, change=change, move=move)


async def decide(kit: Kit, run: ClaimedRun, status: LetterStatus, ended: RunStatus = RunStatus.FAILED) -> None:
    (answer,) = await kit.store.apply([moved(await kit.look(run), status, ended)])
    assert answer.kept


async def test_letters_with_one_cause_are_one_group(kit: Kit) -> None:
    began = kit.clock.now()
    await letters(kit, 2, fingerprint="f1")
    kit.clock.move(HOUR)
    runs = await letters(kit, 3, fingerprint="f1", reason="the step failed for the third time")
    await letters(kit, 1, fingerprint="f2", step=None)
    second, first = (await listed(kit)).items
    assert (first.fingerprint, first.open, first.total) == ("f1", 5, 5)
    assert (first.first_seen, first.last_seen) == (began, began + HOUR)
    assert (first.workflow, first.step, first.tenant) == ("w", "charge", "default")
    assert first.letter in {f"dl-{run.public_id}" for run in runs}
    assert (first.reason, first.code, first.category) == (
        "the step failed for the third time",
        "exhausted_retries",
        "timeout",
    )
    assert (second.fingerprint, second.total, second.step) == ("f2", 1, None)


async def test_changes_are_not_counted_before_a_fold_and_as_of_shows_that(kit: Kit) -> None:
    at = kit.clock.now()
    await letters(kit, 1)
    kit.clock.move(5 * SECOND)
    page = await kit.store.groups(ALL, limit=10, cursor=None)
    assert (page.items, page.as_of) == ([], at)
    page = await listed(kit)
    assert [group.open for group in page.items] == [1]
    assert page.as_of == kit.clock.now()


async def test_each_change_is_folded_once(kit: Kit) -> None:
    await letters(kit, 5)
    assert [await kit.store.fold(2) for _ in range(4)] == [2, 2, 1, 0]
    assert (await only(kit)).open == 5


@pytest.mark.parametrize("status", [LetterStatus.RESOLVED, LetterStatus.IGNORED, LetterStatus.EXPIRED])
async def test_a_closed_letter_is_no_longer_open_but_still_counted(kit: Kit, status: LetterStatus) -> None:
    first, _ = await letters(kit, 2)
    await decide(kit, first, status)
    group = await only(kit)
    assert (group.open, group.total, sum(group.trend)) == (1, 2, 2)


async def test_a_letter_that_leaves_and_returns_between_two_folds_is_counted_once(kit: Kit) -> None:
    """A bulk action decides on many letters of several causes and tenants at a time."""
    first = await letters(kit, 4, fingerprint="f1")
    await letters(kit, 3, fingerprint="f2")
    decided = [moved(await kit.look(run), LetterStatus.REPLAYING, RunStatus.PENDING) for run in first]
    assert all(answer.kept for answer in await kit.store.apply(decided))
    worker = await kit.worker()
    again = (await kit.claim(worker, capacity=1)).runs
    await kit.store.apply([ends_in_letter(run, fingerprint="f1") for run in again], worker=worker)
    groups = {group.fingerprint: (group.open, group.total) for group in (await listed(kit)).items}
    assert groups == {"f1": (1, 4), "f2": (3, 3)}
    (waiting,) = [run for run in first if run.public_id == again[0].public_id]
    await decide(kit, waiting, LetterStatus.RESOLVED)
    groups = {group.fingerprint: (group.open, group.total) for group in (await listed(kit)).items}
    assert groups == {"f1": (0, 4), "f2": (3, 3)}


async def test_a_replay_and_its_end_change_the_counts(kit: Kit) -> None:
    (run,) = await letters(kit, 1)
    await decide(kit, run, LetterStatus.REPLAYING, RunStatus.PENDING)
    group = await only(kit)
    assert (group.open, group.total) == (0, 1)
    kit.clock.move(HOUR)
    worker = await kit.worker()
    (again,) = (await kit.claim(worker)).runs
    await kit.fail(worker, again)
    group = await only(kit)
    assert (group.open, group.total, group.last_seen) == (1, 1, kit.clock.now())
    assert group.trend[-2:] == (1, 1)


async def test_a_change_without_a_time_is_folded_separately(kit: Kit) -> None:
    began = kit.clock.now()
    (run,) = await letters(kit, 1)
    assert (await only(kit)).open == 1
    kit.clock.move(HOUR)
    await decide(kit, run, LetterStatus.REPLAYING, RunStatus.PENDING)
    group = await only(kit)
    assert (group.open, group.total, group.first_seen, group.last_seen) == (0, 1, began, began)


async def test_a_replay_that_fails_differently_moves_to_another_group(kit: Kit) -> None:
    run, _ = await letters(kit, 2, fingerprint="f1")
    await decide(kit, run, LetterStatus.REPLAYING, RunStatus.PENDING)
    worker = await kit.worker()
    (again,) = (await kit.claim(worker)).runs
    await kit.fail(worker, again, fingerprint="f2", reason="quite another thing")
    new, old = (await listed(kit)).items
    assert (old.fingerprint, old.open, old.total) == ("f1", 1, 1)
    assert (new.fingerprint, new.open, new.total, new.reason) == ("f2", 1, 1, "quite another thing")
    assert new.letter == f"dl-{run.public_id}" != old.letter


async def test_a_group_without_letters_is_deleted(kit: Kit) -> None:
    runs = await letters(kit, 2)
    for run in runs:
        await decide(kit, run, LetterStatus.RESOLVED)
    assert (await only(kit)).total == 2
    await kit.store.purge(PurgeRequest(runs=DAY, letters=0, workers=900 * DAY, limit=100))
    assert (await listed(kit)).items == []
    await letters(kit, 1)
    assert (await only(kit)).trend == (*[0] * 23, 1)


async def test_a_sample_that_was_purged_is_replaced(kit: Kit) -> None:
    (kept,) = await letters(kit, 1, reason="the older one")
    (gone,) = await letters(kit, 1, reason="the newer one")
    assert (await only(kit)).reason == "the newer one"
    await decide(kit, gone, LetterStatus.RESOLVED)
    kit.clock.move(20 * DAY)
    await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=900 * DAY, limit=100))
    group = await only(kit)
    assert (group.letter, group.reason, group.total) == (f"dl-{kept.public_id}", "the older one", 1)


async def test_the_trend_covers_one_day(kit: Kit) -> None:
    await letters(kit, 1)
    kit.clock.move(23 * HOUR)
    await letters(kit, 2)
    assert (await only(kit)).trend == (1, *[0] * 22, 2)
    kit.clock.move(HOUR)
    await letters(kit, 3)
    group = await only(kit)
    assert (group.trend, group.total) == ((*[0] * 22, 2, 3), 6)


async def test_groups_of_different_tenants_are_different_groups(kit: Kit) -> None:
    await letters(kit, 2, tenant="a")
    await letters(kit, 1, tenant="b")
    assert [(g.tenant, g.open) for g in (await listed(kit)).items] == [("b", 1), ("a", 2)]
    (ours,) = (await listed(kit, GroupFilter(tenant="a"))).items
    assert (ours.tenant, ours.open) == ("a", 2)
    assert (await listed(kit, GroupFilter(tenant="c"))).items == []


async def test_groups_without_open_letters_are_listed_on_request(kit: Kit) -> None:
    (run,) = await letters(kit, 1, fingerprint="f1")
    await letters(kit, 1, fingerprint="f2")
    await decide(kit, run, LetterStatus.RESOLVED)
    assert [g.fingerprint for g in (await listed(kit, GroupFilter())).items] == ["f2"]
    assert [g.fingerprint for g in (await listed(kit)).items] == ["f2", "f1"]


async def test_pages_of_groups_go_both_ways(kit: Kit) -> None:
    for number in range(5):
        await letters(kit, 1, fingerprint=f"f{number}")
    await listed(kit)
    where = GroupFilter(tenant="default")
    first = await kit.store.groups(where, limit=2, cursor=None)
    second = await kit.store.groups(where, limit=2, cursor=first.next)
    third = await kit.store.groups(where, limit=2, cursor=second.next)
    back = await kit.store.groups(where, limit=2, cursor=second.prev)
    names = [[group.fingerprint for group in page.items] for page in (first, second, third, back)]
    assert names == [["f4", "f3"], ["f2", "f1"], ["f0"], ["f4", "f3"]]
    assert (first.prev, third.next) == (None, None)


async def test_a_group_with_a_new_failure_comes_first(kit: Kit) -> None:
    for name in ("f1", "f2", "f1"):
        await letters(kit, 1, fingerprint=name)
    assert [group.fingerprint for group in (await listed(kit)).items] == ["f1", "f2"]


async def test_an_unknown_status_is_refused(kit: Kit) -> None:
    with pytest.raises(InputError, match="status must be OPEN or None"):
        await kit.store.groups(GroupFilter(status="RESOLVED"), limit=10, cursor=None)


async def test_concurrent_folds_count_every_change_once(kit: Kit) -> None:
    for number in range(20):
        await letters(kit, 10, fingerprint=f"f{number % 3}", tenant=f"t{number % 2}")
    nodes = [kit.store, await kit.beside(), await kit.beside()]

    async def fold(node: Any) -> int:
        total = 0
        while folded := await node.fold(7):
            total += folded
        return total

    assert sum(await asyncio.gather(*(fold(node) for node in nodes))) == 200
    groups = (await listed(kit)).items
    assert len(groups) == 6
    assert sum(group.open for group in groups) == sum(group.total for group in groups) == 200


async def test_a_run_that_succeeds_changes_no_group(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.SUCCESS, output="1")], worker=worker)
    assert await kit.store.fold(10) == 0
    assert (await listed(kit)).items == []


def change(fingerprint: str, verb: GroupVerb, *, tenant: str = "default", **more: Any) -> GroupChange:
    """Return a change of a group by the user ann."""
    line = AuditWrite(event=f"dlq.group_{verb}", tenant=tenant, by="ann", subject=fingerprint, token=f"{verb}{more}")
    return GroupChange(tenant=tenant, fingerprint=fingerprint, verb=verb, audit=line, **more)


async def bulk(kit: Kit, action: str, where: LetterFilter, tenant: str = "default") -> None:
    new = NewBulk(public_id=f"{action}-{where.workflow}", tenant=tenant, action=action, by="ann", where=where)
    line = AuditWrite(event="dlq.bulk_started", tenant=tenant, by="ann", subject=new.public_id, token=new.public_id)
    await kit.store.create_bulk(new, line)


async def test_groups_are_listed_by_size_by_trend_and_by_their_latest_failure(kit: Kit) -> None:
    await letters(kit, 3, fingerprint="large")
    kit.clock.move(2 * DAY)
    await letters(kit, 2, fingerprint="rising")
    await letters(kit, 1, fingerprint="latest")
    await letters(kit, 9, fingerprint="foreign", tenant="other")
    await listed(kit)
    mine = GroupFilter(tenant="default")
    found = {}
    for order in GroupOrder:
        first = await kit.store.groups(mine, order=order, limit=2, cursor=None)
        second = await kit.store.groups(mine, order=order, limit=2, cursor=first.next)
        back = await kit.store.groups(mine, order=order, limit=2, cursor=second.prev)
        assert (first.prev, second.next, back.items) == (None, None, first.items)
        found[order.value] = [group.fingerprint for group in first.items + second.items]
    assert found == {
        "count": ["large", "rising", "latest"],
        "trend": ["rising", "latest", "large"],
        "newest": ["latest", "rising", "large"],
    }


async def test_failures_are_counted_by_minute_and_by_hour_for_a_week(kit: Kit) -> None:
    where = GroupFilter(status=None, tenant="default")
    await letters(kit, 1, fingerprint="f1")
    kit.clock.move(7 * DAY - HOUR)
    await letters(kit, 2, fingerprint="f1")
    kit.clock.move(60 * SECOND)
    runs = await letters(kit, 3, fingerprint="f2")
    await letters(kit, 4, fingerprint="f1", tenant="other")
    await decide(kit, runs[0], LetterStatus.RESOLVED)
    await listed(kit)
    week = await kit.store.failure_counts(where, seconds=3600, slots=168)
    assert (len(week), week[0], sum(week[1:])) == (168, 1, 5)
    assert await kit.store.failure_counts(where, seconds=60, slots=3) == (0, 2, 3)
    one = replace(where, fingerprint="f1")
    assert await kit.store.failure_counts(one, seconds=60, slots=3) == (0, 2, 0)
    own = kit.store.tenant_view("other")
    assert await own.failure_counts(GroupFilter(), seconds=60, slots=1) == (4,)
    assert await own.failure_counts(where, seconds=60, slots=3) == (0, 0, 0)
    assert await kit.store.tenant_view("other", {"w2"}).failure_counts(GroupFilter(), seconds=60, slots=1) == (0,)
    kit.clock.move(2 * HOUR)
    await letters(kit, 1, fingerprint="f1")
    assert sum(await kit.store.failure_counts(where, seconds=3600, slots=168)) == 5
    await listed(kit)
    assert sum(await kit.store.failure_counts(where, seconds=3600, slots=200)) == 6  # the first hour is removed


async def test_a_muted_group_is_shown_again_when_it_grows_or_its_time_is_over(kit: Kit) -> None:
    await letters(kit, 2, fingerprint="f1")
    await letters(kit, 3, fingerprint="f2")
    await listed(kit)
    assert await kit.store.change_group(change("f1", GroupVerb.MUTE))
    assert await kit.store.change_group(change("f2", GroupVerb.MUTE, until=kit.clock.now() + HOUR))
    assert not await kit.store.change_group(change("f3", GroupVerb.MUTE))

    async def unmuted() -> set[str]:
        return {group.fingerprint for group in (await listed(kit, GroupFilter(muted=False))).items}

    totals = await kit.store.group_totals(GroupFilter())
    assert totals == GroupTotals(groups=2, open=5, muted_groups=2, muted_open=5)
    assert (await unmuted(), await kit.store.is_muted("default", "f1")) == (set(), True)
    (second, first) = (await listed(kit, GroupFilter(muted=True))).items
    assert (first.muted, first.muted_by, first.muted_until) == (True, "ann", None)
    assert second.muted_until == kit.clock.now() + HOUR
    (new,) = await letters(kit, 1, fingerprint="f1")
    # The failure that makes a cause grow is reported at once, before it is folded.
    assert not await kit.store.is_muted("default", "f1")
    totals = await kit.store.group_totals(GroupFilter())
    assert (totals.open, totals.uncounted, totals.need_attention) == (5, 1, 1)
    assert await unmuted() == {"f1"}
    await decide(kit, new, LetterStatus.RESOLVED)
    assert await unmuted() == set()
    await letters(kit, 5, fingerprint="f2")
    assert await kit.store.is_muted("default", "f2")
    kit.clock.move(HOUR)
    assert (await unmuted(), await kit.store.is_muted("default", "f2")) == ({"f2"}, False)
    assert await kit.store.change_group(change("f1", GroupVerb.UNMUTE))
    assert not await kit.store.change_group(change("f1", GroupVerb.UNMUTE))
    assert await unmuted() == {"f1", "f2"}
    lines = await kit.store.audit(AuditFilter(subject="f1"), limit=9, cursor=None)
    assert [line.event for line in lines.items] == ["dlq.group_unmute", "dlq.group_mute"]


async def test_a_resolved_cause_that_fails_again_names_the_version_of_the_regression(kit: Kit) -> None:
    whole = LetterFilter(fingerprint="f1", tenant="default")
    await letters(kit, 2, fingerprint="f1", version="v11")
    await listed(kit)
    await kit.worker(version="v12")
    await bulk(kit, "REPLAY", whole)
    await bulk(kit, "RESOLVE", replace(whole, step="charge", workflow="w"))
    group = await only(kit)
    assert (group.retried_by, group.retried_bulk, group.resolved_at) == ("ann", "REPLAY-None", None)
    await kit.store.change_group(change("f1", GroupVerb.MUTE, until=kit.clock.now() + DAY))
    await bulk(kit, "RESOLVE", whole)
    group = await only(kit)
    assert (group.resolved_by, group.resolved_version, group.back_version) == ("ann", "v12", None)
    assert (group.resolved_at, group.muted) == (kit.clock.now(), False)
    kit.clock.move(HOUR)
    await letters(kit, 1, fingerprint="f1", version="v11")  # a failure in an older version is not a regression
    assert (await only(kit)).back_version is None
    await letters(kit, 2, fingerprint="f1", version="v13")
    group = await only(kit)
    assert group.back_version == "v13"
    versions = [(each.version, each.seen) for each in await kit.store.group_versions(group)]
    assert versions == [("v11", 3), ("v13", 2)]
    assert await kit.store.tenant_view("other").group_versions(group) == []


async def test_a_view_changes_and_counts_only_groups_of_its_tenant_and_workflows(kit: Kit) -> None:
    await letters(kit, 2, fingerprint="f1", tenant="a")
    await letters(kit, 1, fingerprint="f2", tenant="b")
    await listed(kit)
    view, some = kit.store.tenant_view("a"), kit.store.tenant_view("a", {"another"})
    assert await view.group_totals(GroupFilter()) == GroupTotals(groups=1, open=2, muted_groups=0, muted_open=0)
    assert (await view.group_totals(GroupFilter(tenant="b"))).open == 0
    assert (await some.group_totals(GroupFilter())).open == 0
    assert await view.change_group(change("f1", GroupVerb.ASSIGN, tenant="a", owner="kim"))
    assert not await some.change_group(change("f1", GroupVerb.ASSIGN, tenant="a", owner="eve"))
    assert not await view.change_group(change("f2", GroupVerb.ASSIGN, tenant="a", owner="eve"))
    with pytest.raises(NotAllowed):
        await view.change_group(change("f2", GroupVerb.ASSIGN, tenant="b", owner="eve"))
    assert [group.owner for group in (await listed(kit)).items] == [None, "kim"]
    allowed = await kit.store.tenant_view("a", {"w"}).audit(AuditFilter(subject="f1"), limit=9, cursor=None)
    assert [line.by for line in allowed.items] == ["ann"]
    with pytest.raises(NotAllowed):
        await some.audit(AuditFilter(subject="f1"), limit=9, cursor=None)
