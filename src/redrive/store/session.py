"""Database sessions: the few calls that both databases answer, and the statements they run.

Store code is written once, as `async def`, against `Session`. PostgreSQL's session awaits its driver.
SQLite's session never suspends, so a whole call runs as one piece of work on the connection's thread.

A statement lives in one of three places, tried in this order: `sqlite/statements` or `postgres/statements`
if the databases need different SQL, else `store/statements` for both. A shared statement is written for
PostgreSQL with named parameters (`:name`) and tables in schema `redrive`. SQLite gets it with these changes:

    redrive.runs                         runs
    = ANY (CAST(:ids AS text[]))         IN (SELECT value FROM json_each(:ids))
    <> ALL (CAST(:ids AS text[]))        NOT IN (SELECT value FROM json_each(:ids))
    = ANY (ARRAY(SELECT ...))            IN (SELECT * FROM (SELECT ...))
    unnest(CAST(:a AS text[]), CAST(:b AS bigint[])) AS w (a, b)
                                         a subquery over json_each(:a) with the same columns
    json_agg(...)                        json_group_array(...)
    FOR UPDATE SKIP LOCKED               (nothing: the writer holds the file's lock)
    OFFSET 0                             (nothing: it only keeps PostgreSQL's planner from joining a subquery)
    COLLATE "C"                          (nothing: SQLite compares bytes anyway)
    /* INDEXED BY runs_due */            INDEXED BY runs_due
    /* CROSS */ JOIN                     CROSS JOIN, which keeps the order of the tables
    IS NOT DISTINCT FROM                 =  (values in conditions are never NULL)
    IS DISTINCT FROM                     IS NOT
    ILIKE                                LIKE

In a shared statement `:now` is the time of the store. Sessions fill it in unless the caller does. A statement
that compares an indexed column with a time the caller has takes it as `:at`: a plain parameter plans better.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from redrive.core.transitions import AuditWrite, Transition
from redrive.record_fields import field_names
from redrive.store.sql_files import parse_statements

if TYPE_CHECKING:
    from redrive.store.encryption.codec import Codec

Dialect: TypeAlias = Literal["sqlite", "postgres"]
Record = TypeVar("Record")
Result = TypeVar("Result")
Params = ParamSpec("Params")
log = logging.getLogger("redrive.store")

_SCHEMA = re.compile(r"\bredrive\.")
_ANY = re.compile(r"= ANY \(CAST\(:(\w+) AS \w+\[\]\)\)")
_NOT_ANY = re.compile(r"<> ALL \(CAST\(:(\w+) AS \w+\[\]\)\)")
_UNNEST = re.compile(r"unnest\(((?:CAST\(:\w+ AS \w+\[\]\)(?:, )?)+)\) AS (\w+) \(([\w, ]+)\)")
_ARRAY = re.compile(r"CAST\(:(\w+) AS \w+\[\]\)")
_LOCK = re.compile(r"\s+FOR (?:NO KEY UPDATE|UPDATE|SHARE)(?: OF \w+)?(?: SKIP LOCKED)?")
_OFFSET = re.compile(r"\s+OFFSET 0(?=\s*\))")
_BYTES = re.compile(r' COLLATE "C"')
_HINT = re.compile(r"/\* (INDEXED BY \w+|CROSS) \*/")
_NOW = re.compile(r"(?<![:\w]):now\b")
_SERVER_TIME = "COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()))"


class Statement:
    """A named statement. Its text is read when a session first runs it."""

    __slots__ = ("_file", "_name")

    def __init__(self, file: str, name: str) -> None:
        self._file = file
        self._name = name

    def text(self, dialect: Dialect) -> str:
        """Return the SQL for one of the databases, with named parameters."""
        return _load_texts(dialect, self._file)[self._name]


class Statements:
    """The statements of one file name, over the three folders."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __getitem__(self, name: str) -> Statement:
        return Statement(self._file, name)

    def texts(self, dialect: Dialect) -> Mapping[str, str]:
        """Return the SQL of all statements for one of the databases, by name."""
        return _load_texts(dialect, self._file)


@cache
def _load_texts(dialect: Dialect, file: str) -> dict[str, str]:
    """Return all statements of a file name by their names, as one of the databases takes them."""
    folders = Path(__file__).parent
    adapt = translate_to_sqlite if dialect == "sqlite" else translate_to_postgres
    shared, own = folders / "statements" / file, folders / dialect / "statements" / file
    found: dict[str, str] = {}
    if shared.is_file():
        parsed = parse_statements(shared.read_text("utf-8"), file)
        found.update({name: adapt(text) for name, text in parsed.items()})
    if own.is_file():
        found.update(parse_statements(own.read_text("utf-8"), file))
    return found


def translate_to_sqlite(text: str) -> str:
    """Return a shared statement as SQLite takes it."""
    text = _ANY.sub(r"IN (SELECT value FROM json_each(:\1))", text)
    text = _NOT_ANY.sub(r"NOT IN (SELECT value FROM json_each(:\1))", text)
    text = _UNNEST.sub(_zip_arrays, _OFFSET.sub("", text)).replace("= ANY (ARRAY(", "IN (SELECT * FROM (")
    text = (
        text.replace("IS NOT DISTINCT FROM", "=")
        .replace("IS DISTINCT FROM", "IS NOT")
        .replace("ILIKE", "LIKE")
        .replace("json_agg(", "json_group_array(")
    )
    text = _HINT.sub(r"\1", _BYTES.sub("", text))
    return _SCHEMA.sub("", _LOCK.sub("", text))


def _zip_arrays(found: re.Match[str]) -> str:
    """Return a subquery that gives the elements of several arrays side by side, from their JSON."""
    first, *others = _ARRAY.findall(found[1])
    alias, columns = found[2], found[3].split(", ")
    values = ["element.value", *(f"json_extract(:{name}, '$[' || element.key || ']')" for name in others)]
    named = ", ".join(f"{value} AS {column}" for value, column in zip(values, columns, strict=True))
    return f"(SELECT {named} FROM json_each(:{first}) AS element) AS {alias}"  # nosec B608 - from our own .sql files


def translate_to_postgres(text: str) -> str:
    """Return a shared statement with the server's own time for `:now`, unless a session gives another."""
    return _NOW.sub(_SERVER_TIME, text)


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
