"""Bulk actions: one decision on many letters. Each letter is decided on at most once, even after crashes."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from desk_kit import ONCE, Shop, dump, failed, new_app, shop
from engines import OnStore

from redrive import Redrive, RetryPolicy
from redrive.app import Workflow
from redrive.core.states import LetterStatus
from redrive.desk.bulk import BulkAction, DryRunOfMany
from redrive.desk.bulk_execution import BulkWorker
from redrive.desk.models import DeadLetter
from redrive.errors import Conflict, InputError, NotFound, StoreUnavailable
from redrive.store import open_store
from redrive.store.encryption.keyring import Keyring
from redrive.store.filters import AuditFilter, LetterFilter
from redrive.testing import Crash, Engine, engine
from redrive.testing.faulty_store import FAIL, LOSE, Call, Fault, crash_after, crash_before
from redrive.testing.virtual_clock import VirtualClock


@pytest.fixture
async def desk() -> AsyncIterator[tuple[Engine, Shop]]:
    made = shop()
    async with engine(made.app) as e:
        yield e, made


@pytest.fixture
async def each_desk(on_store: OnStore) -> AsyncIterator[tuple[Engine, Shop]]:
    """Yield an engine and a shop on each kind of database."""
    made = shop()
    async with on_store(made.app) as e:
        yield e, made


async def failures(e: Engine, workflow: Workflow[..., Any, Any], count: int, **options: Any) -> list[DeadLetter]:
    """Return the letters of `count` failed orders with different amounts."""
    return [await failed(e, workflow, "tea", amount, **options) for amount in range(count)]


async def carried_out(e: Engine, set: BulkAction) -> BulkAction:
    """Execute the set until every letter is decided on and its runs have ended, and return it."""
    for _ in range(50):
        await e.settle()
        if (await e.app.dlq.set(set.id)).status != "RUNNING":
            break
        await e.advance("5s")
    await e.finish_all()
    return await e.app.dlq.set(set.id)


async def by_status(e: Engine, tenant: str | None = None) -> Counter[str]:
    page = await e.app.dlq.list(LetterFilter(tenant=tenant), limit=500)
    return Counter(str(letter.status) for letter in page.items)


# -- replaying ---------------------------------------------------------------------------------------------


async def test_a_group_is_replayed_as_a_whole(each_desk: tuple[Engine, Shop]) -> None:
    e, made = each_desk
    letters = await failures(e, made.order, 5)
    made.ledger.broken.clear()
    made.ledger.since()
    await e.settle()
    (group,) = (await e.app.dlq.groups()).items
    begun = await e.app.dlq.replay_many(
        LetterFilter(fingerprint=group.fingerprint), by="ann", reason="the bank is back"
    )
    assert (begun.status, begun.action, begun.mode, begun.by) == ("RUNNING", "REPLAY", "FROM_FAILED", "ann")
    set = await carried_out(e, begun)
    assert (set.status, set.total, set.done, set.failed, set.pending) == ("DONE", 5, 5, 0, 0)
    assert await by_status(e) == {"RESOLVED": 5}
    assert Counter(made.ledger.since()) == {"charge": 5, "ship": 5}
    items = (await e.app.dlq.set_items(set.id)).items
    assert {(item.letter_id, item.run_id, str(item.status)) for item in items} == {
        (letter.id, letter.run_id, "DONE") for letter in letters
    }


async def test_letters_are_selected_by_their_ids_or_run_ids(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    first, second, third = await failures(e, made.order, 3)
    made.ledger.broken.clear()
    set = await carried_out(
        e, await e.app.dlq.replay_many([first.id, second.run_id, second.id, "no-such-letter"], by="ann")
    )
    assert (set.status, set.total, set.done, set.failed) == ("DONE", 3, 2, 1)
    (refused,) = (await e.app.dlq.set_items(set.id, status="FAILED")).items
    assert refused.error is not None
    assert (refused.letter_id, "does not exist" in refused.error) == ("no-such-letter", True)
    assert (await e.app.dlq.get(third.id)).status is LetterStatus.OPEN
    assert made.ledger.counts["ship"] == 2


async def test_each_letter_and_the_set_itself_are_audited(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    letters = await failures(e, made.order, 2, tenant="acme")
    set = await carried_out(e, await e.app.dlq.replay_many(LetterFilter(tenant="acme"), by="ann", reason="try again"))
    (line,) = (await e.app.audit.list(AuditFilter(subject=set.id))).items
    assert (line.event, line.by, line.tenant, line.reason) == ("dlq.bulk_started", "ann", "acme", "try again")
    for letter in letters:
        history = (await e.app.dlq.get(letter.id)).history
        assert [(each.event, each.by) for each in history if each.event.startswith("dlq.re")] == [
            ("dlq.retry", "ann"),
            ("dlq.replay_failed", "redrive"),
        ]


async def test_a_patch_that_does_not_fit_is_refused_per_letter_and_the_others_continue() -> None:
    app = new_app()
    amounts: list[int] = []
    broken = [True]

    @app.step(retry=ONCE)
    async def pay(amount: int) -> None:
        if broken[0]:
            raise ConnectionError("the bank is down")
        amounts.append(amount)

    @app.workflow
    async def order(amount: int, note: str) -> None:
        await pay(amount)

    @app.workflow
    async def refund(amount: int) -> None:
        await pay(-amount)

    async with engine(app) as e:
        fitting = [await failed(e, order, number, "x") for number in range(3)]
        other = await failed(e, refund, 1)
        broken.clear()
        broken.append(False)
        set = await carried_out(e, await e.app.dlq.replay_many(LetterFilter(), patch={"note": "late"}, by="ann"))
        assert (set.status, set.total, set.done, set.failed) == ("DONE", 4, 3, 1)
        (refused,) = (await e.app.dlq.set_items(set.id, status="FAILED")).items
        assert refused.letter_id == other.id
        assert refused.error is not None
        assert "note" in refused.error
        assert (await e.app.dlq.get(other.id)).status is LetterStatus.OPEN
        assert sorted(amounts) == [0, 1, 2]
        for letter in fitting:
            assert (await e.app.runs.get(letter.run_id)).input["note"] == "late"


async def test_a_retry_override_and_a_new_run_are_passed_on(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    letters = await failures(e, made.order, 2)
    made.ledger.since()
    begun = await e.app.dlq.replay_many(
        LetterFilter(), mode="FULL", retry=RetryPolicy(max_retries=2, base_delay="1s"), by="ann"
    )
    set = await carried_out(e, begun)
    assert (set.mode, set.done) == ("FULL", 2)
    assert Counter(made.ledger.since()) == {"reserve": 2, "charge": 6}
    items = (await e.app.dlq.set_items(set.id)).items
    assert not {item.run_id for item in items} & {letter.run_id for letter in letters}
    assert await by_status(e) == {"OPEN": 2}


async def test_letters_that_reopen_during_a_set_are_not_replayed_twice(desk: tuple[Engine, Shop]) -> None:
    """Replayed runs fail again while the set is still running. The set replays each letter once."""
    e, made = desk
    await failures(e, made.order, 6)
    made.ledger.since()
    begun = await e.app.dlq.replay_many(LetterFilter(), by="ann")
    worker = slowly(e, 2)
    decide = worker._decide

    async def then_fail(row: Any, items: Any) -> Any:
        marks = await decide(row, items)
        await e.finish_all()
        assert (await by_status(e))["OPEN"] == 6
        return marks[:1]  # the mark of the other letter is lost

    worker._decide = then_fail
    await worker.run_once()
    set = await carried_out(e, begun)
    assert (set.done, set.total) == (6, 6)
    assert Counter(made.ledger.since()) == {"charge": 6}
    assert await by_status(e) == {"OPEN": 6}


def slowly(e: Engine, batch: int, store: Any = None) -> BulkWorker:
    """Return a bulk worker with batches of `batch` letters."""
    worker = e.app.runtime.new_bulk_worker(store or e.store)
    worker._batch = batch
    return worker


async def test_a_letter_decided_on_but_not_marked_before_a_crash_counts_as_done(desk: tuple[Engine, Shop]) -> None:
    """The decision was written, its mark was not, and the replay has failed again in the meantime."""
    e, made = desk
    await failures(e, made.order, 3)
    made.ledger.since()
    begun = await e.app.dlq.replay_many(LetterFilter(), by="ann")
    row = await e.store.claim_bulk(1)
    assert row is not None
    items = await e.store.advance(row, (), limit=2, lease=1)
    assert items is not None
    marks = await slowly(e, 2)._decide(row, items)
    assert len(marks) == 2  # these marks are lost
    await e.finish_all()
    await e.advance("1s")
    set = await carried_out(e, begun)
    assert (set.done, set.failed) == (3, 0)
    assert Counter(made.ledger.since()) == {"charge": 3}


async def test_two_nodes_at_once_replay_each_letter_once(each_desk: tuple[Engine, Shop]) -> None:
    e, made = each_desk
    await failures(e, made.order, 10)
    made.ledger.broken.clear()
    made.ledger.since()
    one = await e.app.dlq.replay_many(LetterFilter(), by="ann")
    two = await e.app.dlq.replay_many(LetterFilter(), by="bob")
    await asyncio.gather(*(slowly(e, 3).run_once() for _ in range(4)))
    first, second = await carried_out(e, one), await carried_out(e, two)
    assert (first.status, second.status) == ("DONE", "DONE")
    assert first.done + first.failed == first.total
    assert second.done + second.failed == second.total
    assert first.total + second.total >= 10, "letters of the first set may be closed before the second set lists them"
    assert Counter(made.ledger.since()) == {"charge": 10, "ship": 10}
    assert await by_status(e) == {"RESOLVED": 10}


# -- crashes -----------------------------------------------------------------------------------------------


def at_call(number: int, fault: Fault, seen: list[str]) -> Callable[[Call], Fault | None]:
    """Return a plan with one fault, at the call `number` of the bulk worker, counted over restarts."""

    def plan(call: Call) -> Fault | None:
        if call.name not in {"claim_bulk", "advance", "cases", "apply", "known"}:
            return None
        seen.append(call.name)
        return fault if len(seen) == number else None

    return plan


FAULTS = {
    "before": lambda: crash_before(Crash()),
    "after": lambda: crash_after(Crash()),
    "lost": lambda: LOSE,
    "refused": lambda: FAIL,
}
# A crash before a call equals a crash after the previous call, so the normal test run leaves it out.
MOST_FAULTS = [pytest.param("before", marks=pytest.mark.slow), "after", "lost", "refused"]


async def replayed_with(
    fault: Fault | None,
    number: int,
    action: str,
    *,
    opened: OnStore = engine,
    clock: VirtualClock | None = None,
    tenant: str = "default",
    rate: str | None = None,
) -> list[str]:
    """Execute a set of four letters with a fault at one call, and return the calls that were made."""
    seen: list[str] = []
    plan = at_call(number, fault or LOSE, seen)
    armed = [False]
    made = shop()
    async with opened(made.app, plan=lambda call: plan(call) if armed[0] else None, clock=clock) as e:
        letters = await failures(e, made.order, 4, tenant=tenant)
        made.ledger.broken.clear()
        made.ledger.since()
        if action == "REPLAY":
            begun = await e.app.dlq.replay_many(LetterFilter(tenant=tenant), by="ann", rate=rate)
        else:
            begun = await e.app.dlq.resolve_many(LetterFilter(tenant=tenant), by="ann")
        armed[0] = True
        set = await carried_out(e, begun)
        assert (set.status, set.total, set.done, set.failed) == ("DONE", 4, 4, 0), (number, fault)
        assert await by_status(e, tenant) == {"RESOLVED": 4}
        if action == "REPLAY":
            assert made.ledger.counts["ship"] >= 4
            assert made.ledger.keys("ship") == list(dict.fromkeys(made.ledger.keys("ship")))
            assert len(made.ledger.keys("ship")) == 4
            replays = [(await e.app.dlq.get(letter.id)).replays for letter in letters]
            assert [[replay.outcome for replay in each] for each in replays] == [["SUCCESS"]] * 4
        else:
            noted = AuditFilter(event="dlq.resolved", tenant=tenant)
            assert len((await e.app.audit.list(noted)).items) == 4
            assert made.ledger.since() == []
    return seen


CRASHES = ["after", *(pytest.param(each, marks=pytest.mark.slow) for each in ("before", "lost", "refused"))]
"""A crash after each call, for variants of an action that is tried with every fault; the others in `./dev prove`."""


@pytest.mark.parametrize("manner", MOST_FAULTS)
@pytest.mark.heavy
async def test_a_fault_at_every_call_of_a_replay_of_a_set_leaves_each_letter_decided_on_once(manner: str) -> None:
    await replay_with_faults(manner, "REPLAY")


@pytest.mark.parametrize("manner", CRASHES)
@pytest.mark.heavy
async def test_a_fault_at_every_call_that_resolves_a_set_leaves_each_letter_decided_on_once(manner: str) -> None:
    await replay_with_faults(manner, "RESOLVE")


async def replay_with_faults(manner: str, action: str) -> None:
    """Decide on a set as often as it makes calls, each time with a fault at another call."""
    calls = await replayed_with(None, -1, action)
    assert {"claim_bulk", "advance", "cases", "apply"} <= {*calls}
    last = max(number for number, call in enumerate(calls, 1) if call in ("advance", "claim_bulk"))
    for number in range(1, last + 1):
        await replayed_with(FAULTS[manner](), number, action)


@pytest.mark.parametrize("manner", CRASHES)
@pytest.mark.heavy
async def test_a_fault_at_every_call_of_a_set_with_a_rate_leaves_each_letter_decided_on_once(manner: str) -> None:
    calls = await replayed_with(None, -1, "REPLAY", rate="10/s")
    last = max(number for number, call in enumerate(calls, 1) if call == "advance")
    assert calls.count("cases") >= 2  # two portions
    for number in range(1, last + 1):
        await replayed_with(FAULTS[manner](), number, "REPLAY", rate="10/s")


@pytest.mark.parametrize("manner", CRASHES)
async def test_a_fault_at_every_call_of_a_set_on_postgres_leaves_each_letter_decided_on_once(
    on_postgres: OnStore, manner: str
) -> None:
    """All rounds share one database: each has its own tenant, and the clock is not reset."""
    clock = VirtualClock()

    async def with_fault(number: int) -> list[str]:
        place = {"opened": on_postgres, "clock": clock, "tenant": f"t{number}"}
        return await replayed_with(FAULTS[manner](), number, "REPLAY", **place)

    calls = await with_fault(0)
    assert {"claim_bulk", "advance", "cases", "apply"} <= {*calls}
    last = max(number for number, call in enumerate(calls, 1) if call == "advance")
    for number in range(1, last + 1):
        await with_fault(number)


async def test_a_store_outage_delays_a_set(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    await failures(e, made.order, 1)
    begun = await e.app.dlq.replay_many(LetterFilter(), by="ann")

    class Silent:
        def __getattr__(self, name: str) -> Any:
            return getattr(e.store, name)

        async def cases(self, ids: Any) -> Any:
            raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        await slowly(e, 1, Silent()).run_once()
    now = await e.app.dlq.set(begun.id)
    assert (now.status, now.done, now.failed) == ("RUNNING", 0, 0)
    await e.advance("1m")
    assert (await carried_out(e, begun)).done == 1


async def test_a_due_set_is_polled_with_pauses_during_a_store_outage(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    await failures(e, made.order, 2)
    await e.app.dlq.resolve_many(LetterFilter(), by="ann", rate="1/s")
    away = [False]

    class Store:
        def __getattr__(self, name: str) -> Any:
            if away[0] and name == "claim_bulk":
                raise StoreUnavailable("no answer")
            return getattr(e.store, name)

    node = slowly(e, 300, Store())
    await node.run_once()
    assert node.pause(5.0) == pytest.approx(1.0)
    e.clock.move_to(e.clock.now() + 2_000_000)
    assert node.pause(5.0) == 0.0
    away[0] = True
    with pytest.raises(StoreUnavailable):
        await node.run_once()
    assert node.pause(5.0) == 5.0


# -- closing, stopping, progress ---------------------------------------------------------------------------


@pytest.mark.parametrize("status", [LetterStatus.RESOLVED, LetterStatus.IGNORED])
async def test_many_letters_are_closed(desk: tuple[Engine, Shop], status: LetterStatus) -> None:
    e, made = desk
    letters = await failures(e, made.order, 3)
    close = e.app.dlq.resolve_many if status is LetterStatus.RESOLVED else e.app.dlq.ignore_many
    await e.app.dlq.resolve(letters[0].id, by="bob")
    begun = await close([letter.id for letter in letters], by="ann", reason="paid by hand")
    set = await carried_out(e, begun)
    fits = status is LetterStatus.RESOLVED
    assert (set.done, set.failed, set.mode) == (3, 0, None) if fits else (2, 1, None)
    for letter in letters[1:]:
        now = await e.app.dlq.get(letter.id)
        assert (now.status, now.closed_by, now.resolution) == (status, "ann", "paid by hand")
        assert str((await e.app.runs.get(letter.run_id)).status) == "FAILED"
    assert (await e.app.dlq.get(letters[0].id)).closed_by == "bob"


async def test_a_stopped_set_decides_on_nothing_more(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    await failures(e, made.order, 6)
    made.ledger.since()
    begun = await e.app.dlq.replay_many(LetterFilter(), by="ann")
    worker = slowly(e, 2)
    decide = worker._decide

    async def then_stop(row: Any, items: Any) -> Any:
        marks = await decide(row, items)
        await e.app.dlq.stop_set(begun.id, by="bob")
        return marks

    worker._decide = then_stop
    await worker.run_once()
    set = await carried_out(e, begun)
    assert (set.status, set.done, set.pending, set.stopped_by) == ("STOPPED", 2, 4, "bob")
    assert Counter(made.ledger.since()) == {"charge": 2}
    assert (await e.app.dlq.stop_set(begun.id, by="cid")).stopped_by == "bob"
    events = [line.event for line in (await e.app.audit.list(AuditFilter(subject=begun.id))).items]
    assert events == ["dlq.bulk_stopped", "dlq.bulk_started"]


async def test_a_paused_set_waits_over_restarts_until_it_is_resumed(each_desk: tuple[Engine, Shop]) -> None:
    e, made = each_desk
    await failures(e, made.order, 6)
    made.ledger.broken.clear()
    made.ledger.since()
    begun = await e.app.dlq.replay_many(LetterFilter(), by="ann")
    worker = slowly(e, 2)
    decide = worker._decide

    async def then_pause(row: Any, items: Any) -> Any:
        marks = await decide(row, items)
        await e.app.dlq.pause_set(begun.id, by="bob")
        return marks

    worker._decide = then_pause
    await worker.run_once()
    await e.crash()
    await e.advance("1h")
    await e.restart()
    await e.advance("1h")
    set = await e.app.dlq.set(begun.id)
    assert (set.status, set.done, set.pending, set.paused_by, set.ended_at) == ("PAUSED", 2, 4, "bob", None)
    assert set.paused_at is not None
    assert Counter(made.ledger.since()) == {"charge": 2, "ship": 2}
    assert (await e.app.dlq.pause_set(begun.id, by="cid")).paused_by == "bob"
    resumed = await e.app.dlq.resume_set(begun.id, by="dan")
    assert (resumed.status, resumed.paused_by, resumed.paused_at) == ("RUNNING", None, None)
    ended = await carried_out(e, begun)
    assert (ended.status, ended.done) == ("DONE", 6)
    assert Counter(made.ledger.since()) == {"charge": 4, "ship": 4}
    log = (await e.app.audit.list(AuditFilter(subject=begun.id))).items
    assert [(line.event, line.by) for line in log] == [
        ("dlq.bulk_resumed", "dan"),
        ("dlq.bulk_paused", "bob"),
        ("dlq.bulk_started", "ann"),
    ]


async def test_a_rate_holds_over_all_nodes_together_and_can_be_changed(each_desk: tuple[Engine, Shop]) -> None:
    """Three nodes poll without a pause. They decide on at most five letters in any second."""
    e, made = each_desk
    await failures(e, made.order, 40)
    begun = await e.app.dlq.resolve_many(LetterFilter(), by="ann", rate="5/s")
    assert (begun.rate, begun.total, begun.seconds_left) == ("5/s", 0, 0)
    nodes = [slowly(e, 300) for _ in range(3)]

    async def pass_by(seconds: float) -> int:
        for _ in range(int(seconds * 10)):
            for node in nodes:
                await node.run_once()
            e.clock.move_to(e.clock.now() + 100_000)
        return (await e.app.dlq.set(begun.id)).done

    assert await pass_by(4) == 20
    now = await e.app.dlq.set(begun.id)
    assert (now.status, now.pending, now.seconds_left) == ("RUNNING", 20, 4.0)
    slower = await e.app.dlq.rate_set(begun.id, "1/m", by="bob")
    assert (slower.rate, slower.seconds_left) == ("1/m", 20 * 60)
    assert await pass_by(10) == 21
    await e.app.dlq.rate_set(begun.id, "10 per second", by="bob")
    assert await pass_by(2.5) == 40
    ended = await e.app.dlq.set(begun.id)
    assert (ended.status, ended.rate, ended.seconds_left) == ("DONE", "10/s", None)
    items = (await e.app.dlq.set_items(begun.id, limit=100)).items
    slow = sorted(item.at for item in items if item.at is not None)[:20]
    assert all((later - first).total_seconds() >= 1 for first, later in zip(slow, slow[5:], strict=False))
    (line, *_) = (await e.app.audit.list(AuditFilter(subject=begun.id))).items
    assert (line.event, line.by, line.before, line.after) == (
        "dlq.bulk_rate_changed",
        "bob",
        {"rate": "1/m"},
        {"rate": "10/s"},
    )


async def test_a_slow_batch_is_not_followed_by_the_next_one_at_once(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    await failures(e, made.order, 4)
    begun = await e.app.dlq.resolve_many(LetterFilter(), by="ann", rate="5/s")
    worker = slowly(e, 300)
    decide = worker._decide

    async def slow(row: Any, items: Any) -> Any:
        e.clock.move_to(e.clock.now() + 150_000)
        worker._decide = decide
        return await decide(row, items)

    worker._decide = slow
    for _ in range(100):
        await worker.run_once()
        e.clock.move_to(e.clock.now() + 10_000)
    items = (await e.app.dlq.set_items(begun.id)).items
    times = sorted(item.at.timestamp() for item in items if item.at is not None)
    apart = [round(later - first, 3) for first, later in itertools.pairwise(times)]
    assert (len(times), min(apart)) == (4, 0.2)


async def test_a_set_continues_at_its_rate_as_time_passes(desk: tuple[Engine, Shop]) -> None:
    """The bulk worker sleeps from batch to batch and does not poll in between."""
    e, made = desk
    await failures(e, made.order, 6)
    made.ledger.broken.clear()
    begun = await e.app.dlq.replay_many(LetterFilter(), by="ann", rate="2/m")
    await e.settle()
    assert (await e.app.dlq.set(begun.id)).done == 1
    await e.advance("59s")
    assert (await e.app.dlq.set(begun.id)).done == 2
    await e.advance("2m")
    ended = await e.app.dlq.set(begun.id)
    assert (ended.status, ended.done, ended.succeeded) == ("DONE", 6, 6)


async def test_the_runs_of_a_set_are_counted_only_when_the_set_itself_is_read(desk: tuple[Engine, Shop]) -> None:
    """Lists and actions do not count the runs, because counting is slow for a large set."""
    e, made = desk
    await failures(e, made.order, 4)
    made.ledger.broken.clear()
    begun = await e.app.dlq.replay_many(LetterFilter(), by="ann", rate="1/m")
    await e.settle()
    (listed,) = (await e.app.dlq.sets()).items
    paused = await e.app.dlq.pause_set(begun.id, by="ann")
    resumed = await e.app.dlq.resume_set(begun.id, by="ann")
    for one in (listed, paused, resumed):
        assert (one.done, one.succeeded, one.failed_again, one.still_going) == (1, None, None, None)
    found = await e.app.dlq.set(begun.id)
    assert (found.succeeded, found.failed_again, found.still_going) == (1, 0, 0)


async def test_a_finished_set_cannot_be_paused_resumed_or_given_a_rate(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    await failures(e, made.order, 1)
    done = await carried_out(e, await e.app.dlq.ignore_many(LetterFilter(), by="ann"))
    stopped = await e.app.dlq.ignore_many(LetterFilter(), by="ann")
    await e.app.dlq.pause_set(stopped.id, by="ann")
    stopped = await e.app.dlq.stop_set(stopped.id, by="bob")
    assert (stopped.status, stopped.paused_by) == ("STOPPED", None)
    for id, why in ((done.id, "is finished"), (stopped.id, "was stopped by bob")):
        for call in (e.app.dlq.pause_set(id), e.app.dlq.rate_set(id, "5/s")):
            with pytest.raises(Conflict, match=why):
                await call
    with pytest.raises(Conflict, match="is finished"):
        await e.app.dlq.resume_set(done.id)
    with pytest.raises(InputError, match="not a rate"):
        await e.app.dlq.rate_set(done.id, "fast")


async def test_a_stopped_set_is_resumed_for_the_rest_and_decides_on_each_letter_once(
    each_desk: tuple[Engine, Shop],
) -> None:
    e, made = each_desk
    letters = await failures(e, made.order, 3)
    where = LetterFilter(workflow="order", code=letters[0].code, since=0)
    begun = await e.app.dlq.ignore_many(where, by="ann", rate="1/s")
    await e.advance("1s")
    stopped = await e.app.dlq.stop_set(begun.id, by="bob")
    assert (stopped.status, 0 < stopped.done < 3) == ("STOPPED", True)
    for _ in range(2):  # a repeat changes nothing
        resumed = await e.app.dlq.resume_set(begun.id, by="dan")
        assert (resumed.status, resumed.ended_at, resumed.stopped_by) == ("RUNNING", None, None)
    ended = await carried_out(e, resumed)
    assert (ended.status, ended.done, ended.failed) == ("DONE", 3, 0)
    assert ended.filter == {"workflow": "order", "code": letters[0].code, "since": "1970-01-01T00:00:00+00:00"}
    for letter in letters:
        events = [line.event for line in (await e.app.dlq.get(letter.id)).history]
        assert events.count("dlq.skipped") == 1
    noted = (await e.app.audit.list(AuditFilter(subject=begun.id, event="dlq.bulk_resumed"))).items
    assert [(line.by, line.before) for line in noted] == [("dan", {"status": "STOPPED"})]


async def test_a_set_that_is_done_cannot_be_stopped(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    await failures(e, made.order, 1)
    set = await carried_out(e, await e.app.dlq.ignore_many(LetterFilter(), by="ann"))
    with pytest.raises(Conflict, match="is finished"):
        await e.app.dlq.stop_set(set.id, by="ann")


async def test_a_dry_run_counts_shows_and_refuses_and_changes_nothing(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    letters = await failures(e, made.order, 7)
    await e.app.dlq.resolve(letters[0].id, by="bob")
    await e.settle()
    before = await dump(e)
    found = await e.app.dlq.replay_many(LetterFilter(), dry_run=True, by="ann")
    assert isinstance(found, DryRunOfMany)
    assert (found.total, found.checked, len(found.sample), found.refused) == (6, 6, 5, ())
    assert {step.name for step in found.sample[0].again} == {"charge"}
    named = await e.app.dlq.replay_many([letters[0].id, letters[1].id], dry_run=True, by="ann")
    assert isinstance(named, DryRunOfMany)
    assert (named.total, [each.letter_id for each in named.refused]) == (2, [letters[0].id])
    patched = await e.app.dlq.replay_many(LetterFilter(), patch={"colour": "red"}, dry_run=True, by="ann")
    assert isinstance(patched, DryRunOfMany)
    assert (len(patched.refused), patched.sample) == (6, ())
    assert "colour" in patched.refused[0].reason
    assert await dump(e) == before


async def test_tenants_are_kept_apart(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    (ours,) = await failures(e, made.order, 1, tenant="acme")
    (theirs,) = await failures(e, made.order, 1, tenant="globex")
    set = await carried_out(
        e, await e.app.dlq.ignore_many([ours.id, theirs.id, theirs.run_id], by="ann", tenant="acme")
    )
    assert (set.done, set.failed, set.tenant) == (1, 1, "acme")
    assert (await e.app.dlq.get(theirs.id)).status is LetterStatus.OPEN
    theirs_to_change = (e.app.dlq.stop_set, e.app.dlq.pause_set, e.app.dlq.resume_set)
    for look in (e.app.dlq.set, e.app.dlq.set_items, *theirs_to_change):
        with pytest.raises(NotFound):
            await look(set.id, tenant="globex")
    scoped = await carried_out(e, await e.app.dlq.ignore_many(LetterFilter(), by="ann", tenant="acme"))
    assert (scoped.total, scoped.tenant) == (0, "acme")


@pytest.mark.parametrize(
    ("letters", "options", "says"),
    [
        ("dl-1", {}, "list of ids"),
        ([], {}, "give 1 to"),
        ([7], {}, "not the id"),
        (LetterFilter(status="RESOLVED"), {}, "only open failures"),
        (LetterFilter(tenant="a"), {"tenant": "b"}, "tenant"),
        (LetterFilter(), {"mode": "SIDEWAYS"}, "replay mode 'SIDEWAYS' does not exist"),
        (LetterFilter(), {"by": ""}, "by must be"),
        (LetterFilter(), {"patch": [1]}, "patch must be an object"),
        (LetterFilter(), {"rate": "fast"}, "not a rate"),
        (LetterFilter(), {"rate": "0/s"}, "pause the bulk action"),
    ],
)
async def test_invalid_options_are_refused_before_the_set_starts(
    desk: tuple[Engine, Shop], letters: Any, options: dict[str, Any], says: str
) -> None:
    e, _ = desk
    with pytest.raises(InputError, match=says):
        await e.app.dlq.replay_many(letters, **{"by": "ann", **options})
    assert await e.fetch("SELECT * FROM bulk_actions") == []


async def test_invalid_queries_are_refused(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    await failures(e, made.order, 1)
    begun = await e.app.dlq.ignore_many(LetterFilter(), by="ann")
    with pytest.raises(NotFound, match="does not exist"):
        await e.app.dlq.set("nonsense")
    with pytest.raises(InputError, match="PENDING, DONE, FAILED"):
        await e.app.dlq.set_items(begun.id, status="ODD")


# -- encrypted and large bulk actions ------------------------------------------------------------------------------


async def test_encrypted_letters_are_edited_and_replayed_and_no_payload_is_stored_in_plain_text() -> None:
    made = shop()
    clock = VirtualClock(seed=0)
    store = open_store("sqlite:///:memory:", clock, Keyring([bytes(32)]))
    async with engine(made.app, store=store, clock=clock) as e:
        await failures(e, made.order, 2)
        made.ledger.broken.clear()
        set = await carried_out(
            e, await e.app.dlq.replay_many(LetterFilter(), patch={"item": "coffee from 4711"}, by="ann")
        )
        assert (set.status, set.done, set.mode) == ("DONE", 2, "FROM_FAILED")
        odd = await carried_out(e, await e.app.dlq.replay_many(["dl-4711"], by="ann"))
        (item,) = (await e.app.dlq.set_items(odd.id)).items
        assert item.error is not None
        assert "does not exist" in item.error
        for table in ("bulk_actions", "bulk_items", "replays", "inputs"):
            for row in await e.fetch(f"SELECT * FROM {table}"):
                texts = {name: value for name, value in row.items() if name != "letter"}
                assert "4711" not in str(texts), table


def bulk_app() -> tuple[Redrive, Workflow[..., Any, Any], Counter[int], list[bool]]:
    app = new_app(concurrency=500)
    shipped: Counter[int] = Counter()
    broken = [True]

    @app.step(retry=ONCE)
    async def ship(number: int) -> int:
        if broken:
            raise ConnectionError("the carrier is down")
        shipped[number] += 1
        return number

    @app.workflow
    async def parcel(number: int) -> int:
        return await ship(number)

    return app, parcel, shipped, broken


@pytest.mark.heavy
async def test_two_thousand_letters_end_to_end() -> None:
    app, parcel, shipped, broken = bulk_app()
    async with engine(app, patience="120s") as e:
        await parcel.start_many([(number,) for number in range(2000)])
        await e.finish_all()
        broken.clear()
        begun = await e.app.dlq.replay_many(LetterFilter(workflow="parcel"), by="ann")
        await e.settle()
        await e.finish_all()
        ended = await e.app.dlq.set(begun.id)
        assert (ended.status, ended.total, ended.done, ended.failed) == ("DONE", 2000, 2000, 0)
        assert len(shipped) == 2000
        assert set(shipped.values()) == {1}
        await e.settle()
        (group,) = (await e.app.dlq.groups(status=None)).items
        assert (group.open, group.total, sum(group.trend)) == (0, 2000, 2000)


async def test_an_empty_tenant_name_is_refused(desk: tuple[Engine, Shop]) -> None:
    e, _ = desk
    with pytest.raises(InputError, match="tenant must be a text"):
        await e.app.dlq.resolve_many(["dl-1"], tenant="")


async def test_a_set_does_not_reveal_whether_a_guessed_secret_is_right(desk: tuple[Engine, Shop]) -> None:
    """Workers execute bulk actions without knowing which fields the user who started one may see."""
    e, made = desk
    (letter,) = await failures(e, made.order, 1)
    await e.app.workflows.pause("order", by="ann")
    await e.app.dlq.replay(letter.id, patch={"amount": 42}, by="ann")
    refused = []
    for by, guess in (("eve", 42), ("eve", 43), ("ann", 42)):
        begun = await e.app.dlq.replay_many([letter.id], patch={"amount": guess}, by=by)
        await e.settle()
        found = await e.app.dlq.set(begun.id)
        assert (found.done, found.failed) == ((1, 0) if by == "ann" else (0, 1))
        refused += [each.error for each in (await e.app.dlq.set_items(begun.id)).items if by == "eve"]
    assert refused[0] == refused[1]
