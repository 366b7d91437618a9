"""The transaction of one transactional step: the user's statements, then the step's record, one commit.

    fresh ──first statement──> begun ──commit, rollback, error or time limit──> over

It has a connection to itself and acts as the login of the URL, because the tables are the user's; only the record is
written in the engine's role. When its time is up, the connection is closed, whatever the step is doing, and the
server rolls back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import asyncpg

from redrive.core.transitions import Transition, TransitionResult
from redrive.errors import InputError, StoreError, StoreUnavailable
from redrive.reasons import Reason, ReasonCode
from redrive.store.postgres.apply import apply
from redrive.store.postgres.connection import PLANNER_SETTINGS, Connection, DatabaseClock, translate_error
from redrive.store.postgres.pool import ConnectionPool
from redrive.store.postgres.roles import ENGINE_ROLE

Result = TypeVar("Result")
log = logging.getLogger("redrive.store")
_SPACE = r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_REFUSED_WORDS = (
    r"BEGIN|START\s+TRANSACTION|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|PREPARE\s+TRANSACTION"
    r"|SET\s+(?:LOCAL\s+|SESSION\s+)?(?:TRANSACTION|ROLE|SESSION\s+AUTHORIZATION|SESSION\s+CHARACTERISTICS)"
    r"|RESET|DISCARD|LISTEN|UNLISTEN|VACUUM"
)
_REFUSED = re.compile(f"{_SPACE}({_REFUSED_WORDS})\\b", re.IGNORECASE | re.DOTALL)
_COUNT = re.compile(r"(\d+)$")


class StepTransaction:
    """A transaction that has a connection to itself until it is over."""

    def __init__(self, pool: ConnectionPool, clock: DatabaseClock, where: str, limit: float) -> None:
        self._pool = pool
        self._clock = clock
        self._where = where
        self._limit = limit
        self._held = AsyncExitStack()
        self._connection: Connection | None = None
        self._refusal: Exception | None = None  # what further calls raise
        self._timer: asyncio.TimerHandle | None = None
        self._dirty = False  # something happened since the savepoint
        self._is_sent = False  # the server may have committed

    async def execute(self, statement: str, *params: Any) -> int:
        async def work(con: asyncpg.Connection) -> int:
            if params:
                status = await con.execute(statement, *params)
            else:  # without parameters `execute` takes several statements, and one could be a COMMIT
                prepared = await con.prepare(statement, name="")
                await prepared.fetch()
                status = prepared.get_statusmsg()
            count = _COUNT.search(status)
            return int(count[1]) if count else 0

        return await self._run_statement(statement, work)

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        async def work(con: asyncpg.Connection) -> list[dict[str, Any]]:
            return [dict(row) for row in await con.fetch(statement, *params)]

        return await self._run_statement(statement, work)

    async def fetchrow(self, statement: str, *params: Any) -> dict[str, Any] | None:
        rows = await self.fetch(statement, *params)
        return rows[0] if rows else None

    async def commit(self, worker: int, transition: Transition) -> TransitionResult:
        """Record the step and commit; roll back if another worker holds the run now."""
        try:
            connection = await self._begin()
            async with connection.transaction(role=ENGINE_ROLE, **PLANNER_SETTINGS):
                answer = (await apply(connection, self._clock, [transition], worker))[0]
            self._is_sent = True
            await connection.con.execute("COMMIT" if answer.kept else "ROLLBACK")
            return answer
        except Exception as raised:
            raise self._translate_error(raised) from raised
        finally:
            await self._end()

    async def rollback(self) -> None:
        """Roll back. Does nothing if the transaction is over already, or never began."""
        await self._end()

    async def _run_statement(self, statement: str, work: Callable[[asyncpg.Connection], Awaitable[Result]]) -> Result:
        if refused := _REFUSED.match(statement):
            words = " ".join(refused[1].upper().split())
            raise InputError(Reason(ReasonCode.STEP_STATEMENT_REFUSED, statement=words))
        try:
            con = (await self._begin()).con
            if self._dirty:
                await con.execute("RELEASE SAVEPOINT step; SAVEPOINT step")
            self._dirty = True
            return await work(con)
        except Exception as raised:
            error, cause = self._translate_error(raised), raised
            # A statement that ran into its own limit failed by itself: the database is not out.
            is_outage = isinstance(error, StoreUnavailable) and not isinstance(raised, asyncpg.QueryCanceledError)
            if error is not self._refusal and not is_outage and self._connection is not None:
                try:
                    # Only this statement is rolled back, so that the step can continue with another, as on SQLite.
                    await self._connection.con.execute("ROLLBACK TO SAVEPOINT step")
                except Exception as broken:
                    error, cause = self._translate_error(broken), broken
                else:
                    raise
            self._refusal = self._refusal or error
            await self._end()
            raise error from cause

    async def _begin(self) -> Connection:
        if self._refusal is not None:
            raise self._refusal
        if self._connection is None:
            self._connection = await self._held.enter_async_context(self._pool.connection(bare=True))
            limit = f"{int(self._limit * 1000)}ms"
            names = ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout")
            local = "; ".join(f"SET LOCAL {name} = '{limit}'" for name in names)
            self._timer = asyncio.get_running_loop().call_later(self._limit, self._expire)
            await self._connection.con.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED; {local}; SAVEPOINT step")
        return self._connection

    def _translate_error(self, raised: Exception) -> Exception:
        return self._refusal or translate_error(raised, self._where) or raised

    def _expire(self) -> None:
        if self._is_sent:
            self._refusal = StoreUnavailable(
                f"{self._where} did not confirm a commit within {self._limit:g} s: it may be committed or not"
            )
        else:
            self._refusal = TimeoutError(
                f"the transaction took longer than {self._limit:g} s and was rolled back, because other writers "
                "wait for its locks: do slow work before its first statement"
            )
        if self._connection is not None:
            self._connection.con.terminate()

    async def _end(self) -> None:
        """Roll back what was not committed and give the connection back, once only."""
        self._refusal = self._refusal or StoreError("the transaction is over: it was committed or rolled back")
        if self._timer is not None:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if not connection.con.is_closed():
                await connection.forget(timeout=2.0)
        except Exception as error:  # the server rolls back when the connection ends
            log.debug("could not roll a transaction back; closing its connection: %s", error)
            connection.con.terminate()
        except BaseException:
            connection.con.terminate()
            raise
        finally:
            await self._held.aclose()
