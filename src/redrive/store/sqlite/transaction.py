"""The transaction of one transactional step: the user's statements, then the step's record, one commit.

    fresh ──first statement──> begun ──commit, rollback, error or time limit──> over

It begins (and takes the file's write lock) at the first statement. Because no other process can write meanwhile, a
timer rolls it back when its time is up, whatever the step is doing. Every change of state happens on the
connection's own thread, one after the other.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import suppress
from typing import Any, TypeVar, cast

from redrive.clock import Clock, Timer
from redrive.core.transitions import Transition, TransitionResult
from redrive.errors import InputError, StoreError, StoreUnavailable
from redrive.reasons import Reason, ReasonCode
from redrive.store.sqlite.apply import TransitionBatch
from redrive.store.sqlite.connection import BUSY_TIMEOUT, NOTHING_LOST, translate_error
from redrive.store.sqlite.connection_threads import FileConnections, MemoryConnection, ReservedConnection, Work

Result = TypeVar("Result")
_SPACE = r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_REFUSED = re.compile(
    _SPACE + r"(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|PRAGMA|ATTACH|DETACH|VACUUM)\b", re.IGNORECASE | re.DOTALL
)


class StepTransaction:
    """A transaction that has a connection to itself until it is over."""

    def __init__(self, connections: FileConnections | MemoryConnection, clock: Clock, limit: float) -> None:
        self._connections = connections
        self._clock = clock
        self._limit = limit
        self._runner: ReservedConnection | None = None
        self._refusal: Exception | None = None  # what further calls raise
        self._open = False  # changed on the connection's thread only
        self._guard = threading.Lock()  # protects _open between `_end` and `_expire`
        self._timer: Timer | None = None

    async def execute(self, statement: str, *params: Any) -> int:
        return await self._run_statement(statement, lambda con: max(0, con.execute(statement, params).rowcount))

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        def rows(con: sqlite3.Connection) -> list[dict[str, Any]]:
            cursor = con.execute(statement, params)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor]

        return await self._run_statement(statement, rows)

    async def fetchrow(self, statement: str, *params: Any) -> dict[str, Any] | None:
        rows = await self.fetch(statement, *params)
        return rows[0] if rows else None

    async def commit(self, worker: int, transition: Transition) -> TransitionResult:
        """Record the step and commit; roll back if another worker holds the run now."""
        try:
            runner = await self._reserve()
            return await runner.run(lambda con: self._commit(con, worker, transition))
        finally:
            self._release()

    async def rollback(self) -> None:
        """Roll back. Does nothing if the transaction is over already, or never began."""
        runner = self._runner
        try:
            if runner is not None:
                runner.post(self._end)  # posted, not run: a caller that is cancelled here must not stop it
                await runner.run(lambda con: None)
        finally:
            self._release()

    async def _run_statement(self, statement: str, work: Work[Result]) -> Result:
        if refused := _REFUSED.match(statement):
            raise InputError(Reason(ReasonCode.STEP_STATEMENT_REFUSED, statement=refused[1].upper()))
        runner = await self._reserve()
        result, error = await runner.run(lambda con: self._run_on_thread(con, work))
        if error is not None:
            raise error
        return cast(Result, result)

    async def _reserve(self) -> ReservedConnection:
        if self._refusal is not None:
            raise self._refusal
        if self._runner is None:
            self._runner = await self._connections.reserve()
        return self._runner

    def _release(self) -> None:
        """Give the connection to the next transaction. Only the first call does so."""
        self._refusal = self._refusal or StoreError("the transaction is over: it was committed or rolled back")
        if self._runner is not None:
            self._runner = None
            self._connections.release()

    def _run_on_thread(self, con: sqlite3.Connection, work: Work[Result]) -> tuple[Result | None, Exception | None]:
        """Run a statement of the user on the connection's thread. Its errors are returned unchanged."""
        self._begin(con)
        try:
            return work(con), None
        except Exception as error:
            if self._refusal is None and isinstance(translate_error(error, self._connections.file), StoreUnavailable):
                raise
            return None, self._refusal or error
        finally:
            if self._open and not con.in_transaction:
                # Some errors (a full disk, ON CONFLICT ROLLBACK) roll the transaction back. Without this, each
                # further statement would commit by itself.
                self._refusal = self._refusal or StoreError("the database rolled the transaction back")
                self._end(con)

    def _begin(self, con: sqlite3.Connection) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._open:
            return
        if not self._connections.write_lock.take(BUSY_TIMEOUT):
            raise StoreUnavailable(f"{self._connections.file} is busy with other writes", then=NOTHING_LOST)
        try:
            con.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._connections.write_lock.release()
            raise
        self._open = True
        self._timer = self._connections.after(self._limit, self._clock, lambda: self._expire(con))

    def _commit(self, con: sqlite3.Connection, worker: int, transition: Transition) -> TransitionResult:
        self._begin(con)
        try:
            (answer,) = TransitionBatch(self._clock.now, [transition], worker).apply(con)
            if answer.kept:
                con.execute("COMMIT")
            return answer
        except sqlite3.OperationalError as error:
            raise self._refusal or error from error
        finally:
            self._end(con)

    def _end(self, con: sqlite3.Connection) -> None:
        """Roll back what was not committed and release the write lock, once only."""
        with self._guard:
            was_open, self._open = self._open, False
        if not was_open:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            if con.in_transaction:
                con.execute("ROLLBACK")
        finally:
            self._connections.write_lock.release()

    def _expire(self, con: sqlite3.Connection) -> None:
        """End the transaction when its time is up. Runs on the timer's thread, or on the loop for `:memory:`."""
        with self._guard:
            if not self._open:
                return
            self._refusal = TimeoutError(
                f"the transaction took longer than {self._limit:g} s and was rolled back, because it blocks all "
                "other writers: do slow work before its first statement"
            )
            with suppress(sqlite3.Error):  # the store was closed, which rolled the transaction back
                con.interrupt()
        self._connections.abandon(self._end, self._release)
