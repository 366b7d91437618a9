"""Conformance tests of lists: filters, and pages that neither repeat nor hide rows while others arrive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any

import pytest
from store_kit import DAY, HOUR, SECOND, Kit, becomes

from redrive.core.keys_and_ids import job_key
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.store.bulk import NewBulk
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter
from redrive.store.list_query import ListTotal
from redrive.store.result_page import Page


async def listed(kit: Kit, limit: int = 50, cursor: str | None = None, **where) -> list[str]:
    page = await kit.store.runs(RunFilter(**where), limit=limit, cursor=cursor)
    return [run.public_id for run in page.items]


async def letters(kit: Kit, count: int = 1, *, fails: dict | None = None, **more) -> list[str]:
    """Create dead letters, oldest first; return their public ids."""
    await kit.start(count, **more)
    worker = await kit.worker(more.get("workflow", "w"))
    claims = await kit.claim(worker, more.get("workflow", "w"), capacity=count)
    for run in claims.runs:
        await kit.fail(worker, run, **(fails or {}))
    return [f"dl-{run.public_id}" for run in claims.runs]


async def listed_letters(kit: Kit, limit: int = 50, **where) -> list[str]:
    page = await kit.store.letters(LetterFilter(**where), limit=limit, cursor=None)
    return [letter.public_id for letter in page.items]


# -- pages ---------------------------------------------------------------------------------------------


async def test_an_empty_list_has_no_pages(kit: Kit) -> None:
    page = await kit.store.runs(RunFilter(), limit=10, cursor=None)
    assert (page.items, page.next, page.prev) == ([], None, None)


async def test_pages_lead_from_the_newest_to_the_oldest_and_back(kit: Kit) -> None:
    ids = (await kit.start(23))[::-1]
    pages, cursor = [], None
    while True:
        page = await kit.store.runs(RunFilter(), limit=5, cursor=cursor)
        pages.append([run.public_id for run in page.items])
        if page.next is None:
            break
        cursor = page.next
    assert list(chain.from_iterable(pages)) == ids
    assert [len(each) for each in pages] == [5, 5, 5, 5, 3]
    back = []
    while page.prev is not None:
        page = await kit.store.runs(RunFilter(), limit=5, cursor=page.prev)
        back.append([run.public_id for run in page.items])
    assert back == pages[-2::-1]


async def test_a_list_of_runs_has_options_and_failures_but_no_payloads(kit: Kit) -> None:
    (letter,) = await letters(kit, input="x" * 100_000)
    (waiting,) = await kit.start(1)
    newest, failed = (await kit.store.runs(RunFilter(), limit=10, cursor=None)).items
    for listed_run, id in ((failed, letter.removeprefix("dl-")), (newest, waiting)):
        whole = await kit.store.run(id)
        assert whole is not None
        assert listed_run == replace(whole, input=None, output=None)
    assert failed.failure is not None


async def test_a_full_last_page_has_no_next(kit: Kit) -> None:
    await kit.start(10)
    page = await kit.store.runs(RunFilter(), limit=10, cursor=None)
    assert (len(page.items), page.next, page.prev) == (10, None, None)


async def test_new_rows_neither_repeat_nor_hide_others_between_pages(kit: Kit) -> None:
    old = (await kit.start(10))[::-1]
    first = await kit.store.runs(RunFilter(), limit=4, cursor=None)
    new = (await kit.start(3))[::-1]
    second = await kit.store.runs(RunFilter(), limit=4, cursor=first.next)
    assert [run.public_id for run in first.items + second.items] == old[:8]
    back = await kit.store.runs(RunFilter(), limit=4, cursor=second.prev)
    assert [run.public_id for run in back.items] == old[:4]
    newest = await kit.store.runs(RunFilter(), limit=4, cursor=back.prev)
    assert [run.public_id for run in newest.items] == new
    assert newest.prev is None
    again = await kit.store.runs(RunFilter(), limit=4, cursor=newest.next)
    assert [run.public_id for run in again.items] == old[:4]


async def test_an_empty_page_beyond_either_end_has_a_cursor_back(kit: Kit) -> None:
    ids = (await kit.start(6))[::-1]
    first = await kit.store.runs(RunFilter(), limit=3, cursor=None)
    last = await kit.store.runs(RunFilter(), limit=3, cursor=first.next)
    await kit.start()
    found = await kit.store.runs(RunFilter(), limit=3, cursor=last.prev)
    newer = await kit.store.runs(RunFilter(), limit=3, cursor=found.prev)
    assert len(newer.items) == 1
    back = await kit.store.runs(RunFilter(tenant="other"), limit=3, cursor=found.prev)
    assert (back.items, back.prev) == ([], None)
    assert [run.public_id for run in (await kit.store.runs(RunFilter(), limit=3, cursor=back.next)).items] == ids[:3]


async def test_an_invalid_limit_is_refused(kit: Kit, subtests: pytest.Subtests) -> None:
    for limit in (0, -1, True, "5", 2.5, None):
        with subtests.test(limit=limit), pytest.raises(InputError, match="limit"):
            await kit.store.runs(RunFilter(), limit=limit, cursor=None)


async def test_a_page_has_at_most_500_rows(kit: Kit) -> None:
    await kit.start(501)
    page = await kit.store.runs(RunFilter(), limit=100_000, cursor=None)
    assert len(page.items) == 500
    assert page.next is not None


async def test_an_invalid_cursor_is_refused(kit: Kit, subtests: pytest.Subtests) -> None:
    await kit.store.runs(RunFilter(), limit=5, cursor="PDU")  # "<5", as a page would give it
    for cursor in ("", "x", "Pw", "é", "PDk5OTk5OTk5OTk5OTk5OTk5OTk5OTk", "PA==", "PC01", "\0"):
        with subtests.test(cursor=cursor), pytest.raises(InputError, match="cursor"):
            await kit.store.runs(RunFilter(), limit=5, cursor=cursor)


async def test_another_tenant_s_newer_rows_do_not_empty_the_first_page(kit: Kit) -> None:
    mine = (await kit.start(30, tenant="a"))[::-1]
    await kit.store.start([kit.new(tenant="b") for _ in range(10_000)])
    assert await listed(kit, 20, tenant="a") == mine[:20]


# -- filters of runs -----------------------------------------------------------------------------------


async def test_each_filter_of_runs_filters(kit: Kit) -> None:
    (plain,) = await kit.start()
    kit.clock.move(HOUR)
    (other,) = await kit.start(
        tenant="t",
        workflow="v",
        queue="q",
        correlation_id="c",
        key=job_key("t", "v", "a:key %"),
        key_hash="h",
        key_keeps=DAY,
    )
    now = kit.clock.now()
    for where in (
        {"tenant": "t"},
        {"workflow": "v"},
        {"queue": "q"},
        {"correlation_id": "c"},
        {"idempotency_key": "a:key %"},
        {"idempotency_key": "a:key %", "tenant": "t", "workflow": "v"},
        {"since": now},
        {"since": now - HOUR + 1},
    ):
        assert await listed(kit, **where) == [other], where
    assert await listed(kit, until=now) == [plain]
    assert await listed(kit, since=now - HOUR, until=now + 1) == [other, plain]
    assert await listed(kit, idempotency_key="a:key %", tenant="default") == []
    assert await listed(kit, since=now + 1) == []


async def test_runs_are_filtered_by_one_state_or_several(kit: Kit) -> None:
    ids = await kit.start(6)
    worker = await kit.worker()
    runs = (await kit.claim(worker, capacity=5)).runs
    states = [RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.SUCCESS]
    for run, status in zip(runs, states, strict=False):
        await kit.store.apply([becomes(run, status)], worker=worker)
    assert await listed(kit, status="SUCCESS") == [ids[3], ids[0]]
    assert await listed(kit, status=RunStatus.RUNNING) == [ids[4]]
    assert await listed(kit, status=RunStatus.PENDING) == [ids[5]]
    assert await listed(kit, status=["FAILED", RunStatus.SUCCESS, "FAILED"]) == [ids[3], ids[1], ids[0]]
    assert await listed(kit, status=["PENDING", "RUNNING"], tenant="default") == [ids[5], ids[4]]
    assert await listed(kit, status=[]) == []
    with pytest.raises(InputError, match="PENDING"):
        await listed(kit, status="BROKEN")


async def test_several_states_page_both_ways(kit: Kit) -> None:
    await kit.start(20)
    worker = await kit.worker()
    runs = (await kit.claim(worker, capacity=20)).runs
    for n, run in enumerate(runs):
        status = (RunStatus.FAILED, RunStatus.SUCCESS, RunStatus.CANCELLED)[n % 3]
        await kit.store.apply([becomes(run, status)], worker=worker)
    where = RunFilter(status=("FAILED", "CANCELLED"))
    expected = [run.public_id for n, run in enumerate(runs) if n % 3 != 1][::-1]
    one = await kit.store.runs(where, limit=6, cursor=None)
    two = await kit.store.runs(where, limit=6, cursor=one.next)
    assert [run.public_id for run in one.items + two.items] == expected[:12]
    back = await kit.store.runs(where, limit=6, cursor=two.prev)
    assert back.items == one.items


async def test_a_list_is_limited_to_a_time_range(kit: Kit) -> None:
    for _ in range(20):
        await kit.start(10)
        kit.clock.move(HOUR)
    since = kit.clock.now() - 3 * HOUR
    assert len(await listed(kit, 500, since=since)) == 30
    assert len(await listed(kit, 500, since=0)) == 200
    assert len(await listed(kit, 500, until=since)) == 170
    assert await listed(kit, 500, until=kit.clock.now() - 20 * HOUR) == []
    between = RunFilter(since=since - HOUR, until=since)
    page = await kit.store.runs(between, limit=6, cursor=None)
    rest = await kit.store.runs(between, limit=6, cursor=page.next)
    assert (len(page.items), len(rest.items), rest.next) == (6, 4, None)
    assert (await kit.store.runs(between, limit=6, cursor=rest.prev)).items == page.items


async def test_runs_by_id_returns_existing_runs_with_payloads(kit: Kit) -> None:
    ids = await kit.start(3, input='{"n":1}')
    found = await kit.store.runs_by_id([*ids[:2], "unknown"])
    assert {(run.public_id, run.input) for run in found} == {(ids[0], '{"n":1}'), (ids[1], '{"n":1}')}
    assert await kit.store.runs_by_id([]) == []


async def test_unknown_ids_return_none_or_nothing(kit: Kit) -> None:
    assert await kit.store.run("unknown") is None
    assert await kit.store.letter("unknown") is None
    assert await kit.store.letter_of(12345) is None
    assert await kit.store.journal(12345) == []
    assert await kit.store.attempts(12345) == []


# -- filters of letters --------------------------------------------------------------------------------


async def test_each_filter_of_letters_filters(kit: Kit) -> None:
    (plain,) = await letters(kit)
    kit.clock.move(SECOND)
    (other,) = await letters(
        kit,
        tenant="t",
        workflow="v",
        fails={
            "code": "timeout",
            "stage": "output",
            "category": "network",
            "step": "ship",
            "fingerprint": "f2",
            "reason": Reason(ReasonCode.TEXT, text=r"100% of_it \ failed").to_text(),
            "message": 'no such "customer": Łódź',
        },
        correlation_id="order-17",
        index=(("email", "ann@example.org"),),
    )
    sealed = kit.kind == "sqlite-sealed"
    texts = ("100% of_it \\", "%", "_", "OF_IT", 'Such "Cust', "Łódź", "DER-1", *(() if sealed else ("@EXAMPLE.",)))
    for where in (
        {"tenant": "t"},
        {"workflow": "v"},
        {"code": "timeout"},
        {"stage": "output"},
        {"category": "network"},
        {"step": "ship"},
        {"fingerprint": "f2"},
        {"since": kit.clock.now()},
        *({"text": text} for text in texts),
    ):
        assert await listed_letters(kit, **where) == [other], where
        assert await kit.store.total(LetterFilter(**where)) == ListTotal(1), where
    assert await listed_letters(kit, until=kit.clock.now()) == [plain]
    assert await listed_letters(kit, status="OPEN") == [other, plain]
    assert await listed_letters(kit, status=["OPEN", LetterStatus.RESOLVED]) == [other, plain]
    assert await listed_letters(kit, status="RESOLVED") == []
    assert await listed_letters(kit, owner="ann") == []
    with pytest.raises(InputError, match="OPEN"):
        await listed_letters(kit, status="RUNNING")


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pages search three rows at a time, totals five, and treat more than one run as many."""
    monkeypatch.setattr("redrive.store.list_query.MAX_SCANNED", 3)
    monkeypatch.setattr("redrive.store.list_query.MAX_SCANNED_FOR_TOTAL", 5)
    monkeypatch.setattr("redrive.store.list_query.POPULAR_ABOVE", 1)


async def scattered(kit: Kit) -> list[str]:
    """Create fourteen letters, four of them with a different code; return those four, newest first."""
    found = []
    for count in (1, 5, 0, 4):
        found += await letters(kit, 1, fails={"code": "timeout"}, tenant="t")
        if count:
            await letters(kit, count, tenant="t")
    return found[::-1]


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("more", [{}, {"status": "OPEN"}, {"tenant": "t"}, {"status": ["OPEN", "IGNORED"]}])
async def test_a_search_with_few_matches_continues_at_its_cursor(kit: Kit, more: dict) -> None:
    wanted = await scattered(kit)
    where = LetterFilter(code="timeout", **more)
    assert not (await kit.store.total(where)).exact
    page = await kit.store.letters(where, limit=2, cursor=None)
    assert (page.items, page.prev) == ([], None), "the three newest letters do not match"
    pages = [page]
    while pages[-1].next is not None:
        pages.append(await kit.store.letters(where, limit=2, cursor=pages[-1].next))
    assert [each.public_id for each in chain(*(page.items for page in pages))] == wanted
    back = [pages[-1]]
    while back[-1].prev is not None:
        back.append(await kit.store.letters(where, limit=2, cursor=back[-1].prev))
    newer = chain(*(page.items for page in back[:0:-1]))
    assert [each.public_id for each in chain(newer, back[0].items)] == wanted


@pytest.mark.usefixtures("little")
async def test_a_list_is_counted_up_to_a_limit_and_says_whether_the_count_is_exact(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scattered(kit)
    await letters(kit, 2, tenant="u")

    async def total(where: Any) -> tuple[int, bool]:
        found = await kit.store.total(where)
        return found.count, found.exact

    assert await total(LetterFilter()) == (16, True)
    assert await total(LetterFilter(tenant="t")) == (14, True)
    assert await total(LetterFilter(tenant="t", status=["OPEN", "RESOLVED"])) == (14, True)
    assert await total(LetterFilter(status="RESOLVED")) == (0, True)
    monkeypatch.setattr("redrive.store.list_query.MAX_SCANNED_FOR_TOTAL", 20)
    assert await total(LetterFilter(code="timeout")) == (4, True), "a total looks at more rows than a page"
    monkeypatch.setattr("redrive.store.list_query.MAX_SCANNED_FOR_TOTAL", 5)
    assert await total(LetterFilter(since=kit.clock.now() + HOUR)) == (0, True)
    assert await total(RunFilter(status="DLQ_PENDING")) == (16, True)
    assert await total(RunFilter(tenant="u")) == (2, True)
    count, exact = await total(LetterFilter(tenant="t", code="timeout"))
    assert (count < 4, exact) == (True, False), "no index has the code, and three rows are searched"
    assert (await total(AuditFilter(tenant="nowhere"))) == (0, True)
    monkeypatch.setattr("redrive.store.list_query.MAX_COUNTED", 14)
    assert await total(LetterFilter(tenant="t")) == (14, True)
    assert await total(LetterFilter()) == (14, False)
    assert (await kit.store.tenant_view("u", None).total(LetterFilter())).count == 2


async def test_references_are_found_by_their_beginning(kit: Kit) -> None:
    for tenant, reference in (("t", "order-17"), ("t", "order-17"), ("t", "order-18"), ("u", "order-19"), ("t", "o")):
        await kit.start(tenant=tenant, correlation_id=reference)
    await kit.start(tenant="t")
    assert await kit.store.references("order-1", tenant=None, most=9) == ["order-17", "order-18", "order-19"]
    assert await kit.store.references("order-1", tenant=None, most=1) == ["order-17"]
    assert await kit.store.references("order%", tenant=None, most=9) == []
    view = kit.store.tenant_view("t", None)
    assert await view.references("order-", tenant=None, most=9) == ["order-17", "order-18"]
    assert await view.references("order-", tenant="u", most=9) == []
    assert await kit.store.tenant_view("t", ["w"]).references("order-", tenant=None, most=9) == []


@pytest.mark.usefixtures("little")
async def test_a_full_page_ends_at_its_last_match(kit: Kit) -> None:
    await scattered(kit)
    newest = await letters(kit, 3, fails={"code": "timeout"})
    page = await kit.store.letters(LetterFilter(code="timeout"), limit=2, cursor=None)
    assert [each.public_id for each in page.items] == newest[:0:-1]
    rest = await kit.store.letters(LetterFilter(code="timeout"), limit=2, cursor=page.next)
    assert rest.items[0].public_id == newest[0]


@pytest.mark.usefixtures("little")
async def test_a_bulk_action_searches_all_letters_a_few_at_a_time(kit: Kit) -> None:
    wanted = await scattered(kit)
    new = NewBulk(public_id="s", tenant="", action="IGNORE", by="ann", where=LetterFilter(code="timeout"))
    await kit.store.create_bulk(new, AuditWrite(event="e", tenant="", by="ann", subject="s", token="t"))
    row = await kit.store.claim_bulk(DAY)
    assert row is not None
    found: list[str] = []
    while (items := await kit.store.advance(row, (), limit=10, lease=DAY)) is not None:
        found = [item.letter for item in items]
        if len(found) == len(wanted) and (await kit.store.bulk_by_id("s")).listed:
            break
    assert found == wanted[::-1]


@pytest.mark.usefixtures("little")
async def test_letters_of_runs_with_a_frequent_value_are_searched(kit: Kit) -> None:
    wanted = await letters(kit, 2, index=(("country", "PL"),))
    await letters(kit, 5, index=(("country", "DE"),))
    (rare,) = await letters(kit, 1, index=(("country", "PL"), ("order", "7")))
    found, cursor = [], None
    for _ in range(9):
        page = await kit.store.letters(LetterFilter(index={"country": "PL"}), limit=5, cursor=cursor)
        found += [each.public_id for each in page.items]
        if (cursor := page.next) is None:
            break
    assert found == [rare, *wanted[::-1]]
    assert await listed_letters(kit, index={"order": "7"}) == [rare]
    assert await kit.store.count_letters(LetterFilter(index={"country": "PL"})) == 3


@pytest.mark.usefixtures("little")
async def test_a_search_among_runs_and_audit_lines_continues_at_its_cursor(kit: Kit) -> None:
    wanted = []
    for queue in ("q", "other", "other", "other", "other", "q", "other"):
        (run,) = await kit.start(queue=queue, tenant="t")
        wanted += [run] if queue == "q" else []
        line = AuditWrite(event=f"e.{queue}", tenant="t", by="redrive", subject=run, token=f"t-{run}")
        await kit.store.note([line])
    for where in (RunFilter(queue="q"), RunFilter(tenant="t", queue="q"), RunFilter(workflow="w", queue="q")):
        found = await everything(lambda at, w=where: kit.store.runs(w, limit=1, cursor=at))
        assert [row.public_id for row in found] == wanted[::-1]
    for where in (AuditFilter(event="e.q."), AuditFilter(event="e.q", by="redrive", tenant="t")):
        found = await everything(lambda at, w=where: kit.store.audit(w, limit=1, cursor=at))
        expected = [] if where.event == "e.q." else wanted[::-1]
        assert [row.subject for row in found] == expected


async def everything(page: Callable[[str | None], Awaitable[Page[Any]]]) -> list[Any]:
    """Return all items of a list, page by page, and check that the way back shows each again."""
    found, cursor, seen = [], None, []
    while True:
        one = await page(cursor)
        found += one.items
        seen.append(one)
        if one.next is None:
            break
        cursor = one.next
    back = []
    while one.prev is not None:
        one = await page(one.prev)
        back = [*one.items, *back]
    assert [*back, *seen[-1].items] == found
    return found


@pytest.mark.usefixtures("little")
async def test_many_letters_of_other_tenants_do_not_empty_a_tenant_s_page(kit: Kit) -> None:
    mine = await letters(kit, 2, tenant="a", fails={"fingerprint": "same"})
    await letters(kit, 12, tenant="b", fails={"fingerprint": "same"})
    for more in ({}, {"fingerprint": "same"}, {"workflow": "w"}, {"workflow": "w", "status": "OPEN"}):
        assert await listed_letters(kit, tenant="a", **more) == mine[::-1], more


async def test_letters_page_both_ways(kit: Kit) -> None:
    ids = (await letters(kit, 9))[::-1]
    one = await kit.store.letters(LetterFilter(status="OPEN"), limit=4, cursor=None)
    two = await kit.store.letters(LetterFilter(status="OPEN"), limit=4, cursor=one.next)
    assert [each.public_id for each in one.items + two.items] == ids[:8]
    back = await kit.store.letters(LetterFilter(status="OPEN"), limit=4, cursor=two.prev)
    assert (back.items, back.prev) == (one.items, None)
