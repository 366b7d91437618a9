"""One connection, and what may be asked of it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import asyncpg
import msgspec

from redrive.clock import MICROS, Clock, SystemClock
from redrive.errors import ConfigurationError, DataRefused, RedriveError, SchemaMismatch, StoreError, StoreUnavailable
from redrive.store.sql_files import NumberedStatement, replace_schema

# -- Where the database is and how to use it: everything that a `postgresql://` URL says -----------------


_SCHEMES = ("postgresql", "postgres")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_OWN_PARAMETERS = ("schema", "pool_size", "statement_cache_size", "bell")


class Address(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A database, the schema in it, and how many connections to keep.

    `pooled` says that a pooler in transaction mode stands before the database: a connection then
    remembers nothing from one transaction to the next. `bell` is the URL of a direct connection for
    LISTEN, or None; `rings` says whether others are told of new work, which a pooler does not hinder.
    """

    url: str
    where: str
    schema: str = "redrive"
    pool_size: int = 10
    pooled: bool = False
    bell: str | None = None
    rings: bool = True


def parse_url(url: str) -> Address:
    """Read a URL; what it says beyond Redrive's own parameters goes to the driver."""
    parts = urlsplit(url)
    if parts.scheme.partition("+")[0] not in _SCHEMES:
        raise ConfigurationError(
            f"{_display_url(url)} is not a PostgreSQL store: write postgresql://user@host/database"
        )
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in _OWN_PARAMETERS}
    rest = [(name, value) for name, value in given if name not in _OWN_PARAMETERS]
    plain = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(rest), ""))
    pooled = _parse_number(ours, "statement_cache_size", 1, least=0) == 0
    return Address(
        url=plain,
        where=_display_url(url),
        schema=_check_schema_name(ours.get("schema", "redrive")),
        pool_size=_parse_number(ours, "pool_size", 10, least=2),
        pooled=pooled,
        bell=_listen_url(ours.get("bell"), plain, pooled),
        rings=ours.get("bell") != "off",
    )


def _check_schema_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"schema={name!r}: a schema's name begins with a small letter and goes on with small letters, "
            "digits and underscores, 51 of them at most"
        )
    return name


def _parse_number(given: dict[str, str], name: str, default: int, *, least: int) -> int:
    text = given.get(name, str(default))
    if not text.isdigit() or int(text) < least:
        raise ConfigurationError(f"{name}={text!r} in the URL must be a whole number from {least} on")
    return int(text)


def _listen_url(wish: str | None, url: str, pooled: bool) -> str | None:
    """`bell=off`, `bell=on`, or the `host:port` to listen at when the URL leads to a pooler."""
    if wish == "off" or (wish is None and pooled):
        return None
    if wish in (None, "on"):
        return url
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{login}{at}{wish}", parts.path, parts.query, ""))


def _display_url(url: str) -> str:
    """The URL as it may appear in a log: host and database, no password."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "localhost")
    return f"PostgreSQL at {unquote(hosts)}{unquote(parts.path)}"


# -- One connection, and what may be asked of it ---------------------------------------------------------


log = logging.getLogger("redrive.store")
CONNECT_TIMEOUT = 10.0
"""Seconds until an attempt to connect is given up."""

ANSWER_TIMEOUT = 30.0
"""Seconds until a call that gets no answer is given up, so that a server that vanished is noticed."""

# The engine's statements are made for their indexes. What the planner would do with a table it has no
# statistics of (a new one, or one that grew a thousandfold in a minute) must not be left to luck.
PLANNER_SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


def engine_settings(patience: float) -> dict[str, str]:
    """How the engine's connections are set up; none holds a lock in silence for longer than `patience`."""
    return {
        "role": "redrive_engine",
        "default_transaction_isolation": "read committed",  # each statement must see what was just committed
        "lock_timeout": f"{int(min(patience, 5.0) * 1000)}ms",
        "idle_in_transaction_session_timeout": f"{int(patience * 1000)}ms",
        "statement_timeout": f"{int(ANSWER_TIMEOUT * 900)}ms",
        **PLANNER_SETTINGS,
    }


async def connect(
    address: Address, settings: Mapping[str, str], *, url: str | None = None, answer: float = ANSWER_TIMEOUT
) -> asyncpg.Connection:
    """Open a connection with these settings in force, unless each transaction has to make them anew."""
    con = await asyncpg.connect(
        url or address.url,
        timeout=CONNECT_TIMEOUT,
        command_timeout=answer,
        statement_cache_size=0 if address.pooled else 200,
        max_cached_statement_lifetime=0,
        max_cacheable_statement_size=0,
        server_settings={"application_name": "redrive"},
    )
    try:
        await apply_settings(con, address, settings)
    except BaseException:
        con.terminate()
        raise
    return con


async def apply_settings(con: asyncpg.Connection, address: Address, settings: Mapping[str, str]) -> None:
    """Make settings hold on a connection that has none, unless each transaction has to make them anew."""
    if settings and not address.pooled:
        # Not as parameters of the connection itself: poolers refuse those they do not know.
        await con.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))


async def close_connection(con: asyncpg.Connection) -> None:
    """Close a connection in good order if that is possible, and at once if not."""
    try:
        await con.close(timeout=1.0)
    except Exception as error:  # it is gone either way
        log.debug("a connection did not close in good order: %s", error)
        con.terminate()


class Connection:
    """A connection that knows its schema. Behind a pooler every use is one transaction."""

    __slots__ = ("_pooled", "_schema", "con", "settings")

    def __init__(self, con: asyncpg.Connection, address: Address, settings: Mapping[str, str]) -> None:
        self.con = con
        self._schema = address.schema
        self._pooled = address.pooled
        self.settings = settings

    async def rows(self, statement: NumberedStatement, **values: Any) -> list[Any]:
        """Run a statement; return its rows."""
        text = replace_schema(statement.text, self._schema)
        found: list[Any] = await self.con.fetch(text, *statement.arguments(values))
        return found

    async def row(self, statement: NumberedStatement, **values: Any) -> Any:
        """Run a statement; return its first row, or None."""
        text = replace_schema(statement.text, self._schema)
        return await self.con.fetchrow(text, *statement.arguments(values))

    async def value(self, statement: NumberedStatement, **values: Any) -> Any:
        """Run a statement; return the first value of its first row, or None."""
        row = await self.row(statement, **values)
        return None if row is None else row[0]

    async def many(self, statement: NumberedStatement, batch: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Run a statement for each of these sets of values, sent together; return the rows of all."""
        text = replace_schema(statement.text, self._schema)
        found: list[Any] = await self.con.fetchmany(text, [statement.arguments(each) for each in batch])
        return found

    async def script(self, text: str) -> None:
        """Run several statements that take no parameters."""
        await self.con.execute(replace_schema(text, self._schema))

    @asynccontextmanager
    async def transaction(self, **settings: str) -> AsyncIterator[None]:
        """Commit everything in here together, or nothing. Within another one it is part of that.

        Settings hold until the end of the transaction.
        """
        if self.con.is_in_transaction():
            await self._set(settings)
            yield
            return
        await self._begin(settings)
        try:
            yield
            await self.con.execute("COMMIT")
        except BaseException:
            if not self.con.is_closed() and self.con.is_in_transaction():
                await self.con.execute("ROLLBACK")
            raise

    @asynccontextmanager
    async def picture(self) -> AsyncIterator[None]:
        """Everything that is read in here was true at one moment. To be entered before anything is read."""
        async with self.transaction():
            await self.con.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    async def _begin(self, settings: Mapping[str, str]) -> None:
        wanted = {**self.settings, **settings} if self._pooled else settings
        # The isolation is said here: a default that is set in the transaction comes too late for it.
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
        await self.con.execute("; ".join([begin, *(_set_local(*each) for each in wanted.items())]))

    async def _set(self, settings: Mapping[str, str]) -> None:
        if settings:
            await self.con.execute("; ".join(_set_local(*each) for each in settings.items()))

    async def forget(self, timeout: float) -> None:
        """Roll back what is under way, and undo what its user set for the session."""
        if self.con.is_in_transaction():
            await self.con.execute("ROLLBACK", timeout=timeout)
        if not self._pooled:
            await self.con.reset(timeout=timeout)

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """One use of the connection: behind a pooler a transaction, otherwise what its user makes of it."""
        if self._pooled:
            async with self.transaction():
                yield
        else:
            yield


def _set_local(name: str, value: str) -> str:
    return f"SET LOCAL {name} = '{value}'"


# -- Text that PostgreSQL can hold: all of Unicode but NUL, which is written as two other characters -----


_ESCAPE = "\x1a"  # SUBSTITUTE: the control character made for this
_ESCAPED = {"\0": f"{_ESCAPE}0", _ESCAPE: f"{_ESCAPE}1"}
_UNESCAPED = {written: letter for letter, written in _ESCAPED.items()}
_ESCAPES = tuple(json.dumps(letter)[1:-1] for letter in _ESCAPED)
_LETTER = re.compile(f"[\0{_ESCAPE}]")
_WRITTEN = re.compile(f"{_ESCAPE}[01]")


def escape_nul(text: Any) -> Any:
    """The text as it is written; what is no text passes."""
    if type(text) is str and ("\0" in text or _ESCAPE in text):
        return _LETTER.sub(lambda found: _ESCAPED[found[0]], text)
    return text


def unescape_row(row: Sequence[Any], looked_at: Sequence[Any] | None = None) -> Sequence[Any]:
    """The values of a row with their texts as they were given; nearly always the row itself.

    Where there are many rows, only those values are looked at that may need it.
    """
    for value in row if looked_at is None else looked_at:
        if type(value) is str and _ESCAPE in value:
            return [_unescape(value) for value in row]
    return row


def needs_no_escape(told: str) -> bool:
    """True if nothing in this JSON needs to be written otherwise, which `json.dumps` makes easy to see."""
    return not any(escape in told for escape in _ESCAPES)


def _unescape(value: Any) -> Any:
    return _WRITTEN.sub(lambda found: _UNESCAPED[found[0]], value) if type(value) is str else value


# -- What PostgreSQL's errors mean for the engine: try again, blame a row, or call a person --------------


NOTHING_LOST = "nothing is lost, the call is repeated"
"""What follows for the engine, which asks until it is answered."""

TRY_AGAIN = "try again when it does; nothing was left half done"
"""What follows for a person who asked for something once."""

# By SQLSTATE, the longest beginning that fits.
_TRANSIENT = {
    "08": "the connection broke",
    "25006": "this server takes no writes, another one may have taken over",
    "25P03": "a transaction was idle for too long",
    "26000": "a prepared statement is gone",
    "40": "two transactions were in each other's way",
    "53": "the server is short of something",
    "55P03": "a lock was not to be had in time",
    "57014": "a statement took too long",
    "57P": "the server is starting, stopping or gone",
    "58": "the server met an error of its system",
    "XX000": "the server met an error of its own",
}
_DATA_STATES = ("22", "23", "54")
_MISSING_STATES = ("42P01", "3F000", "42883", "42703", "42704")
_OPERATOR_ADVICE = {
    "28": "refused the login: check user and password in the URL, and the server's pg_hba.conf",
    "3D000": "has no database of that name: create it, or name another in the URL",
    "42501": "denies this user a right: as an administrator, GRANT redrive_login TO it",
    "22023": "knows no role redrive_engine: run `redrive migrate` with a user who may create roles",
}
_LOST_CONNECTION = (OSError, EOFError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def translate_error(error: BaseException, where: str, then: str = NOTHING_LOST) -> RedriveError | None:
    """Translate an error from the driver; None if it is not the database's doing.

    `then` says what follows if the same call may work a moment later.
    """
    if isinstance(error, asyncpg.DataError | UnicodeEncodeError | OverflowError):
        return DataRefused(f"the store refused a row: {error}")
    if isinstance(error, asyncpg.PostgresError):
        return _translate_sqlstate(error, where, then)
    if isinstance(error, _LOST_CONNECTION):
        return StoreUnavailable(f"{where} does not answer ({_error_text(error)}); {then}")
    return None


def _translate_sqlstate(error: asyncpg.PostgresError, where: str, then: str) -> RedriveError:
    state = error.sqlstate or ""
    if state in ("08P01", "08004"):
        return StoreError(
            f"{where} or a pooler before it refuses the connection ({_error_text(error)}); behind PgBouncer in "
            "transaction mode the URL needs statement_cache_size=0"
        )
    if why := _find_by_prefix(_TRANSIENT, state):
        return StoreUnavailable(f"{where}: {why} ({_error_text(error)}); {then}")
    if state in _MISSING_STATES:
        return SchemaMismatch(f"{where} lacks what this code needs ({_error_text(error)}): run `redrive migrate`")
    if state.startswith(_DATA_STATES):
        return DataRefused(f"the store refused a row: {_error_text(error)}")
    if advice := _find_by_prefix(_OPERATOR_ADVICE, state):
        return StoreError(f"{where} {advice} ({_error_text(error)})")
    return StoreError(f"{where} cannot be used: {_error_text(error)} [{state}]")


def is_usable_after(error: BaseException) -> bool:
    """True if the connection can be used again after this error, once its transaction is rolled back."""
    if isinstance(error, asyncpg.DataError | UnicodeEncodeError | OverflowError | RedriveError):
        return True
    if not isinstance(error, asyncpg.PostgresError):
        return False
    return not (error.sqlstate or "").startswith(("08", "25", "57P", "XX", "26"))


def _find_by_prefix(table: dict[str, str], state: str) -> str | None:
    return next((words for start, words in table.items() if state.startswith(start)), None)


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__


# -- Time on PostgreSQL is the server's. This is what a process knows of it, and the test clock's wa -----


class DatabaseClock:
    """The server's time, as well as its answers have told it.

    An answer is a little old when it arrives, so the true time is never before the best estimate so far;
    one that is later by much means that a clock was set, and is believed step by step.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_real = isinstance(clock, SystemClock)
        self._ahead: float | None = None  # of this machine's monotonic clock, in microseconds

    def given(self) -> int | None:
        """What statements take as `:now`: None for the server's own time, else the test clock's."""
        return None if self._is_real else self._clock.now()

    def heard(self, now: int) -> int:
        """Learn from an answer that carried the server's time; returns that time."""
        if self._is_real:
            ahead = now - self._clock.monotonic() * MICROS
            if self._ahead is None or ahead > self._ahead:
                self._ahead = ahead
            else:
                self._ahead += (ahead - self._ahead) / 64
        return now

    def now(self) -> int:
        """The best estimate of the server's time. Never compare it with another process's."""
        if self._ahead is None:
            return self._clock.now()
        return int(self._clock.monotonic() * MICROS + self._ahead)


# -- Columns of a batch as arrays, as short as they can be: the driver is slow with long ones ------------


def dense_column(values: Iterable[Any]) -> tuple[Any, ...]:
    """A column that has a value in every row."""
    column = tuple(values)
    return column[:1] if column.count(column[0]) == len(column) else column


def sparse_column(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """A column that may have no value."""
    column = tuple(values)
    return None if column[0] is None and column.count(None) == len(column) else column
