"""Database sessions: the few calls that both databases answer, and how store calls run on them.

Store code is written once, as `async def`, against `Session`. PostgreSQL's session awaits its driver.
SQLite's session never suspends, so a whole call runs as one piece of work on the connection's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from redrive.core.transitions import AuditWrite, Transition
from redrive.record_fields import field_names
from redrive.store.sql_files import Dialect, Statement

if TYPE_CHECKING:
    from redrive.store.encryption.codec import Codec

Record = TypeVar("Record")
Result = TypeVar("Result")
Params = ParamSpec("Params")
log = logging.getLogger("redrive.store")


def build_record(record: type[Record], row: Sequence[Any], /, **parsers: Callable[[Any], Any]) -> Record:
    """Return a row as a record whose fields are in the order of the columns.

    `parsers` convert single fields. Fields behind the last column keep their defaults.
    """
    values: dict[str, Any] = dict(zip(field_names(record)[: len(row)], row, strict=True))
    for name, parse in parsers.items():
        values[name] = parse(values[name])
    return record(**values)


class VerbatimText(str):
    """A text that a session sends unchanged, without escaping characters that the database cannot hold."""

    __slots__ = ()


class Session(Protocol):
    """A connection in use by one call of the store."""

    @property
    def dialect(self) -> Dialect:
        """SQL dialect of this session, for statements that are put together from parts."""

    @property
    def single_writer(self) -> bool:
        """True if a transaction locks out all other writers, so that a call should look before it begins one."""

    async def rows(self, statement: Statement | str, **params: Any) -> list[Any]:
        """Run a statement and return its rows. `:now` need not be passed."""

    async def row(self, statement: Statement | str, **params: Any) -> Any:
        """Run a statement and return its first row, or None."""
        rows = await self.rows(statement, **params)
        return rows[0] if rows else None

    async def value(self, statement: Statement | str, **params: Any) -> Any:
        """Run a statement and return the first value of its first row, or None."""
        row = await self.row(statement, **params)
        return None if row is None else row[0]

    async def write_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Run a statement once for each of these sets of parameters, in order; return the rows of all.

        PostgreSQL gets them in one batch, not one by one.
        """

    async def now(self) -> int:
        """Return the store's time in microseconds since 1970."""

    async def note(self, lines: Iterable[AuditWrite]) -> None:
        """Add lines to the audit log; a line that exists already is not added again."""

    async def publish(self, transitions: Sequence[Transition], now: int) -> None:
        """Write the messages of transitions, and a delivery for each sink that subscribes to their topic."""

    async def change(self, statement: Statement, audit: AuditWrite | None, **params: Any) -> bool:
        """Run a statement that returns a row for each row it changed; if it changed any, write the audit line.

        Both happen in one transaction. Return whether anything changed.
        """
        async with self.transaction():
            changed = bool(await self.rows(statement, **params))
            if changed and audit is not None:
                await self.note([audit])
        return changed

    def index_order(self) -> AbstractAsyncContextManager[None]:
        """Restrict the planner to indexes that give rows in the order of a list."""

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Commit everything inside together, or nothing. Inside another transaction it is part of that one."""


class Database(Protocol):
    """Runs work on sessions. Its codec seals and opens payloads."""

    @property
    def codec(self) -> Codec: ...

    async def read(self, work: Callable[[Session], Coroutine[Any, Any, Result]], *, snapshot: bool) -> Result:
        """Run work that only reads. With `snapshot`, all of it sees the database at one moment."""

    async def write(
        self, work: Callable[[Session], Coroutine[Any, Any, Result]], *, durable: bool, begin: bool
    ) -> Result:
        """Run work that writes.

        On SQLite all of it is one transaction, unless `begin` is False: then the work looks first and takes the
        write lock with `session.transaction()` only if there is something to do. On PostgreSQL, work that needs a
        transaction always begins it itself. Without `durable`, SQLite does not wait for the disk: use it for
        work that is repeated after a power cut.
        """


def run_inline(call: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never suspends, such as store code on a SQLite session."""
    try:
        call.send(None)
    except StopIteration as returned:
        result: Result = returned.value
        return result
    call.close()
    raise AssertionError("a SQLite session must not suspend")


class StoreCalls(Protocol):
    """A group of store calls over a database."""

    @property
    def database(self) -> Database: ...


_CallsT = TypeVar("_CallsT", bound=StoreCalls)
_SessionCall: TypeAlias = Callable[Concatenate[_CallsT, Session, Params], Coroutine[Any, Any, Result]]
_StoreCall: TypeAlias = Callable[Concatenate[_CallsT, Params], Coroutine[Any, Any, Result]]


def read_call(
    *, snapshot: bool = False
) -> Callable[[_SessionCall[_CallsT, Params, Result]], _StoreCall[_CallsT, Params, Result]]:
    """Make a store call of a method that reads on a session. Payloads in its result are opened."""
    return _make_store_call(lambda database, work: database.read(work, snapshot=snapshot))


def write_call(
    *, durable: bool = True, begin: bool = True
) -> Callable[[_SessionCall[_CallsT, Params, Result]], _StoreCall[_CallsT, Params, Result]]:
    """Make a store call of a method that writes on a session; see `Database.write` for the options.

    Payloads in its arguments are sealed, and those in its result are opened.
    """
    return _make_store_call(lambda database, work: database.write(work, durable=durable, begin=begin))


def _make_store_call(
    run: Callable[[Database, Callable[[Session], Coroutine[Any, Any, Any]]], Awaitable[Any]],
) -> Callable[[_SessionCall[_CallsT, Params, Result]], _StoreCall[_CallsT, Params, Result]]:
    def decorate(call: _SessionCall[_CallsT, Params, Result]) -> _StoreCall[_CallsT, Params, Result]:
        @wraps(call)
        async def on_store(self: _CallsT, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
            codec = self.database.codec
            sealed, named = codec.seal_call(args, kwargs)
            untyped: Callable[..., Coroutine[Any, Any, Result]] = call
            result: Result = await run(self.database, lambda session: untyped(self, session, *sealed, **named))
            return codec.open(result, getattr(args[0], "tenant", None) if args else None)

        return on_store

    return decorate
