"""Threads of the SQLite store: event loops, cancellation, closing, and the order of writers."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from outbox_kit import LEASE, Outbox
from store_kit import SECOND, HandClock, Kit, entry, noted, writes

from redrive.core.run_options import StepOptions
from redrive.core.states import StepStatus
from redrive.errors import StoreError, StoreUnavailable
from redrive.store import open_store
from redrive.store.filters import RunFilter
from redrive.store.sqlite import connection
from redrive.store.sqlite.connection_threads import FairLock


async def count(kit: Kit) -> int:
    return len((await kit.store.runs(RunFilter(), limit=500, cursor=None)).items)


async def test_the_event_loop_is_free_while_the_file_is_busy(on_file: Kit, tmp_path: Path) -> None:
    rude = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None, check_same_thread=False)
    rude.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(on_file.start())
    began = time.perf_counter()
    await asyncio.sleep(0.05)
    assert time.perf_counter() - began < 1
    assert not waiting.done()
    rude.execute("COMMIT")
    await waiting
    rude.close()


async def test_a_write_that_waited_for_the_lock_has_the_time_when_it_got_it(on_file: Kit, tmp_path: Path) -> None:
    """Otherwise a step could be past its limit when its begin is written, and be taken from a healthy worker."""
    worker, run = await on_file.held()
    rude = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None, check_same_thread=False)
    rude.execute("BEGIN IMMEDIATE")
    begins = writes(run, entry(status=StepStatus.RUNNING, limit_in=3 * SECOND, options=StepOptions().to_json()))
    waiting = asyncio.create_task(on_file.store.apply([begins], worker=worker))
    await asyncio.sleep(0.05)
    on_file.clock.move(5 * SECOND)
    rude.execute("COMMIT")
    rude.close()
    (answer,) = await waiting
    (row,) = await on_file.store.journal(run.id)
    assert (answer.kept, answer.now) == (True, on_file.clock.now())
    assert (row.began_at, row.limit_at) == (on_file.clock.now(), on_file.clock.now() + 3 * SECOND)


async def test_a_relay_with_nothing_to_claim_does_not_wait_for_the_write_lock(on_file: Kit, tmp_path: Path) -> None:
    outbox = await Outbox.open(on_file)
    rude = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None)
    rude.execute("BEGIN IMMEDIATE")
    assert (await outbox.claim()).items == ()  # a call that needed the lock would be refused, because the file is busy
    rude.close()


async def test_a_claim_that_waited_for_the_write_lock_has_its_whole_lease(on_file: Kit, tmp_path: Path) -> None:
    outbox = await Outbox.open(on_file)
    await outbox.say("m1")
    rude = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None, check_same_thread=False)
    rude.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(outbox.claim())
    await asyncio.sleep(0.05)
    on_file.clock.move(5 * SECOND)
    rude.execute("COMMIT")
    rude.close()
    assert (await waiting).now == on_file.clock.now()
    (delivery,) = (await outbox.message("m1")).deliveries
    assert delivery.lease_until == on_file.clock.now() + LEASE


async def test_a_cancelled_caller_does_not_interrupt_its_running_call(on_file: Kit) -> None:
    gate = threading.Event()
    lines = on_file.store._connections
    blocked = asyncio.create_task(lines.run_on_writer(lambda con: gate.wait(5)))
    await asyncio.sleep(0.02)
    queued = asyncio.create_task(on_file.start())
    await asyncio.sleep(0)
    queued.cancel()
    blocked.cancel()
    gate.set()
    for task in (queued, blocked):
        with pytest.raises(asyncio.CancelledError):
            await task
    await on_file.start()  # the connection still works
    assert await count(on_file) == 1  # calls that had not begun were dropped


async def test_a_running_write_completes_after_its_caller_was_cancelled(on_file: Kit) -> None:
    begun, gate = threading.Event(), threading.Event()

    def slow(con: sqlite3.Connection) -> None:
        begun.set()
        gate.wait(5)
        con.execute("INSERT INTO pauses VALUES ('w', 1, 'ann')")

    task = asyncio.create_task(on_file.store._connections.write(slow))
    await asyncio.to_thread(begun.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    await on_file.store.resume("other", noted("workflow.resumed"))
    assert await on_file.store.paused() == {"w": "ann"}


async def test_closing_refuses_waiting_calls_and_ends_the_threads(on_file: Kit) -> None:
    begun, gate = threading.Event(), threading.Event()

    def slow(con: sqlite3.Connection) -> bool:
        begun.set()
        return gate.wait(20)

    lines = on_file.store._connections
    running = asyncio.create_task(lines.run_on_writer(slow))
    await asyncio.to_thread(begun.wait, 20)
    waiting = asyncio.create_task(on_file.start())
    await asyncio.sleep(0)
    closing = asyncio.create_task(on_file.store.close())
    while not lines._writer._closed:  # noqa: ASYNC110 - no event is set
        await asyncio.sleep(0.001)
    gate.set()
    await asyncio.wait_for(closing, 5)
    assert await running is True
    with pytest.raises(StoreUnavailable, match="closed"):
        await waiting
    deadline = time.monotonic() + 5
    while any(thread.name.startswith("redrive-") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_closing_with_an_open_transaction_undoes_it(tmp_path: Path, clock: HandClock) -> None:
    kit = Kit(open_store(f"sqlite:///{tmp_path}/redrive.db", clock), clock, lambda: None, True)
    await kit.store.open()
    tx = kit.store.transaction(60.0)
    await tx.execute("CREATE TABLE mine (a)")
    await asyncio.wait_for(kit.store.close(), 5)
    con = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None, timeout=0)
    assert con.execute("SELECT count(*) FROM sqlite_master WHERE name = 'mine'").fetchone() == (0,)
    con.execute("BEGIN IMMEDIATE")
    con.close()


async def test_an_exception_in_a_write_is_raised_and_undoes_the_write(on_file: Kit) -> None:
    def broken(con: sqlite3.Connection) -> None:
        con.execute("INSERT INTO pauses VALUES ('w', 1, 'ann')")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await on_file.store._connections.write(broken)
    assert await on_file.store.paused() == {}


async def _write_together(kit: Kit, *works: Callable[[sqlite3.Connection], object]) -> list[object]:
    """Let these writes wait for the thread, so that it finds all of them at once; return results and errors."""
    gate, lines = threading.Event(), kit.store._connections
    blocked = asyncio.create_task(lines.run_on_writer(lambda con: gate.wait(5)))
    waiting = [asyncio.create_task(lines.write(work)) for work in works]
    await asyncio.sleep(0)
    gate.set()
    await blocked
    return await asyncio.gather(*waiting, return_exceptions=True)


def _pause(workflow: str, result: object = None) -> Callable[[sqlite3.Connection], object]:
    def pause(con: sqlite3.Connection) -> object:
        con.execute("INSERT INTO pauses VALUES (?, 1, 'ann')", (workflow,))
        if isinstance(result, Exception):
            raise result
        return result

    return pause


@pytest.mark.parametrize("bad", [0, 1, 2])
async def test_writes_that_wait_share_a_commit_and_one_that_fails_undoes_nothing_of_others(
    on_file: Kit, bad: int
) -> None:
    seen: list[str] = []
    await on_file.store._connections.run_on_writer(lambda con: con.set_trace_callback(seen.append))
    error = ZeroDivisionError()
    results: list[object] = [1, 2, 3]
    results[bad] = error
    answers = await _write_together(on_file, *(_pause(f"w{n}", each) for n, each in enumerate(results)))
    assert answers == results
    assert sorted(await on_file.store.paused()) == [f"w{n}" for n in range(3) if n != bad]
    assert seen.count("COMMIT") == 1


async def test_a_write_of_many_rows_has_a_commit_of_its_own(on_file: Kit) -> None:
    """The caller has the answer while the thread writes the next batch."""
    seen: list[str] = []
    lines = on_file.store._connections
    await lines.run_on_writer(lambda con: con.set_trace_callback(seen.append))
    await asyncio.gather(*(lines.write(_pause(f"w{n}"), rows=1000) for n in range(2)))
    assert seen.count("COMMIT") == 2


async def test_writes_of_a_commit_that_fails_have_all_failed(on_file: Kit) -> None:
    def leave_a_row_without_its_owner(con: sqlite3.Connection) -> None:
        con.execute("CREATE TABLE mine (a REFERENCES pauses (workflow) DEFERRABLE INITIALLY DEFERRED)")
        con.execute("INSERT INTO mine VALUES ('none')")  # the commit finds this

    answers = await _write_together(on_file, _pause("w"), leave_a_row_without_its_owner, _pause("v"))
    assert [isinstance(each, Exception) for each in answers] == [True, True, True]
    assert await on_file.store.paused() == {}
    await on_file.start()  # the connection still works


async def test_a_connection_survives_the_end_of_an_event_loop(tmp_path: Path, clock: HandClock) -> None:
    store = open_store(f"sqlite:///{tmp_path}/redrive.db", clock)
    await store.open()
    gate = threading.Event()

    def abandoned() -> None:
        async def main() -> None:
            asyncio.get_running_loop().call_later(0.02, gate.set)
            asyncio.ensure_future(store._connections.run_on_writer(lambda con: gate.wait(0.1) and None))  # noqa: RUF006
            await asyncio.sleep(0.01)

        asyncio.run(main())

    await asyncio.to_thread(abandoned)
    assert await store.paused() == {}
    await store.close()


async def test_one_store_serves_several_event_loops(tmp_path: Path, clock: HandClock) -> None:
    store = open_store(f"sqlite:///{tmp_path}/redrive.db", clock)
    await store.open()
    found = await asyncio.to_thread(lambda: asyncio.run(store.paused()))
    assert found == {}
    await store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
async def test_a_forked_child_must_open_its_own_store(on_file: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(StoreError, match="forked"):
        await on_file.start()


async def test_a_running_statement_is_interrupted_at_the_limit(on_file: Kit) -> None:
    worker, run = await on_file.held()
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    tx = on_file.store.transaction(0.1)
    with pytest.raises(TimeoutError, match="rolled"):
        await asyncio.wait_for(tx.fetch(endless), 5)
    with pytest.raises(TimeoutError):
        await tx.commit(worker, writes(run, entry(0)))
    await on_file.start()


async def test_a_blocked_event_loop_does_not_keep_a_transaction_open(on_file: Kit, tmp_path: Path) -> None:
    tx = on_file.store.transaction(0.1)
    await tx.execute("CREATE TABLE mine (a)")
    rude = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None, timeout=5)
    rude.execute("BEGIN IMMEDIATE")  # blocks this event loop until the timer has undone the transaction
    rude.execute("COMMIT")
    rude.close()
    with pytest.raises(TimeoutError):
        await tx.execute("CREATE TABLE mine (a)")


async def test_an_abandoned_transaction_frees_the_connection_for_the_next(on_file: Kit) -> None:
    abandoned = on_file.store.transaction(0.05)
    await abandoned.execute("CREATE TABLE mine (a)")
    other = on_file.store.transaction(5.0)
    await asyncio.wait_for(other.execute("CREATE TABLE mine (a)"), 5)
    await other.rollback()


async def test_a_transaction_that_cannot_begin_can_try_again(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.connect, "__kwdefaults__", {"busy": 0.05})
    kit = Kit(open_store(f"sqlite:///{tmp_path}/redrive.db", clock), clock, lambda: None, True)
    await kit.store.open()
    rude = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None)
    rude.execute("BEGIN IMMEDIATE")
    tx = kit.store.transaction(5.0)
    with pytest.raises(StoreUnavailable, match="in use by another process"):
        await tx.execute("CREATE TABLE mine (a)")
    rude.execute("ROLLBACK")
    rude.close()
    assert await tx.execute("CREATE TABLE mine (a)") == 0
    await tx.rollback()
    await kit.start()
    await kit.store.close()


async def test_a_transaction_that_gets_no_connection_blocks_no_other(
    on_file: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> None:
        raise StoreUnavailable("no more connections")

    with monkeypatch.context() as patch:
        patch.setattr("redrive.store.sqlite.connection_threads.ConnectionThread.open", broken)
        with pytest.raises(StoreUnavailable, match="no more"):
            await on_file.store.transaction(5.0).execute("CREATE TABLE mine (a)")
    tx = on_file.store.transaction(5.0)
    await tx.execute("CREATE TABLE mine (a)")
    await tx.rollback()


async def test_queued_transactions_do_not_block_the_committer_or_the_lease(on_file: Kit) -> None:
    """Writers of one process wait in a queue, so each waits only for those before it."""
    worker, _ = await on_file.held()
    line = on_file.store.lease_connection()
    stop = False

    async def busy() -> None:
        while not stop:
            tx = on_file.store.transaction(5.0)
            await tx.execute("CREATE TABLE IF NOT EXISTS mine (a)")
            await asyncio.sleep(0.005)
            await tx.rollback()

    tasks = [asyncio.create_task(busy()) for _ in range(8)]
    await asyncio.sleep(0.02)
    for _ in range(10):
        await asyncio.wait_for(on_file.start(), 1)
        assert (await asyncio.wait_for(asyncio.to_thread(line.beat, {worker: {}}), 1))[worker].alive
    stop = True
    await asyncio.gather(*tasks)
    line.close()


# -- the order of waiting threads ----------------------------------------------------------------------


def test_waiting_threads_get_the_lock_in_order() -> None:
    turn, order = FairLock(), []
    assert turn.take(0)

    def wait(n: int) -> None:
        assert turn.take(5)
        order.append(n)
        turn.release()

    threads = []
    for n in range(5):
        threads.append(threading.Thread(target=wait, args=(n,)))
        threads[-1].start()
        while len(turn._waiting) <= n:
            time.sleep(0.001)
    turn.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert turn.take(0)


def test_a_thread_that_waits_too_long_leaves_the_queue() -> None:
    turn = FairLock()
    assert turn.take(0)
    assert not turn.take(0.01)
    turn.release()
    assert turn.take(0)
