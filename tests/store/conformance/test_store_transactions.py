"""Conformance tests of transactional steps: the user's statements and the step's record commit together."""

from __future__ import annotations

import asyncio
import sqlite3

import asyncpg
import pytest
from store_kit import DAY, Kit, becomes, entry, writes

from redrive.core.states import RunStatus
from redrive.errors import DataRefused, InputError, StoreError


@pytest.fixture
async def with_table(kit: Kit) -> Kit:
    """Create a table of the user in the store's database."""
    worker, run = await kit.held()
    tx = kit.store.transaction(5.0)
    await tx.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
    assert (await tx.commit(worker, writes(run, entry(0)))).kept
    return kit


async def balances(kit: Kit) -> dict[str, int]:
    tx = kit.store.transaction(5.0)
    try:
        return {row["name"]: row["balance"] for row in await tx.fetch("SELECT * FROM accounts")}
    finally:
        await tx.rollback()


async def test_effect_and_record_commit_together(with_table: Kit) -> None:
    kit = with_table
    worker, run = await kit.held()
    tx = kit.store.transaction(5.0)
    assert await tx.execute(kit.sql("INSERT INTO accounts VALUES (?, ?), (?, ?)"), "ann", 10, "bob", 20) == 2
    assert await tx.fetchrow(kit.sql("SELECT balance FROM accounts WHERE name = ?"), "ann") == {"balance": 10}
    assert await tx.fetchrow(kit.sql("SELECT balance FROM accounts WHERE name = ?"), "eve") is None
    assert await tx.fetch("SELECT name AS n, 1 AS one FROM accounts ORDER BY 1") == [
        {"n": "ann", "one": 1},
        {"n": "bob", "one": 1},
    ]
    answer = await tx.commit(worker, writes(run, entry(0, output="done", done=0)))
    assert (answer.kept, answer.now) == (True, kit.clock.now())
    assert await balances(kit) == {"ann": 10, "bob": 20}
    (row,) = await kit.store.journal(run.id)
    assert row.output == "done"


@pytest.mark.parametrize("reason", ["taken", "dead"])
async def test_a_step_whose_run_is_lost_leaves_no_effect(with_table: Kit, reason: str) -> None:
    kit = with_table
    worker, run = await kit.held()
    if reason == "taken":
        await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)])
    else:
        kit.clock.move(DAY)
        await kit.store.expire_workers()
    tx = kit.store.transaction(5.0)
    await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
    answer = await tx.commit(worker, writes(run, entry(0)))
    assert not answer.kept
    assert await balances(kit) == {}
    assert await kit.store.journal(run.id) == []


async def test_a_rollback_undoes_everything_and_can_be_repeated(with_table: Kit) -> None:
    kit = with_table
    tx = kit.store.transaction(5.0)
    await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
    await tx.rollback()
    await tx.rollback()
    assert await balances(kit) == {}
    with pytest.raises(StoreError, match="over"):
        await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")


async def test_rollback_after_commit_is_harmless(with_table: Kit) -> None:
    kit = with_table
    worker, run = await kit.held()
    tx = kit.store.transaction(5.0)
    await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
    await tx.commit(worker, writes(run, entry(0)))
    await tx.rollback()
    assert await balances(kit) == {"ann": 10}
    with pytest.raises(StoreError, match="over"):
        await tx.commit(worker, writes(run, entry(0)))


async def test_a_step_without_statements_is_recorded(kit: Kit) -> None:
    worker, run = await kit.held()
    tx = kit.store.transaction(5.0)
    assert (await tx.commit(worker, writes(run, entry(0)))).kept
    assert len(await kit.store.journal(run.id)) == 1


async def test_a_transaction_that_never_began_changes_nothing(kit: Kit) -> None:
    tx = kit.store.transaction(5.0)
    await tx.rollback()
    await kit.start()


async def test_a_transaction_takes_no_lock_before_its_first_statement(kit: Kit) -> None:
    kit.store.transaction(5.0)
    await kit.start()


async def test_errors_of_the_user_s_statements_are_raised_to_the_user(with_table: Kit) -> None:
    kit = with_table
    worker, run = await kit.held()
    tx = kit.store.transaction(5.0)
    await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
    with pytest.raises((sqlite3.IntegrityError, asyncpg.UniqueViolationError)):
        await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
    with pytest.raises((sqlite3.OperationalError, asyncpg.UndefinedTableError), match="nowhere"):
        await tx.execute("INSERT INTO nowhere VALUES (1)")
    assert await tx.execute("UPDATE accounts SET balance = 11") == 1  # one statement failed, the others stand
    assert (await tx.commit(worker, writes(run, entry(0)))).kept
    assert await balances(kit) == {"ann": 11}


BREAKING_STATEMENTS = [
    *("COMMIT", "commit;", "  ROLLBACK", "BEGIN", "End Transaction", "SAVEPOINT a", "RELEASE a", ";;COMMIT"),
    "-- just\n  /* a */ VACUUM",
]


async def test_statements_that_would_break_the_transaction_are_refused(
    with_table: Kit, subtests: pytest.Subtests
) -> None:
    kit = with_table
    tx = kit.store.transaction(5.0)
    await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
    for statement in BREAKING_STATEMENTS:
        for call in (tx.execute, tx.fetch, tx.fetchrow):
            with subtests.test(statement=statement), pytest.raises(InputError, match="transactional step"):
                await call(statement)
    await tx.rollback()
    assert await balances(kit) == {}


async def test_an_invalid_record_undoes_the_effect(with_table: Kit) -> None:
    kit = with_table
    worker, run = await kit.held()
    tx = kit.store.transaction(5.0)
    await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
    with pytest.raises(DataRefused):
        await tx.commit(worker, writes(run, entry(0, output="\ud800")))
    assert await balances(kit) == {}
    await kit.start()


async def test_concurrent_transactions_and_engine_calls_all_succeed(with_table: Kit) -> None:
    kit = with_table
    await kit.start(20)
    worker = await kit.worker()
    runs = (await kit.claim(worker, capacity=20)).runs

    async def debit(n: int) -> None:
        tx = kit.store.transaction(5.0)
        await tx.execute(kit.sql("INSERT INTO accounts VALUES (?, ?)"), f"a{n}", n)
        await asyncio.sleep(0.001)
        assert (await tx.commit(worker, writes(runs[n], entry(0)))).kept

    async def engine() -> None:
        for _ in range(20):
            await kit.start()

    await asyncio.gather(*(debit(n) for n in range(20)), engine())
    assert len(await balances(kit)) == 20


@pytest.mark.parametrize("statement", ["INSERT INTO accounts VALUES ('bob', 1)", None])
async def test_a_transaction_is_undone_at_its_limit(with_table: Kit, statement: str | None) -> None:
    kit = with_table
    worker, run = await kit.held()
    tx = kit.store.transaction(0.5)
    await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
    await asyncio.sleep(0.6)
    await kit.start()  # others can write again, although the transaction was not ended
    late = tx.commit(worker, writes(run, entry(0))) if statement is None else tx.execute(statement)
    with pytest.raises(TimeoutError, match=r"0\.5 s"):
        await late
    await tx.rollback()
    assert await balances(kit) == {}
    assert await kit.store.journal(run.id) == []


async def test_a_caller_cancelled_in_the_middle_leaves_nothing_behind(with_table: Kit) -> None:
    kit = with_table
    begun = asyncio.Event()

    async def step() -> None:
        tx = kit.store.transaction(5.0)
        try:
            await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
            begun.set()
            await asyncio.sleep(60)
        finally:
            await tx.rollback()

    task = asyncio.create_task(step())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await balances(kit) == {}
