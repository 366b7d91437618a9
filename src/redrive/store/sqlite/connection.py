"""Opening SQLite: where the file is, how a connection is set up, what one write looks like."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import msgspec

from redrive.errors import ConfigurationError, DataRefused, RedriveError, StoreError, StoreUnavailable

# -- What SQLite's errors mean for the engine: try again, blame a row, or call a person ------------------


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
    """Translate an error from the driver; None if it is not the database's doing."""
    if isinstance(error, _DATA_ERRORS):
        return DataRefused(f"the store refused a row: {error}")
    if not isinstance(error, sqlite3.Error):
        return None
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DATA_CODES:
        return DataRefused(f"the store refused a row: {error}")
    if code in _TRANSIENT:
        return StoreUnavailable(f"{file} {_TRANSIENT[code]} ({error}); {NOTHING_LOST}")
    if code in _PERMANENT:
        return StoreError(f"{file} {_PERMANENT[code]} ({error})")
    if isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError) and "binding" in str(error):
        return DataRefused(f"the store refused a row: {error}")
    return StoreError(f"{file} cannot be used: {error}")


# -- Opening SQLite: where the file is, how a connection is set up, what one write looks like ------------


MEMORY = ":memory:"
BUSY_TIMEOUT = 5.0
"""Seconds a connection waits for another process's write before it says StoreUnavailable."""

_URL_FORMS = "sqlite:///relative.db, sqlite:////absolute/path.db or sqlite:///:memory:"
_CACHED_STATEMENTS = 512  # statements kept compiled: there are about 360, and those for many rows in several sizes
_OLDEST_SQLITE = (3, 35, 5)  # the first that drops a column without harm


class Address(msgspec.Struct, frozen=True, gc=False):
    """The file of a store, or `:memory:`."""

    path: str

    @property
    def in_memory(self) -> bool:
        """True for the test store, which lives in one connection and dies with it."""
        return self.path == MEMORY


def parse_url(url: str) -> Address:
    """Find the file that a URL or a plain path names."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        path = url
    elif scheme == "sqlite" and rest.startswith("/") and "?" not in rest and "#" not in rest:
        path = rest[1:]
    else:
        raise ConfigurationError(f"{url!r} is not an SQLite store: write {_URL_FORMS}")
    if not path or path.endswith("/") or "\0" in path:
        raise ConfigurationError(f"{url!r} names no file: write {_URL_FORMS}")
    return Address(path)


def connect(address: Address, *, busy: float = BUSY_TIMEOUT) -> sqlite3.Connection:
    """Open a connection that commits only when told, in WAL mode, durable at every commit."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"this Python has SQLite {sqlite3.sqlite_version}; Redrive needs 3.35.5 or newer")
    if not address.in_memory:
        _check_path(Path(address.path))
        _create_private(address.path)
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
        _set_up(con, address, busy)
    except sqlite3.Error as error:
        con.close()
        raise translate_error(error, address.path) or error from error
    except BaseException:
        con.close()
        raise
    return con


@contextmanager
def write_transaction(con: sqlite3.Connection) -> Iterator[None]:
    """One write: takes the file's write lock at once, commits at the end, undoes everything on an error.

    The lock is taken first because SQLite fails at once, without waiting, when a transaction that
    began by reading wants to write and another one wrote in between.
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
    """What is committed in here reaches the disk with the next ordinary commit, and survives a crash before.

    For what may be done again after a power cut. It spares a wait for the disk.
    """
    con.execute("PRAGMA synchronous = NORMAL")
    try:
        yield
    finally:
        con.execute("PRAGMA synchronous = FULL")


@contextmanager
def read_snapshot(con: sqlite3.Connection) -> Iterator[None]:
    """Everything that is read in here was true at one moment."""
    con.execute("BEGIN")
    try:
        yield
    finally:
        con.execute("COMMIT")


def _check_path(path: Path) -> None:
    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a database file")
    if not path.parent.is_dir():
        raise StoreError(f"there is no folder {path.parent} to keep {path.name} in: create it, or name another")


def _create_private(path: str) -> None:
    """Create a missing file so that only its owner reads it; SQLite gives its -wal and -shm the same mode."""
    # Where the file exists, or cannot be created, SQLite opens it or explains the error.
    with suppress(OSError):
        os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _set_up(con: sqlite3.Connection, address: Address, busy: float) -> None:
    con.execute("PRAGMA foreign_keys = ON")
    con.execute("PRAGMA synchronous = FULL")
    con.execute("PRAGMA temp_store = MEMORY")
    con.execute("PRAGMA cache_size = -16000")
    con.execute("PRAGMA journal_size_limit = 67108864")  # give the disk back what a burst of writes took
    if not address.in_memory:
        _use_wal(con, address, busy)


def _use_wal(con: sqlite3.Connection, address: Address, busy: float) -> None:
    """Switch the file to WAL. Two processes that do it at once meet a lock SQLite does not wait for."""
    for _ in range(max(1, int(busy / 0.05))):
        try:
            mode = con.execute("PRAGMA journal_mode").fetchone()[0]
            if mode != "wal":
                mode = con.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode == "wal":
                return
            raise StoreError(f"{address.path} cannot use write-ahead logging (it said {mode!r}): use a local disk")
        except sqlite3.OperationalError as error:
            if not isinstance(translate_error(error, address.path), StoreUnavailable):
                raise
            last = error
            time.sleep(0.05)
    raise last


# -- Who in this process may write next ------------------------------------------------------------------


class FairLock:
    """A lock that is handed over in the order in which it was asked for."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    def take(self, timeout: float) -> bool:
        """Wait for the lock; False if it did not come in time."""
        with self._mutex:
            if not self._taken:
                self._taken = True
                return True
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        if gate.acquire(timeout=timeout):
            return True
        with self._mutex:
            if gate in self._waiting:
                self._waiting.remove(gate)
                return False
            return True  # it was handed over at the last moment

    def release(self) -> None:
        """Hand the lock to the one who waits longest."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


# -- Writing many rows by few statements -----------------------------------------------------------------


Row: TypeAlias = tuple[object, ...]
Write: TypeAlias = tuple[str, Sequence[Sequence[object]]]
"""A statement, and the rows it is to be run for one after the other."""

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
    """The same in few statements, each for many rows; as it is, if it has no list of values."""
    if not _VALUES.search(statement):
        return [(statement, rows)]
    writes: list[Write] = []
    done = 0
    while (left := len(rows) - done) > 0:
        size = _chunk_size(left)
        writes.append(_multi_row_statement(statement, rows[done : done + size]))
        done += size
    return writes


def _chunk_size(left: int) -> int:
    """How many of the rows that are left to write at once. Few sizes: each is a statement to be compiled."""
    return min(_MOST_ROWS, left - left % _STEP) or 1 << (left.bit_length() - 1)


def _multi_row_statement(statement: str, rows: Sequence[Row]) -> Write:
    columns = list(zip(*rows, strict=True))
    said = tuple([_column_sql(column) for column in columns])
    bound = [column for column, text in zip(columns, said, strict=True) if text == _PLACEHOLDER]
    return _multi_row_sql(statement, said, len(rows)), (list(chain.from_iterable(zip(*bound, strict=True))),)


def _column_sql(column: tuple[object, ...]) -> str:
    """What the statement says of a column: its value, if that is the same slow one in every row."""
    first = column[0]
    slow = first is None or first is True or first is False
    return _LITERALS[first] if slow and column.count(first) == len(column) else _PLACEHOLDER


@cache
def _multi_row_sql(statement: str, said: tuple[str, ...], size: int) -> str:
    row = f"({', '.join(said)})"
    return _VALUES.sub(lambda _: "VALUES " + ", ".join([row] * size), statement)
