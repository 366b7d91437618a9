"""The transaction of one transactional step: the user's statements, then the step's record, one commit.

    fresh ──first statement──> begun ──commit, rollback, error or time limit──> over

It begins (and takes the file's write lock) at the first statement, and a timer undoes it when its
time is up, whatever the step is doing: nobody else can write in the meantime. Every change of state
happens on the connection's own thread, one after the other.
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
from redrive.store.sqlite import apply as writes
from redrive.store.sqlite.connection import BUSY_TIMEOUT, NOTHING_LOST, translate_error
from redrive.store.sqlite.threads import FileConnections, MemoryConnection, ReservedConnection, Work

Result = TypeVar("Result")
_SPACE = r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_REFUSED = re.compile(
    _SPACE + r"(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|PRAGMA|ATTACH|DETACH|VACUUM)\b", re.IGNORECASE | re.DOTALL
)


class StepTransaction:
    """One transaction on a connection that is its own until it is over."""

    def __init__(self, lines: FileConnections | MemoryConnection, clock: Clock, limit: float) -> None:
        self._lines = lines
        self._clock = clock
        self._limit = limit
        self._runner: ReservedConnection | None = None
        self._refusal: Exception | None = None  # what a further call is told
        self._open = False  # changed on the connection's thread only
        self._guard = threading.Lock()  # between the end of the transaction and the end of its time
        self._timer: Timer | None = None

    async def execute(self, statement: str, *params: Any) -> int:
        """Run a statement; return the number of rows it changed."""
        return await self._run_statement(statement, lambda con: max(0, con.execute(statement, params).rowcount))

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """Run a query; return its rows, each from column name to value."""

        def rows(con: sqlite3.Connection) -> list[dict[str, Any]]:
            cursor = con.execute(statement, params)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor]

        return await self._run_statement(statement, rows)

    async def fetchrow(self, statement: str, *params: Any) -> dict[str, Any] | None:
        """Run a query; return its first row."""
        rows = await self.fetch(statement, *params)
        return rows[0] if rows else None

    async def commit(self, worker: int, transition: Transition) -> TransitionResult:
        """Record the step and commit; undo everything if the run is no longer this worker's."""
        try:
            runner = await self._reserve()
            return await runner.run(lambda con: self._commit(con, worker, transition))
        finally:
            self._release()

    async def rollback(self) -> None:
        """Undo everything. Harmless when it is over already, or never began."""
        runner = self._runner
        try:
            if runner is not None:
                runner.post(self._end)  # posted, not run: a caller that is cancelled here must not stop it
                await runner.run(lambda con: None)
        finally:
            self._release()

    # -- on the loop ---------------------------------------------------------------------------------

    async def _run_statement(self, statement: str, work: Work[Result]) -> Result:
        if refused := _REFUSED.match(statement):
            raise InputError(
                f"{refused[1].upper()} cannot be used in a transactional step: its transaction begins by "
                "itself and is committed together with the step's record"
            )
        runner = await self._reserve()
        result, error = await runner.run(lambda con: self._run_on_thread(con, work))
        if error is not None:
            raise error
        return cast(Result, result)

    async def _reserve(self) -> ReservedConnection:
        if self._refusal is not None:
            raise self._refusal
        if self._runner is None:
            self._runner = await self._lines.reserve()
        return self._runner

    def _release(self) -> None:
        """Let the next transaction have the connection. Once only, however this one ended."""
        self._refusal = self._refusal or StoreError("the transaction is over: it was committed or undone")
        if self._runner is not None:
            self._runner = None
            self._lines.release()

    # -- on the connection's thread ------------------------------------------------------------------

    def _run_on_thread(self, con: sqlite3.Connection, work: Work[Result]) -> tuple[Result | None, Exception | None]:
        """Run a statement of the user's. Its errors are the user's too, and handed over as they are."""
        self._begin(con)
        try:
            return work(con), None
        except Exception as error:
            if self._refusal is None and isinstance(translate_error(error, self._lines.file), StoreUnavailable):
                raise
            return None, self._refusal or error
        finally:
            if self._open and not con.in_transaction:
                # Some errors (a full disk, ON CONFLICT ROLLBACK) undo a transaction by themselves. What
                # followed would be committed statement by statement.
                self._refusal = self._refusal or StoreError("the transaction was undone by the database")
                self._end(con)

    def _begin(self, con: sqlite3.Connection) -> None:
        if self._refusal is not None:
            raise self._refusal
        if self._open:
            return
        if not self._lines.turn.take(BUSY_TIMEOUT):
            raise StoreUnavailable(f"{self._lines.file} is busy with other writes; {NOTHING_LOST}")
        try:
            con.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._lines.turn.release()
            raise
        self._open = True
        self._timer = self._lines.after(self._limit, self._clock, lambda: self._expire(con))

    def _commit(self, con: sqlite3.Connection, worker: int, transition: Transition) -> TransitionResult:
        self._begin(con)
        try:
            (answer,) = writes.TransitionBatch(self._clock.now, [transition], worker).apply(con)
            if answer.kept:
                con.execute("COMMIT")
            return answer
        except sqlite3.OperationalError as error:
            raise self._refusal or error from error
        finally:
            self._end(con)

    def _end(self, con: sqlite3.Connection) -> None:
        """Undo what was not committed and let others write. Harmless when that has been done."""
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
            self._lines.turn.release()

    # -- when time is up, on a thread of its own (or on the loop, for a store in memory) ---------------

    def _expire(self, con: sqlite3.Connection) -> None:
        with self._guard:
            if not self._open:
                return
            self._refusal = TimeoutError(
                f"the transaction took longer than {self._limit:g} s and was undone, because nobody else can "
                "write meanwhile: do slow work before its first statement"
            )
            with suppress(sqlite3.Error):  # the store was closed, which undid the transaction
                con.interrupt()
        self._lines.abandon(self._end, self._release)
