"""PostgreSQL connections: addresses, settings, transactions, texts, errors and the server's time."""

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

log = logging.getLogger("redrive.store")

CONNECT_TIMEOUT = 10.0
"""Seconds until an attempt to connect is given up."""

ANSWER_TIMEOUT = 30.0
"""Seconds until a call without an answer is given up, so that a vanished server is noticed."""

_SCHEMES = ("postgresql", "postgres")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_OWN_PARAMETERS = ("schema", "pool_size", "statement_cache_size", "bell")


class Address(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A database, the schema in it, and how many connections to keep.

    `pooled`: the URL leads to a pooler in transaction mode, so a connection keeps no settings between transactions.
    `listen_url` is the URL of a direct connection for LISTEN, or None. `notifies`: this process sends NOTIFY, which
    works through a pooler as well.
    """

    url: str
    where: str
    schema: str = "redrive"
    pool_size: int = 10
    pooled: bool = False
    listen_url: str | None = None
    notifies: bool = True


def parse_url(url: str) -> Address:
    """Parse a URL. Parameters that are not Redrive's go to the driver."""
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
    schema = ours.get("schema", "redrive")
    if not _NAME.fullmatch(schema):
        raise ConfigurationError(
            f"schema={schema!r} is not valid: begin with a lowercase letter, continue with lowercase letters, "
            "digits and underscores, and use at most 51 characters"
        )
    return Address(
        url=plain,
        where=_display_url(url),
        schema=schema,
        pool_size=_parse_number(ours, "pool_size", 10, least=2),
        pooled=pooled,
        listen_url=_listen_url(ours.get("bell"), plain, pooled),
        notifies=ours.get("bell") != "off",
    )


def _parse_number(given: dict[str, str], name: str, default: int, *, least: int) -> int:
    text = given.get(name, str(default))
    if not text.isdigit() or int(text) < least:
        raise ConfigurationError(f"{name}={text!r} in the URL must be a whole number from {least} on")
    return int(text)


def _listen_url(wish: str | None, url: str, pooled: bool) -> str | None:
    """Return the URL for LISTEN: of `bell=off`, `bell=on`, or `bell=host:port` behind a pooler."""
    if wish == "off" or (wish is None and pooled):
        return None
    if wish in (None, "on"):
        return url
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{login}{at}{wish}", parts.path, parts.query, ""))


def _display_url(url: str) -> str:
    """Return the host and the database of a URL for messages, without the password."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "localhost")
    return f"PostgreSQL at {unquote(hosts)}{unquote(parts.path)}"


# The engine's statements are made for their indexes. Without statistics (of a new table, or of one that grew a
# thousandfold in a minute) the planner would guess.
PLANNER_SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


def engine_settings(patience: float) -> dict[str, str]:
    """Return the settings of the engine's connections. None idles with a lock for longer than `patience` seconds."""
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
    """Open a connection with these settings. Behind a pooler each transaction sets them instead."""
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
    """Apply settings to a connection. Behind a pooler each transaction sets them instead."""
    if settings and not address.pooled:
        # Not as connection parameters: poolers refuse those they do not know.
        await con.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))


async def close_connection(con: asyncpg.Connection) -> None:
    """Close a connection, or terminate it if that fails."""
    try:
        await con.close(timeout=1.0)
    except Exception as error:
        log.debug("could not close a connection; terminating it: %s", error)
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
        found: list[Any] = await self.con.fetch(text, *statement.list_arguments(values))
        return found

    async def row(self, statement: NumberedStatement, **values: Any) -> Any:
        """Run a statement; return its first row, or None."""
        text = replace_schema(statement.text, self._schema)
        return await self.con.fetchrow(text, *statement.list_arguments(values))

    async def value(self, statement: NumberedStatement, **values: Any) -> Any:
        """Run a statement; return the first value of its first row, or None."""
        row = await self.row(statement, **values)
        return None if row is None else row[0]

    async def many(self, statement: NumberedStatement, batch: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Run a statement for each of these sets of values, sent together; return the rows of all."""
        text = replace_schema(statement.text, self._schema)
        found: list[Any] = await self.con.fetchmany(text, [statement.list_arguments(each) for each in batch])
        return found

    async def script(self, text: str) -> None:
        """Run several statements that take no parameters."""
        await self.con.execute(replace_schema(text, self._schema))

    @asynccontextmanager
    async def transaction(self, **settings: str) -> AsyncIterator[None]:
        """Commit everything inside together, or nothing. Inside another transaction it is part of that one.

        The settings hold until the end of the transaction.
        """
        if self.con.is_in_transaction():
            if settings:
                await self.con.execute(_set_local(settings))
            yield
            return
        local = _set_local({**self.settings, **settings} if self._pooled else settings)
        # The isolation level belongs to BEGIN: a default that is set inside the transaction comes too late.
        await self.con.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED; {local}")
        try:
            yield
            await self.con.execute("COMMIT")
        except BaseException:
            if not self.con.is_closed() and self.con.is_in_transaction():
                await self.con.execute("ROLLBACK")
            raise

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """Read everything inside as of one moment. It must be entered before the first read."""
        async with self.transaction():
            await self.con.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield

    async def forget(self, timeout: float) -> None:
        """Roll back the open transaction, and reset what its user set for the session."""
        if self.con.is_in_transaction():
            await self.con.execute("ROLLBACK", timeout=timeout)
        if not self._pooled:
            await self.con.reset(timeout=timeout)

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Use the connection: behind a pooler in one transaction, otherwise as its user decides."""
        if self._pooled:
            async with self.transaction():
                yield
        else:
            yield


def _set_local(settings: Mapping[str, str]) -> str:
    return "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())


# PostgreSQL stores all of Unicode except NUL, which is therefore written as two other characters.
_ESCAPE = "\x1a"  # SUBSTITUTE: the control character made for this
_ESCAPED = {"\0": f"{_ESCAPE}0", _ESCAPE: f"{_ESCAPE}1"}
_UNESCAPED = {written: letter for letter, written in _ESCAPED.items()}
_ESCAPES = tuple(json.dumps(letter)[1:-1] for letter in _ESCAPED)
_LETTER = re.compile(f"[\0{_ESCAPE}]")
_WRITTEN = re.compile(f"{_ESCAPE}[01]")


def escape_nul(text: Any) -> Any:
    """Return a text without NUL characters; other values are returned unchanged."""
    if type(text) is str and ("\0" in text or _ESCAPE in text):
        return _LETTER.sub(lambda found: _ESCAPED[found[0]], text)
    return text


def escape_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row that have a value, without NUL characters."""
    return {name: escape_nul(value) for name, value in row.items() if value is not None}


def unescape_row(row: Sequence[Any], looked_at: Sequence[Any] | None = None) -> Sequence[Any]:
    """Return the values of a row with unescaped texts; nearly always the row itself.

    `looked_at` are the values that may need it, to save time with many rows.
    """
    for value in row if looked_at is None else looked_at:
        if type(value) is str and _ESCAPE in value:
            return [
                _WRITTEN.sub(lambda found: _UNESCAPED[found[0]], each) if type(each) is str else each for each in row
            ]
    return row


def needs_no_escape(text: str) -> bool:
    """Return True if this JSON contains no character that must be escaped."""
    return not any(escape in text for escape in _ESCAPES)


NOTHING_LOST = "nothing is lost, the call is repeated"
"""The end of messages for the engine, which repeats calls."""

TRY_AGAIN = "try again when it does; nothing was left half done"
"""The end of messages for a user, who makes a call once."""

# By SQLSTATE, the longest beginning that fits.
_TRANSIENT = {
    "08": "the connection broke",
    "25006": "this server takes no writes, another one may have taken over",
    "25P03": "a transaction was idle for too long",
    "26000": "a prepared statement is gone",
    "40": "two transactions conflicted",
    "53": "the server lacks resources",
    "55P03": "a lock was not available in time",
    "57014": "a statement took too long",
    "57P": "the server is starting, stopping or gone",
    "58": "the server had a system error",
    "XX000": "the server had an internal error",
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
    """Translate an error of the driver; return None for other errors.

    `then` ends the message if the same call may work a moment later.
    """
    if isinstance(error, asyncpg.DataError | UnicodeEncodeError | OverflowError):
        return DataRefused(f"the store refused a row: {error}")
    if not isinstance(error, asyncpg.PostgresError):
        is_lost = isinstance(error, _LOST_CONNECTION)
        return StoreUnavailable(f"{where} does not answer ({_error_text(error)})", then=then) if is_lost else None
    state = error.sqlstate or ""
    if state in ("08P01", "08004"):
        return StoreError(
            f"{where} or a pooler before it refuses the connection ({_error_text(error)}); behind PgBouncer in "
            "transaction mode the URL needs statement_cache_size=0"
        )
    if why := _find_by_prefix(_TRANSIENT, state):
        return StoreUnavailable(f"{where}: {why} ({_error_text(error)})", then=then)
    if state in _MISSING_STATES:
        return SchemaMismatch(f"{where} lacks what this code needs ({_error_text(error)}): run `redrive migrate`")
    if state.startswith(_DATA_STATES):
        return DataRefused(f"the store refused a row: {_error_text(error)}")
    if advice := _find_by_prefix(_OPERATOR_ADVICE, state):
        return StoreError(f"{where} {advice} ({_error_text(error)})")
    return StoreError(f"{where} cannot be used: {_error_text(error)} [{state}]")


def is_usable_after(error: BaseException) -> bool:
    """Return True if the connection can be used again after this error, once its transaction is rolled back."""
    if isinstance(error, asyncpg.DataError | UnicodeEncodeError | OverflowError | RedriveError):
        return True
    if not isinstance(error, asyncpg.PostgresError):
        return False
    return not (error.sqlstate or "").startswith(("08", "25", "57P", "XX", "26"))


def _find_by_prefix(table: dict[str, str], state: str) -> str | None:
    return next((words for start, words in table.items() if state.startswith(start)), None)


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__


class DatabaseClock:
    """The server's time, estimated from its answers; in tests, the test clock's.

    An answer is a little old when it arrives, so the true time is never before the best estimate so far. A much later
    answer means that a clock was set, and is adopted step by step.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_real = isinstance(clock, SystemClock)
        self._ahead: float | None = None  # of this machine's monotonic clock, in microseconds

    def given(self) -> int | None:
        """Return the value of `:now` in statements: None for the server's own time, else the test clock's."""
        return None if self._is_real else self._clock.now()

    def observe(self, now: int) -> int:
        """Learn the server's time from an answer; return that time."""
        if self._is_real:
            ahead = now - self._clock.monotonic() * MICROS
            if self._ahead is None or ahead > self._ahead:
                self._ahead = ahead
            else:
                self._ahead += (ahead - self._ahead) / 64
        return now

    def now(self) -> int:
        """Return the best estimate of the server's time. Never compare it with another process's."""
        if self._ahead is None:
            return self._clock.now()
        return int(self._clock.monotonic() * MICROS + self._ahead)


# Columns of a batch are sent as arrays. The driver is slow with long arrays: it examines each element for nested
# arrays. So arrays are as short as possible, and long columns of texts are sent as one text.
_SEPARATOR = f"{_ESCAPE};"  # neither this nor the next one is part of a text from `escape_nul`
_MISSING = f"{_ESCAPE}N"


def joined_column(values: Iterable[str | None]) -> str | None:
    """Return a column of texts from `escape_nul` as one text, for `redrive.texts`; None if it has none at all."""
    column = tuple(values)
    if None in column:
        if column.count(None) == len(column):
            return None
        column = tuple(_MISSING if text is None else text for text in column)
    return _SEPARATOR.join(column)  # type: ignore[arg-type]  # none of them is None


def dense_column(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return a column that has a value in every row; one value stands for equal ones."""
    column = tuple(values)
    return column[:1] if column.count(column[0]) == len(column) else column


def sparse_column(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """Return a column that may lack values; None if it has none at all."""
    column = tuple(values)
    return None if column[0] is None and column.count(None) == len(column) else column


@asynccontextmanager
async def plain_connection(address: Address, then: str, *, stays: bool = False) -> AsyncIterator[Connection]:
    """Open a connection as the URL's login, without settings. Errors of the database are translated.

    `then` ends the message if the server does not answer. With `stays`, the connection is closed only after an error.
    """
    con = None
    try:
        con = await connect(address, {})
        yield Connection(con, address, {})
        if stays:
            con = None
    except Exception as raised:
        error = translate_error(raised, address.where, then)
        if error is None:
            raise
        raise error from raised
    finally:
        if con is not None:
            await close_connection(con)
