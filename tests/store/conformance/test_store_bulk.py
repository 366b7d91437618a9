"""Conformance tests of bulk actions: each letter is listed once, processed by one node at a time, counted once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from store_kit import DAY, SECOND, Kit, ends_in_letter

from redrive.core.bulk_rate import Rate
from redrive.core.states import RunStatus
from redrive.core.transitions import AuditWrite
from redrive.errors import InputError
from redrive.store.bulk import (
    BulkChange,
    BulkItemResult,
    BulkItemRow,
    BulkItemStatus,
    BulkRow,
    BulkStatus,
    BulkVerb,
    NewBulk,
)
from redrive.store.chores import PurgeRequest
from redrive.store.claims import ClaimedRun
from redrive.store.filters import AuditFilter, LetterFilter

LEASE = 15 * SECOND
DONE, FAILED = BulkItemStatus.DONE, BulkItemStatus.FAILED
STOP, PAUSE, RESUME = (BulkChange(verb) for verb in (BulkVerb.STOP, BulkVerb.PAUSE, BulkVerb.RESUME))


def line(event: str = "dlq.bulk_started", by: str = "ann", token: str = "t1") -> AuditWrite:
    return AuditWrite(event=event, tenant="", by=by, subject="set1", after='{"action":"REPLAY"}', token=token)


def new(public_id: str = "set1", **more: Any) -> NewBulk:
    given: dict[str, Any] = {
        "public_id": public_id,
        "tenant": "",
        "action": "REPLAY",
        "by": "ann",
        "reason": "the bank is back",
        "request": '{"mode":"FROM_FAILED"}',
    }
    return NewBulk(**{**given, **more})


async def begun(kit: Kit, **more: Any) -> BulkRow:
    """Begin a bulk action and return it."""
    wanted = new(**more)
    await kit.store.create_bulk(wanted, line(token=f"t-{wanted.public_id}"))
    return await known(kit, wanted.public_id)


async def known(kit: Kit, public_id: str = "set1") -> BulkRow:
    found = await kit.store.bulk_by_id(public_id)
    assert found is not None
    return found


async def claimed(kit: Kit) -> BulkRow:
    found = await kit.store.claim_bulk(LEASE)
    assert found is not None
    return found


async def letters(kit: Kit, count: int, *, tenant: str = "default", **more: Any) -> list[ClaimedRun]:
    """Start runs that end in letters of one kind."""
    await kit.start(count, tenant=tenant)
    worker = await kit.worker()
    runs = (await kit.claim(worker, capacity=count)).runs
    await kit.store.apply([ends_in_letter(run, **more) for run in runs], worker=worker)
    return runs


async def advance(
    kit: Kit, row: BulkRow, marks: tuple[BulkItemResult, ...] = (), limit: int = 100
) -> list[BulkItemRow] | None:
    return await kit.store.advance(row, marks, limit=limit, lease=LEASE)


def ids(runs: list[ClaimedRun]) -> list[str]:
    return [f"dl-{run.public_id}" for run in runs]


async def test_a_bulk_action_by_filter_lists_the_letters_open_at_its_start(kit: Kit) -> None:
    runs = await letters(kit, 3, fingerprint="f1")
    await letters(kit, 2, fingerprint="f2")
    await kit.by_hand("UPDATE redrive.letters SET status = 'REPLAYING' WHERE run = ?", runs[1].id)
    await begun(kit, where=LetterFilter(fingerprint="f1"))
    await letters(kit, 1, fingerprint="f1")  # too late for the bulk action
    row = await claimed(kit)
    assert (row.status, row.listed, row.total, row.action) == (BulkStatus.RUNNING, False, 0, "REPLAY")
    assert (row.request, row.by, row.reason) == ('{"mode":"FROM_FAILED"}', "ann", "the bank is back")
    items = await advance(kit, row)
    assert items is not None
    assert [item.letter for item in items] == [ids(runs)[0], ids(runs)[2]]
    now = await known(kit)
    assert (now.total, now.listed, now.done) == (2, True, 0)


async def test_a_filter_is_limited_to_its_tenant_and_to_all_of_its_conditions(kit: Kit) -> None:
    await letters(kit, 2, tenant="a")
    mine = await letters(kit, 2, tenant="b", code="timeout")
    await letters(kit, 2, tenant="b")
    await begun(kit, tenant="b", where=LetterFilter(tenant="b", code="timeout", status=("OPEN", "RESOLVED")))
    items = await advance(kit, await claimed(kit))
    assert items is not None
    assert [item.letter for item in items] == ids(mine)
    await kit.by_hand("UPDATE redrive.letters SET owner = 'ann' WHERE run = ?", mine[1].id)
    await begun(kit, public_id="set2", tenant="b", where=LetterFilter(tenant="b", owner="ann"))
    items = await advance(kit, await claimed(kit))
    assert items is not None
    assert [item.letter for item in items] == ids(mine)[1:]


async def test_letters_given_by_id_are_taken_without_a_filter(kit: Kit) -> None:
    runs = await letters(kit, 2)
    row = await begun(kit, letters=(ids(runs)[1], "no-such-letter", ids(runs)[0]))
    assert (row.total, row.listed) == (3, True)
    items = await advance(kit, await claimed(kit))
    assert items is not None
    assert [item.letter for item in items] == [ids(runs)[1], "no-such-letter", ids(runs)[0]]


async def test_a_bulk_action_that_is_begun_twice_exists_once(kit: Kit) -> None:
    runs = await letters(kit, 1)
    for _ in range(2):
        await kit.store.create_bulk(new(letters=tuple(ids(runs))), line())
    assert (await known(kit)).total == 1
    log = await kit.store.audit(AuditFilter(subject="set1"), limit=10, cursor=None)
    assert [(each.event, each.by, each.after) for each in log.items] == [
        ("dlq.bulk_started", "ann", '{"action":"REPLAY"}')
    ]


async def test_marks_are_counted_once_and_the_next_letters_are_returned(kit: Kit) -> None:
    runs = await letters(kit, 3)
    await begun(kit, where=LetterFilter())
    row = await claimed(kit)
    first = await advance(kit, row, limit=2)
    assert first is not None
    assert len(first) == 2
    marks = (
        BulkItemResult(id=first[0].id, status=DONE, run_id="run"),
        BulkItemResult(id=first[1].id, status=FAILED, error="it does not fit"),
    )
    for _ in range(2):  # the reply was lost
        second = await advance(kit, row, marks, limit=2)
        assert second is not None
        assert [item.letter for item in second] == ids(runs)[2:]
    now = await known(kit)
    assert (now.total, now.done, now.failed, now.status) == (3, 1, 1, BulkStatus.RUNNING)
    page = await kit.store.bulk_items(now, None, limit=10, cursor=None)
    assert [(item.status, item.run_id, item.error) for item in page.items] == [
        (BulkItemStatus.PENDING, None, None),
        (FAILED, None, "it does not fit"),
        (DONE, "run", None),
    ]
    (refused,) = (await kit.store.bulk_items(now, FAILED, limit=10, cursor=None)).items
    assert (refused.letter, refused.at) == (ids(runs)[1], kit.clock.now())


async def test_a_bulk_action_whose_letters_are_all_marked_is_done(kit: Kit) -> None:
    await letters(kit, 1)
    await begun(kit, where=LetterFilter())
    row = await claimed(kit)
    items = await advance(kit, row)
    assert items is not None
    kit.clock.move(SECOND)
    assert await advance(kit, row, (BulkItemResult(id=items[0].id, status=DONE),)) is None
    now = await known(kit)
    assert (now.status, now.done, now.ended_at) == (BulkStatus.DONE, 1, kit.clock.now())
    assert await kit.store.claim_bulk(LEASE) is None


async def test_a_bulk_action_without_letters_is_done_at_once(kit: Kit) -> None:
    await begun(kit, where=LetterFilter())
    assert await advance(kit, await claimed(kit)) is None
    assert (await known(kit)).status is BulkStatus.DONE


async def test_a_bulk_action_has_one_node_at_a_time(kit: Kit) -> None:
    await letters(kit, 1)
    await begun(kit, where=LetterFilter())
    nodes = [kit.store, await kit.beside(), await kit.beside()]
    taken = [row for row in await asyncio.gather(*(node.claim_bulk(LEASE) for node in nodes)) if row]
    assert len(taken) == 1
    kit.clock.move(LEASE - 1)
    assert await kit.store.claim_bulk(LEASE) is None
    kit.clock.move(1)
    other = await claimed(kit)
    assert other.fence == taken[0].fence + 1
    assert await advance(kit, taken[0]) is None
    items = await advance(kit, other)
    assert items is not None
    assert len(items) == 1


async def test_decisions_are_recorded_even_for_a_node_that_lost_the_bulk_action(kit: Kit) -> None:
    await letters(kit, 2)
    await begun(kit, where=LetterFilter())
    slow = await claimed(kit)
    items = await advance(kit, slow, limit=1)
    assert items is not None
    kit.clock.move(LEASE)
    quick = await claimed(kit)
    assert await advance(kit, slow, (BulkItemResult(id=items[0].id, status=DONE),)) is None
    left = await advance(kit, quick)
    assert left is not None
    assert [item.id for item in left] != [items[0].id]
    assert ((await known(kit)).done, len(left)) == (1, 1)


async def test_each_advance_renews_the_lease_and_a_lease_of_zero_releases_it(kit: Kit) -> None:
    await letters(kit, 2)
    await begun(kit, where=LetterFilter())
    row = await claimed(kit)
    kit.clock.move(LEASE - 1)
    await advance(kit, row, limit=1)
    kit.clock.move(LEASE - 1)
    assert await kit.store.claim_bulk(LEASE) is None
    assert await kit.store.advance(row, (), limit=0, lease=0) == []
    assert (await claimed(kit)).id == row.id


async def test_bulk_actions_take_turns(kit: Kit) -> None:
    await letters(kit, 1)
    first = await begun(kit, where=LetterFilter())
    kit.clock.move(1)
    second = await begun(kit, public_id="set2", where=LetterFilter())
    turns = []
    for _ in range(4):
        kit.clock.move(1)
        row = await claimed(kit)
        turns.append(row.id)
        await kit.store.advance(row, (), limit=0, lease=0)
    assert turns == [first.id, second.id] * 2


async def test_a_stopped_bulk_action_returns_no_more_letters_but_accepts_marks(kit: Kit) -> None:
    await letters(kit, 2)
    await begun(kit, where=LetterFilter())
    row = await claimed(kit)
    items = await advance(kit, row, limit=1)
    assert items is not None
    assert await kit.store.change_bulk("set1", STOP, line("dlq.bulk_stopped", by="bob", token="t2"))
    assert await advance(kit, row, (BulkItemResult(id=items[0].id, status=DONE),)) is None
    now = await known(kit)
    assert (now.status, now.closed_by, now.done, now.ended_at) == (BulkStatus.STOPPED, "bob", 1, kit.clock.now())
    kit.clock.move(DAY)
    assert await kit.store.claim_bulk(LEASE) is None
    assert not await kit.store.change_bulk("set1", STOP, line("dlq.bulk_stopped", token="t3"))
    log = await kit.store.audit(AuditFilter(subject="set1"), limit=10, cursor=None)
    assert [(each.event, each.by) for each in log.items] == [("dlq.bulk_stopped", "bob"), ("dlq.bulk_started", "ann")]


async def test_a_paused_bulk_action_cannot_be_claimed_until_it_is_resumed(kit: Kit) -> None:
    await letters(kit, 2)
    await begun(kit, where=LetterFilter())
    row = await claimed(kit)
    items = await advance(kit, row, limit=1)
    assert items is not None
    assert await kit.store.change_bulk("set1", PAUSE, line("dlq.bulk_paused", by="bob", token="t2"))
    assert not await kit.store.change_bulk("set1", PAUSE, line("dlq.bulk_paused", by="cid", token="t3"))
    assert await advance(kit, row, (BulkItemResult(id=items[0].id, status=DONE),)) is None
    now = await known(kit)
    assert (now.status, now.done, now.ended_at) == (BulkStatus.PAUSED, 1, None)
    assert (now.paused_by, now.paused_at) == ("bob", kit.clock.now())
    kit.clock.move(DAY)
    assert await kit.store.claim_bulk(LEASE) is None
    assert await kit.store.change_bulk("set1", RESUME, line("dlq.bulk_resumed", by="bob", token="t4"))
    assert not await kit.store.change_bulk("set1", RESUME, line("dlq.bulk_resumed", token="t5"))
    other = await claimed(kit)
    assert (other.fence, other.status, other.paused_by) == (row.fence + 1, BulkStatus.RUNNING, None)
    left = await advance(kit, other)
    assert left is not None
    assert len(left) == 1
    log = await kit.store.audit(AuditFilter(subject="set1"), limit=10, cursor=None)
    assert [each.event for each in log.items] == ["dlq.bulk_resumed", "dlq.bulk_paused", "dlq.bulk_started"]


async def test_a_bulk_action_that_is_resumed_at_once_can_be_claimed_at_once(kit: Kit) -> None:
    """The claim does not wait for the previous node. Letters that this node still processes are decided already."""
    await letters(kit, 2)
    await begun(kit, where=LetterFilter())
    row = await claimed(kit)
    await advance(kit, row, limit=1)
    for number, change in enumerate((PAUSE, RESUME)):
        assert await kit.store.change_bulk("set1", change, line("e", token=f"t{number}"))
    assert (await claimed(kit)).id == row.id
    assert await advance(kit, row) is None


async def test_a_paused_bulk_action_can_be_stopped_and_a_stopped_one_only_resumed(kit: Kit) -> None:
    await begun(kit, letters=("l1",))
    await kit.store.change_bulk("set1", PAUSE, line("dlq.bulk_paused", token="t2"))
    assert await kit.store.change_bulk("set1", STOP, line("dlq.bulk_stopped", by="bob", token="t3"))
    now = await known(kit)
    assert (now.status, now.paused_at, now.closed_by) == (BulkStatus.STOPPED, None, "bob")
    for number, change in enumerate((PAUSE, BulkChange(BulkVerb.RATE, Rate(5, "s")))):
        assert not await kit.store.change_bulk("set1", change, line("e", token=f"n{number}"))
    assert await known(kit) == now
    assert await kit.store.change_bulk("set1", RESUME, line("dlq.bulk_resumed", token="t4"))
    assert (await known(kit)).status is BulkStatus.RUNNING


async def test_a_bulk_action_waits_for_its_rate_paused_or_not(kit: Kit) -> None:
    """The node that releases it sets the wait. A pause in between does not shorten the wait."""
    await letters(kit, 2)
    assert (await begun(kit, where=LetterFilter(), rate=Rate(1, "m"))).rate == Rate(1, "m")
    row = await claimed(kit)
    assert row.rate == Rate(1, "m")
    await advance(kit, row, limit=1)
    await kit.store.change_bulk("set1", PAUSE, line("dlq.bulk_paused", token="t2"))
    assert await kit.store.advance(row, (), limit=1, lease=60 * SECOND) is None
    await kit.store.change_bulk("set1", RESUME, line("dlq.bulk_resumed", token="t3"))
    kit.clock.move(60 * SECOND - 1)
    assert await kit.store.claim_bulk(LEASE) is None
    kit.clock.move(1)
    assert (await claimed(kit)).id == row.id


async def test_a_new_rate_releases_the_bulk_action_and_shortens_its_wait(kit: Kit) -> None:
    await letters(kit, 2)
    await begun(kit, where=LetterFilter(), rate=Rate(1, "h"))
    row = await claimed(kit)
    await kit.store.advance(row, (), limit=1, lease=3600 * SECOND)
    faster = BulkChange(BulkVerb.RATE, Rate(2, "s"))
    assert await kit.store.change_bulk("set1", faster, line("dlq.bulk_rate_changed", by="bob", token="t2"))
    assert not await kit.store.change_bulk("set1", faster, line("dlq.bulk_rate_changed", token="t3"))
    assert await kit.store.advance(row, (), limit=1, lease=3600 * SECOND) is None
    kit.clock.move(SECOND // 2 - 1)
    assert await kit.store.claim_bulk(LEASE) is None
    kit.clock.move(1)
    assert (await claimed(kit)).rate == Rate(2, "s")
    assert await kit.store.change_bulk("set1", BulkChange(BulkVerb.RATE), line("dlq.bulk_rate_changed", token="t4"))
    assert (await claimed(kit)).rate is None


async def test_an_unknown_bulk_action_cannot_be_stopped(kit: Kit) -> None:
    assert not await kit.store.change_bulk("set1", STOP, line())
    assert await kit.store.bulk_by_id("set1") is None


async def test_a_bulk_action_larger_than_one_listing_lists_each_letter_once(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.store.bulk.LISTING_BATCH", 4)
    runs = await letters(kit, 10)
    await begun(kit, where=LetterFilter())
    row = await claimed(kit)
    seen: list[str] = []
    marks: tuple[BulkItemResult, ...] = ()
    while (items := await advance(kit, row, marks, limit=3)) is not None:
        seen += [item.letter for item in items]
        marks = tuple(BulkItemResult(id=item.id, status=DONE) for item in items)
    assert seen == ids(runs)
    now = await known(kit)
    assert (now.total, now.done, now.status) == (10, 10, BulkStatus.DONE)


async def test_the_letters_of_a_bulk_action_page_both_ways(kit: Kit) -> None:
    row = await begun(kit, letters=tuple(f"l{number}" for number in range(5)))
    first = await kit.store.bulk_items(row, None, limit=2, cursor=None)
    second = await kit.store.bulk_items(row, BulkItemStatus.PENDING, limit=2, cursor=first.next)
    back = await kit.store.bulk_items(row, None, limit=2, cursor=second.prev)
    names = [[item.letter for item in page.items] for page in (first, second, back)]
    assert names == [["l4", "l3"], ["l2", "l1"], ["l4", "l3"]]


async def test_open_letters_are_counted(kit: Kit) -> None:
    runs = await letters(kit, 3, fingerprint="f1", tenant="a")
    await letters(kit, 2, fingerprint="f1", tenant="b")
    await kit.by_hand("UPDATE redrive.letters SET status = 'REPLAYING' WHERE run = ?", runs[0].id)
    assert await kit.store.count_letters(LetterFilter(fingerprint="f1")) == 4
    assert await kit.store.count_letters(LetterFilter(fingerprint="f1", tenant="a")) == 2
    assert await kit.store.count_letters(LetterFilter(fingerprint="f2")) == 0


async def test_text_is_searched_unless_it_is_encrypted(kit: Kit) -> None:
    await letters(kit, 2, reason="100% sure\x00")
    await letters(kit, 1, reason="100 times")
    where = LetterFilter(text="100%")
    if kit.kind == "sqlite-sealed":
        with pytest.raises(InputError, match="cannot be counted or selected by text"):
            await kit.store.create_bulk(new(where=where), line())
        return
    await begun(kit, where=where)
    items = await advance(kit, await claimed(kit))
    assert items is not None
    assert len(items) == 2


async def test_old_bulk_actions_are_purged_with_their_letters(kit: Kit) -> None:
    row = await begun(kit, letters=("l1", "l2", "l3"))
    await begun(kit, public_id="set2", letters=("l1",))
    await kit.store.change_bulk("set1", STOP, line("dlq.bulk_stopped", token="t2"))
    kit.clock.move(30 * DAY - 1)
    purge = PurgeRequest(runs=DAY, letters=30 * DAY, workers=900 * DAY, limit=2, audit=900 * DAY)
    assert await kit.store.purge(purge) == 0
    kit.clock.move(1)
    assert [await kit.store.purge(purge) for _ in range(3)] == [2, 2, 0]
    assert await kit.store.bulk_by_id("set1") is None
    assert (await kit.store.bulk_items(row, None, limit=10, cursor=None)).items == []
    assert (await known(kit, "set2")).total == 1


# -- lists -------------------------------------------------------------------------------------------------


async def test_bulk_actions_are_listed_by_pages_newest_first(kit: Kit) -> None:
    for number in range(1, 6):
        await begun(kit, public_id=f"set{number}", tenant="acme" if number % 2 else "other", letters=("dl-x",))
    first = await kit.store.bulk_actions(None, limit=2, cursor=None)
    assert [row.public_id for row in first.items] == ["set5", "set4"]
    second = await kit.store.bulk_actions(None, limit=2, cursor=first.next)
    assert [row.public_id for row in second.items] == ["set3", "set2"]
    back = await kit.store.bulk_actions(None, limit=2, cursor=second.prev)
    assert [row.public_id for row in back.items] == ["set5", "set4"]
    mine = await kit.store.bulk_actions("acme", limit=10, cursor=None)
    assert [row.public_id for row in mine.items] == ["set5", "set3", "set1"]
    assert (mine.items[0].request, mine.items[0].total) == ('{"mode":"FROM_FAILED"}', 1)
    assert (await kit.store.bulk_actions("unknown", limit=10, cursor=None)).items == []
    with pytest.raises(InputError):
        await kit.store.bulk_actions(None, limit=10, cursor="nonsense")


async def test_a_bulk_action_counts_the_states_of_its_runs(kit: Kit) -> None:
    runs = await letters(kit, 4)
    await begun(kit, letters=tuple(ids(runs)))
    row = await claimed(kit)
    items = await advance(kit, row)
    assert items is not None
    assert await kit.store.bulk_run_counts(row) == {}
    marks = [BulkItemResult(id=item.id, status=DONE, run_id=item.letter[3:]) for item in items[:3]]
    await advance(kit, row, (*marks, BulkItemResult(id=items[3].id, status=FAILED, error="no")))
    await kit.by_hand("UPDATE redrive.runs SET status = 'SUCCESS' WHERE id = ?", runs[0].id)
    endings = await kit.store.bulk_run_counts(row)
    assert endings == {RunStatus.SUCCESS: 1, RunStatus.DLQ_PENDING: 2}
