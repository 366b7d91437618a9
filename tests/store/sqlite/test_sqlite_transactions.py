"""Transactional steps on SQLite: one at a time, and the statements that end a transaction on SQLite only."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest
from store_kit import Kit, entry, writes

from redrive.errors import InputError, StoreError


@pytest.fixture
async def with_table(on_file: Kit) -> Kit:
    """Create a table of the user in the store's database."""
    kit = on_file
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


@pytest.mark.parametrize(
    "statement", ["PRAGMA journal_mode = DELETE", "-- just\n  /* a */ ATTACH 'x' AS y", ";;DETACH y"]
)
async def test_statements_that_would_break_the_transaction_are_refused(with_table: Kit, statement: str) -> None:
    tx = with_table.store.transaction(5.0)
    with pytest.raises(InputError, match="transactional step"):
        await tx.execute(statement)
    await tx.rollback()


async def test_a_statement_that_undoes_the_transaction_ends_it(with_table: Kit) -> None:
    kit = with_table
    worker, run = await kit.held()
    tx = kit.store.transaction(5.0)
    await tx.execute("INSERT INTO accounts VALUES ('ann', 10)")
    with pytest.raises(sqlite3.IntegrityError):
        await tx.execute("INSERT OR ROLLBACK INTO accounts VALUES ('ann', 10)")
    with pytest.raises(StoreError, match="rolled"):
        await tx.execute("INSERT INTO accounts VALUES ('bob', 10)")
    with pytest.raises(StoreError, match="rolled"):
        await tx.commit(worker, writes(run, entry(0)))
    assert await balances(kit) == {}
    assert await kit.store.journal(run.id) == []


async def test_transactions_take_turns(with_table: Kit) -> None:
    kit = with_table
    await kit.start(20)
    worker = await kit.worker()
    runs = (await kit.claim(worker, capacity=20)).runs
    inside = 0

    async def debit(n: int) -> None:
        nonlocal inside
        tx = kit.store.transaction(5.0)
        await tx.execute("INSERT INTO accounts VALUES (?, ?)", f"a{n}", n)
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.001)
        inside -= 1
        assert (await tx.commit(worker, writes(runs[n], entry(0)))).kept

    await asyncio.gather(*(debit(n) for n in range(20)))
    assert len(await balances(kit)) == 20
