"""Conformance tests of the audit log: lines are written with their transition, found by filters, never changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from letter_kit import audited, closes, failed
from store_kit import DAY, HOUR, SECOND, Kit, becomes, ends_in_letter, noted, writes

from redrive.core.states import RunStatus
from redrive.errors import InputError
from redrive.store.audit import AuditRow
from redrive.store.chores import PurgeRequest
from redrive.store.filters import AuditFilter
from redrive.store.settings import PolicyRow

POLICY = PolicyRow(tenant="", workflow="", step="", policy="{}", updated_at=0, updated_by="ann")


async def test_a_line_is_stored_as_given_with_the_time_of_the_store(kit: Kit) -> None:
    kit.clock.move(SECOND)
    line = noted(
        "dlq.assigned",
        tenant="t",
        by="ann",
        subject="run1",
        letter="dl-run1",
        before='"ann"',
        after='"bob"',
        reason="she is on leave",
    )
    await kit.store.note([line])
    (found,) = await audited(kit)
    assert found == AuditRow(
        id=found.id,
        tenant="t",
        at=kit.clock.now(),
        event="dlq.assigned",
        by="ann",
        subject="run1",
        letter="dl-run1",
        before='"ann"',
        after='"bob"',
        reason="she is on leave",
    )


async def test_lines_of_one_call_keep_their_order(kit: Kit) -> None:
    await kit.store.note([noted(subject=str(n)) for n in range(20)])
    assert [line.subject for line in await audited(kit)] == [str(n) for n in range(20)]


async def test_lines_about_users_and_tokens_can_be_left_out(kit: Kit) -> None:
    events = ("user.refused", "dlq.retry", "token.created", "usual.thing", "user.signed_in", "run.cancelled")
    await kit.store.note([noted(event, by="ann") for event in events])
    for where in (AuditFilter(accounts=False), AuditFilter(accounts=False, by="ann")):
        found = await kit.store.audit(where, limit=2, cursor=None)
        assert [line.event for line in found.items] == ["run.cancelled", "usual.thing"]
        rest = await kit.store.audit(where, limit=2, cursor=found.next)
        assert [line.event for line in rest.items] == ["dlq.retry"]
    hidden = await kit.store.audit(AuditFilter(event="user.", accounts=False), limit=9, cursor=None)
    assert hidden.items == []
    assert len((await kit.store.audit(AuditFilter(), limit=9, cursor=None)).items) == len(events)


async def test_an_empty_list_of_lines_writes_nothing(kit: Kit) -> None:
    await kit.store.note([])
    assert await audited(kit) == []


# -- written once ----------------------------------------------------------------------------------------


async def test_a_transition_s_lines_are_written_with_it_or_not_at_all(kit: Kit) -> None:
    await kit.start(2)
    worker = await kit.worker()
    one, other = (await kit.claim(worker)).runs
    ended = becomes(one, RunStatus.SUCCESS, take=True)
    batch = [
        writes(one, audit=(noted(subject="1"), noted(subject="2"))),
        writes(one, change=ended.change, audit=(noted(subject="3"),)),
        writes(one, audit=(noted(subject="too late"),)),
        writes(other, audit=(noted(subject="4"),)),
    ]
    answers = await kit.store.apply(batch, worker=worker)
    assert [answer.kept for answer in answers] == [True, True, False, True]
    assert [line.subject for line in await audited(kit)] == ["1", "2", "3", "4"]
    assert not (await kit.store.apply([batch[1]], worker=worker))[0].kept  # its reply was lost
    assert len(await audited(kit)) == 4


async def test_lines_of_a_worker_that_was_declared_dead_are_not_written(kit: Kit) -> None:
    worker, run = await kit.held()
    kit.clock.move(HOUR)
    await kit.store.expire_workers()
    (answer,) = await kit.store.apply([writes(run, audit=(noted(),))], worker=worker)
    assert not answer.kept
    assert await audited(kit) == []


Call = Callable[[Kit], Awaitable[object]]


@pytest.mark.parametrize(
    "call",
    [
        lambda kit: kit.store.note([noted(token="t"), noted(token="t")]),
        lambda kit: kit.store.set_policy(POLICY, noted("policy.set", token="t")),
        lambda kit: kit.store.pause("w", noted("workflow.paused", token="t")),
    ],
    ids=["note", "set_policy", "pause"],
)
async def test_a_call_whose_reply_was_lost_leaves_one_line(kit: Kit, call: Call) -> None:
    for _ in range(3):
        await call(kit)
        kit.clock.move(SECOND)
    (line,) = await audited(kit)
    assert line.at == kit.clock.now() - 3 * SECOND


async def test_equal_lines_without_a_token_are_two(kit: Kit) -> None:
    await kit.store.note([noted(), noted()])
    await kit.store.note([noted()])
    assert len(await audited(kit)) == 3


# -- filters -----------------------------------------------------------------------------------------------


async def test_each_filter_of_the_audit_log_filters(kit: Kit) -> None:
    await kit.store.note([noted("dlq.retry")])
    kit.clock.move(HOUR)
    other = noted("policy.set", tenant="t", by="bob", subject="s", letter="dl-1")
    await kit.store.note([other])
    now = kit.clock.now()
    here = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now)
    for where in (
        {"tenant": "t"},
        {"event": "policy.set"},
        {"event": "policy."},
        {"by": "bob"},
        {"subject": "s"},
        {"letter": "dl-1"},
        {"since": now},
        {"since": here},
        {"since": now - HOUR + 1, "until": now + 1},
        {"tenant": "t", "event": "policy.", "by": "bob", "subject": "s", "letter": "dl-1"},
    ):
        assert [line.event for line in await audited(kit, **where)] == ["policy.set"], where
    assert [line.event for line in await audited(kit, until=now)] == ["dlq.retry"]
    for where in ({"tenant": "t", "event": "dlq.retry"}, {"by": "zoe"}, {"since": now + 1}):
        assert await audited(kit, **where) == [], where
    with pytest.raises(InputError, match="time zone"):
        AuditFilter(since=datetime(2026, 1, 1))  # noqa: DTZ001 (the naive time is refused)


async def test_a_trailing_dot_matches_every_event_of_that_kind(kit: Kit) -> None:
    events = ["dlq.created", "dlq.retry", "dlqs.other", "dlq", "error.recorded", "dlq.skipped"]
    await kit.store.note([noted(event) for event in events])
    assert [line.event for line in await audited(kit, event="dlq.")] == ["dlq.created", "dlq.retry", "dlq.skipped"]
    assert [line.event for line in await audited(kit, event="dlq")] == ["dlq"]
    assert [line.event for line in await audited(kit, event="error.")] == ["error.recorded"]


async def test_lines_of_the_engine_are_found_by_its_name(kit: Kit) -> None:
    await kit.store.note([noted(by="redrive"), noted(by="ann")])
    assert [line.by for line in await audited(kit, by="redrive")] == ["redrive"]


@pytest.mark.parametrize("where", [{}, {"tenant": "default"}, {"event": "dlq."}, {"by": "ann", "since": 1}])
async def test_the_log_pages_both_ways(kit: Kit, where: dict[str, str]) -> None:
    await kit.store.note([noted("dlq.retry" if n % 2 else "dlq.skipped", subject=str(n)) for n in range(10)])

    async def page(cursor: str | None) -> tuple[list[str], str | None, str | None]:
        found = await kit.store.audit(AuditFilter(**where), limit=4, cursor=cursor)
        return [line.subject for line in found.items], found.next, found.prev

    one, further, before = await page(None)
    assert (one, before) == (["9", "8", "7", "6"], None)
    two, last, _ = await page(further)
    assert two == ["5", "4", "3", "2"]
    await kit.store.note([noted("dlq.retry", subject="new")])
    three, end, back = await page(last)
    assert (three, end) == (["1", "0"], None)
    again, _, back = await page(back)
    assert again == two
    first, _, newer = await page(back)
    assert first == one
    assert (await page(newer))[0] == ["new"]


async def test_another_tenant_s_newer_lines_do_not_empty_the_first_page(kit: Kit) -> None:
    await kit.store.note([noted(tenant="a", subject=str(n)) for n in range(30)])
    await kit.store.note([noted(tenant="b") for _ in range(10_000)])
    page = await kit.store.audit(AuditFilter(tenant="a"), limit=20, cursor=None)
    assert [line.subject for line in page.items] == [str(n) for n in range(29, 9, -1)]


async def test_since_selects_the_newer_of_many_lines(kit: Kit) -> None:
    for _ in range(20):
        await kit.store.note([noted() for _ in range(10)])
        kit.clock.move(HOUR)
    assert len(await audited(kit, since=kit.clock.now() - 3 * HOUR)) == 30


@pytest.mark.parametrize("limit", [0, -1])
async def test_an_invalid_limit_is_refused(kit: Kit, limit: int) -> None:
    with pytest.raises(InputError, match="limit"):
        await kit.store.audit(AuditFilter(), limit=limit, cursor=None)


# -- immutability --------------------------------------------------------------------------------------------


async def test_written_lines_cannot_be_changed(kit: Kit) -> None:
    """Not even the engine's connections can change lines. Only a purge deletes them, when their retention ends."""
    await kit.store.note([noted()])
    before = await audited(kit)
    for change in ("by = 'zoe'", "at = 0", "token = 't'"):
        with pytest.raises(Exception, match=r"append-only|permission denied|GRANT"):
            await kit.by_hand(f"UPDATE redrive.audit SET {change}")
    assert await audited(kit) == before


async def test_a_line_outlives_its_run_and_its_letter(kit: Kit) -> None:
    _, run = await failed(kit)
    await kit.store.apply([closes(run)])
    kit.clock.move(100 * DAY)
    await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=100))
    assert await kit.store.run(run.public_id) is None
    assert [line.event for line in await audited(kit, subject=run.public_id)] == ["dlq.resolved"]


async def test_a_failure_and_its_lines_are_committed_together(kit: Kit) -> None:
    worker, run = await kit.held()
    ended = ends_in_letter(run)
    line = noted("dlq.created", by="redrive", subject=run.public_id, letter=f"dl-{run.public_id}")
    await kit.store.apply([writes(run, change=ended.change, letter=ended.letter, audit=(line,))], worker=worker)
    (found,) = await audited(kit, letter=f"dl-{run.public_id}")
    assert (found.at, found.subject) == ((await kit.letter(run)).created_at, run.public_id)
