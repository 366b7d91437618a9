"""Transactional steps on PostgreSQL: concurrent, under the login's role, with the server's rules."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from postgres_kit import Bench
from store_kit import entry, writes

from redrive.errors import InputError, StoreError, StoreUnavailable


@pytest.fixture
async def accounts(bench: Bench) -> Bench:
    await bench.sql("CREATE TABLE accounts (name text PRIMARY KEY, balance integer NOT NULL)")
    await bench.sql("INSERT INTO accounts VALUES ('ann', 100), ('bob', 100)")
    return bench


async def balances(bench: Bench) -> dict[str, int]:
    return {row["name"]: row["balance"] for row in await bench.sql("SELECT * FROM accounts")}


@pytest.mark.parametrize(
    "statement",
    [
        "ABORT",
        "start  transaction",
        "PREPARE TRANSACTION 'x'",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "set local role redrive_app",
        "SET SESSION AUTHORIZATION DEFAULT",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "RESET ALL",
        "DISCARD ALL",
        "LISTEN x",
    ],
)
async def test_statements_that_would_break_the_transaction_are_refused(bench: Bench, statement: str) -> None:
    tx = bench.store.transaction(5.0)
    with pytest.raises(InputError, match="transactional step"):
        await tx.execute(statement)
    await tx.rollback()


@pytest.mark.parametrize("call", ["execute", "fetch", "fetchrow"])
async def test_a_commit_cannot_hide_behind_another_statement(accounts: Bench, call: str) -> None:
    tx = accounts.store.transaction(5.0)
    await tx.execute("UPDATE accounts SET balance = 0")
    with pytest.raises(asyncpg.PostgresSyntaxError, match="multiple commands"):
        await getattr(tx, call)("SELECT 1; COMMIT")
    await tx.rollback()
    assert await balances(accounts) == {"ann": 100, "bob": 100}


async def test_a_commit_cannot_hide_in_a_block_of_code(accounts: Bench) -> None:
    tx = accounts.store.transaction(5.0)
    await tx.execute("UPDATE accounts SET balance = 0")
    with pytest.raises(asyncpg.PostgresError, match="invalid transaction termination"):
        await tx.execute("DO $$ BEGIN COMMIT; END $$")
    await tx.rollback()
    assert await balances(accounts) == {"ann": 100, "bob": 100}


async def test_steps_run_concurrently_up_to_the_size_of_their_pool(accounts: Bench) -> None:
    await accounts.kit.start(8)
    worker = await accounts.kit.worker()
    runs = (await accounts.kit.claim(worker)).runs
    inside, most = 0, 0

    async def step(n: int) -> None:
        nonlocal inside, most
        tx = accounts.store.transaction(20.0)
        await tx.execute("INSERT INTO accounts VALUES ($1, $2)", f"new{n}", n)
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.02)
        inside -= 1
        assert (await tx.commit(worker, writes(runs[n], entry(0)))).kept

    await asyncio.gather(*(step(n) for n in range(8)))
    assert 1 < most <= 4
    assert len(await balances(accounts)) == 10


async def test_a_deadlock_of_the_user_s_statements_is_an_outage_not_a_failure(accounts: Bench) -> None:
    """The engine repeats the aborted step, and no attempt is used up."""
    await accounts.kit.start(2)
    worker = await accounts.kit.worker()
    runs = (await accounts.kit.claim(worker)).runs
    both = asyncio.Barrier(2)

    async def move(n: int, first: str, second: str) -> str:
        tx = accounts.store.transaction(20.0)
        try:
            await tx.execute("UPDATE accounts SET balance = balance - 1 WHERE name = $1", first)
            await both.wait()
            await tx.execute("UPDATE accounts SET balance = balance + 1 WHERE name = $1", second)
            return "kept" if (await tx.commit(worker, writes(runs[n], entry(0)))).kept else "lost"
        except StoreUnavailable:
            return "again"
        finally:
            await tx.rollback()

    ends = await asyncio.gather(move(0, "ann", "bob"), move(1, "bob", "ann"))
    assert sorted(ends) == ["again", "kept"]
    assert sum((await balances(accounts)).values()) == 200


async def test_a_limit_set_by_the_step_makes_the_step_fail(accounts: Bench) -> None:
    tx = accounts.store.transaction(20.0)
    await tx.execute("SET LOCAL statement_timeout = '20ms'")
    with pytest.raises(asyncpg.QueryCanceledError):
        await tx.execute("SELECT pg_sleep(10)")
    await tx.rollback()


async def test_a_statement_longer_than_the_limit_is_undone(accounts: Bench) -> None:
    tx = accounts.store.transaction(0.2)
    await tx.execute("UPDATE accounts SET balance = 0")
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        await tx.execute("SELECT pg_sleep(10)")
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        await tx.execute("SELECT 1")
    await tx.rollback()
    assert await balances(accounts) == {"ann": 100, "bob": 100}


async def test_a_broken_connection_undoes_the_effect(accounts: Bench) -> None:
    worker, run = await accounts.kit.held()
    tx = accounts.store.transaction(20.0)
    await tx.execute("UPDATE accounts SET balance = 0")
    (row,) = await tx.fetch("SELECT pg_backend_pid() AS pid")
    await accounts.sql("SELECT pg_terminate_backend($1)", row["pid"])
    with pytest.raises(StoreUnavailable):
        await tx.commit(worker, writes(run, entry(0)))
    with pytest.raises(StoreError):
        await tx.execute("SELECT 1")
    await tx.rollback()
    assert await balances(accounts) == {"ann": 100, "bob": 100}
    assert await accounts.store.journal(run.id) == []
    again = accounts.store.transaction(5.0)
    await again.execute("UPDATE accounts SET balance = 1")
    assert (await again.commit(worker, writes(run, entry(0)))).kept


async def test_statements_run_as_the_login_and_the_record_as_the_engine(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    tx = bench.store.transaction(5.0)
    assert await tx.fetchrow("SELECT current_user AS me") == {"me": "postgres"}
    assert (await tx.commit(worker, writes(run, entry(0)))).kept
    tx = bench.store.transaction(5.0)
    assert await tx.fetchrow("SELECT current_user AS me") == {"me": "postgres"}
    await tx.rollback()


async def test_settings_of_a_step_end_with_it(bench: Bench) -> None:
    worker, run = await bench.kit.held()
    for n in range(5):
        tx = bench.store.transaction(5.0)
        assert await tx.fetchrow("SELECT current_setting('search_path') AS path") == {"path": '"$user", public'}
        await tx.execute("SET search_path = pg_catalog")
        await tx.execute("CREATE TEMPORARY TABLE scratch (id integer)" if n == 0 else "SELECT 1")
        assert (await tx.commit(worker, writes(run, entry(n)))).kept


async def test_a_step_cannot_change_the_isolation(bench: Bench) -> None:
    """The fence must be read as it is when the record is written, which only READ COMMITTED does."""
    await bench.sql(
        "ALTER DATABASE " + bench.address.url.rpartition("/")[2] + " SET default_transaction_isolation = 'serializable'"
    )
    try:
        store = await bench.beside()
        tx = store.transaction(5.0)
        assert await tx.fetchrow("SHOW transaction_isolation") == {"transaction_isolation": "read committed"}
        await tx.rollback()
        async with store._pool.connection() as line:
            assert await line.con.fetchval("SHOW default_transaction_isolation") == "read committed"
    finally:
        await bench.sql(
            "ALTER DATABASE " + bench.address.url.rpartition("/")[2] + " RESET default_transaction_isolation"
        )


async def test_a_commit_without_an_answer_is_reported_as_unknown(accounts: Bench) -> None:
    """The server may have committed. If the commit were reported as undone, the step would run twice."""
    await accounts.sql(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$"
    )
    await accounts.sql(
        "CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON accounts DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    worker, run = await accounts.kit.held()
    tx = accounts.store.transaction(0.5)
    await tx.execute("UPDATE accounts SET balance = 0 WHERE name = 'ann'")
    with pytest.raises(StoreUnavailable, match="did not confirm a commit"):
        await tx.commit(worker, writes(run, entry(0)))
