"""SQLite connections: their addresses and settings, their transactions, and the errors of the driver."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import msgspec

from redrive.errors import ConfigurationError, DataRefused, RedriveError, StoreError, StoreUnavailable

NOTHING_LOST = "nothing is lost, the call is repeated"
_DATA_CODES = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
_DATA_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, UnicodeEncodeError, OverflowError)
_PERMANENT = {
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; name another file, or restore it from a backup",
    sqlite3.SQLITE_CORRUPT: "is damaged; stop all workers and restore it from a backup (or try `.recover`)",
    sqlite3.SQLITE_READONLY: "cannot be written; give this user write access to the file and its folder",
    sqlite3.SQLITE_PERM: "cannot be used by this user; give it access to the file and its folder",
    sqlite3.SQLITE_AUTH: "cannot be used by this user; give it access to the file and its folder",
}
_TRANSIENT = {
    sqlite3.SQLITE_BUSY: "is in use by another process",
    sqlite3.SQLITE_LOCKED: "is in use by another connection",
    sqlite3.SQLITE_FULL: "cannot grow, the disk is full: free some space",
    sqlite3.SQLITE_IOERR: "cannot be read or written: check the disk",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check that its folder exists and may be written",
    sqlite3.SQLITE_INTERRUPT: "was interrupted, its store is closing",
    sqlite3.SQLITE_SCHEMA: "changed its schema under a statement",
    sqlite3.SQLITE_PROTOCOL: "is in use by another process",
    sqlite3.SQLITE_NOMEM: "needs more memory than there is",
}


def translate_error(error: BaseException, file: str) -> RedriveError | None:
    """Translate an error of the driver; return None for other errors."""
    if isinstance(error, _DATA_ERRORS):
        return DataRefused(f"the store refused a row: {error}")
    if not isinstance(error, sqlite3.Error):
        return None
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DATA_CODES:
        return DataRefused(f"the store refused a row: {error}")
    if code in _TRANSIENT:
        return StoreUnavailable(f"{file} {_TRANSIENT[code]} ({error})", then=NOTHING_LOST)
    if code in _PERMANENT:
        return StoreError(f"{file} {_PERMANENT[code]} ({error})")
    if isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError) and "binding" in str(error):
        return DataRefused(f"the store refused a row: {error}")
    return StoreError(f"{file} cannot be used: {error}")


MEMORY = ":memory:"
BUSY_TIMEOUT = 5.0
"""Seconds for which a connection waits for another process's write before it raises StoreUnavailable."""

_URL_FORMS = "sqlite:///relative.db, sqlite:////absolute/path.db or sqlite:///:memory:"
_CACHED_STATEMENTS = 512  # statements kept compiled: there are about 360, and those for many rows in several sizes
_OLDEST_SQLITE = (3, 35, 5)  # the first that drops a column without harm


class Address(msgspec.Struct, frozen=True, gc=False):
    """The file of a store, or `:memory:`."""

    path: str

    @property
    def in_memory(self) -> bool:
        """True for a store that lives and ends with one connection, for tests."""
        return self.path == MEMORY


def parse_url(url: str) -> Address:
    """Return the file of a URL or a plain path."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        path = url
    elif scheme == "sqlite" and rest.startswith("/") and "?" not in rest and "#" not in rest:
        path = rest[1:]
    else:
        raise ConfigurationError(f"{url!r} is not an SQLite store: write {_URL_FORMS}")
    if not path or path.endswith("/") or "\0" in path:
        raise ConfigurationError(f"{url!r} contains no file name: write {_URL_FORMS}")
    return Address(path)


def connect(address: Address, *, busy: float = BUSY_TIMEOUT) -> sqlite3.Connection:
    """Open a connection in WAL mode. Commits are explicit and durable."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"this Python has SQLite {sqlite3.sqlite_version}; Redrive needs 3.35.5 or newer")
    if not address.in_memory:
        path = Path(address.path)
        if path.is_dir():
            raise StoreError(f"{path} is a folder, not a database file: name a file")
        if not path.parent.is_dir():
            raise StoreError(f"folder {path.parent} of {path.name} does not exist: create it, or name another")
        # Create a missing file so that only its owner can read it; SQLite gives its -wal and -shm the same mode.
        # Where the file exists, or cannot be created, SQLite opens it or explains the error.
        with suppress(OSError):
            os.close(os.open(os.path.realpath(address.path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        con = sqlite3.connect(
            address.path,
            timeout=busy,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
    except sqlite3.Error as error:
        raise translate_error(error, address.path) or error from error
    try:
        con.execute("PRAGMA foreign_keys = ON")
        con.execute("PRAGMA synchronous = FULL")
        con.execute("PRAGMA temp_store = MEMORY")
        con.execute(
            "PRAGMA cache_size = -16000"
        )  # kB: the indexes of a busy store do not fit into the default of 2,000
        con.execute("PRAGMA journal_size_limit = 67108864")  # free the disk space that a burst of writes took
        if not address.in_memory:
            _use_wal(con, address, busy)
    except sqlite3.Error as error:
        con.close()
        raise translate_error(error, address.path) or error from error
    except BaseException:
        con.close()
        raise
    return con


@contextmanager
def write_transaction(con: sqlite3.Connection) -> Iterator[None]:
    """Take the file's write lock; commit at the end, or roll back on an error.

    The lock is taken first: a transaction that begins by reading fails without waiting if it writes after another
    one wrote.
    """
    con.execute("BEGIN IMMEDIATE")
    try:
        yield
        con.execute("COMMIT")
    except BaseException:
        if con.in_transaction:
            con.execute("ROLLBACK")
        raise


@contextmanager
def without_fsync(con: sqlite3.Connection) -> Iterator[None]:
    """Commit without waiting for the disk. The data survives a crash of the process, but not a power cut.

    It reaches the disk with the next ordinary commit. Use it for work that is repeated after a power cut.
    """
    con.execute("PRAGMA synchronous = NORMAL")
    try:
        yield
    finally:
        con.execute("PRAGMA synchronous = FULL")


@contextmanager
def read_snapshot(con: sqlite3.Connection) -> Iterator[None]:
    """Read everything inside as of one moment."""
    con.execute("BEGIN")
    try:
        yield
    finally:
        con.execute("COMMIT")


def _use_wal(con: sqlite3.Connection, address: Address, busy: float) -> None:
    """Switch the file to WAL. Retries, because SQLite does not wait if two processes switch at once."""
    for _ in range(max(1, int(busy / 0.05))):
        try:
            mode = con.execute("PRAGMA journal_mode").fetchone()[0]
            if mode != "wal":
                mode = con.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode == "wal":
                return
            raise StoreError(f"{address.path} cannot use write-ahead logging (its mode is {mode!r}): use a local disk")
        except sqlite3.OperationalError as error:
            if not isinstance(translate_error(error, address.path), StoreUnavailable):
                raise
            last = error
            time.sleep(0.05)
    raise last


Row: TypeAlias = tuple[object, ...]
Write: TypeAlias = tuple[str, Sequence[Sequence[object]]]
"""A statement and the rows to run it for, one after the other."""

_VALUES = re.compile(r"VALUES (\([?, ]+\))")
_PLACEHOLDER = "?"
_LITERALS: dict[object, str] = {None: "NULL", True: "1", False: "0"}
_STEP = 64
_MOST_ROWS = 256  # rows of one statement: SQLite takes 32,766 values, and no row has 128 of them


def write_many(con: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Run a statement for all rows, in their order."""
    for each in multi_row_statements(statement, rows):
        con.executemany(*each)


def multi_row_statements(statement: str, rows: Sequence[Row]) -> list[Write]:
    """Return few statements for all rows, each with many rows; the statement itself if it has no VALUES."""
    if not _VALUES.search(statement):
        return [(statement, rows)]
    writes: list[Write] = []
    done = 0
    while (left := len(rows) - done) > 0:
        # Only few sizes occur, because SQLite compiles a statement for each.
        size = min(_MOST_ROWS, left - left % _STEP) or 1 << (left.bit_length() - 1)
        columns = list(zip(*rows[done : done + size], strict=True))
        texts = tuple([_column_sql(column) for column in columns])
        bound = [column for column, text in zip(columns, texts, strict=True) if text == _PLACEHOLDER]
        values = list(chain.from_iterable(zip(*bound, strict=True)))
        writes.append((_multi_row_sql(statement, texts, size), (values,)))
        done += size
    return writes


def _column_sql(column: tuple[object, ...]) -> str:
    """Return the literal of a column that is NULL, true or false in every row (slow to bind), else a placeholder."""
    first = column[0]
    slow = first is None or first is True or first is False
    return _LITERALS[first] if slow and column.count(first) == len(column) else _PLACEHOLDER


@cache
def _multi_row_sql(statement: str, columns: tuple[str, ...], size: int) -> str:
    row = f"({', '.join(columns)})"
    return _VALUES.sub(lambda _: "VALUES " + ", ".join([row] * size), statement)
