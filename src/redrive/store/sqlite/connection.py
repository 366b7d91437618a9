"""Opening SQLite: where the file is, how a connection is set up, what one write looks like."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redrive.errors import ConfigurationError, StoreError, StoreUnavailable
from redrive.frozen import dataclass
from redrive.store.sqlite.refusals import meaning

__all__ = ["BUSY", "MEMORY", "Address", "connect", "locate", "unhurried", "writing"]

MEMORY = ":memory:"
BUSY = 5.0
"""Seconds a connection waits for another process's write before it says StoreUnavailable."""

_FORMS = "sqlite:///relative.db, sqlite:////absolute/path.db or sqlite:///:memory:"
_CACHED = 512  # statements kept compiled: there are about 360, and those for many rows in several sizes
_OLDEST = (3, 35, 5)  # the first that drops a column without harm


@dataclass(frozen=True, slots=True)
class Address:
    """The file of a store, or `:memory:`."""

    path: str

    @property
    def in_memory(self) -> bool:
        """True for the test store, which lives in one connection and dies with it."""
        return self.path == MEMORY


def locate(url: str) -> Address:
    """Find the file that a URL or a plain path names."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        path = url
    elif scheme == "sqlite" and rest.startswith("/") and "?" not in rest and "#" not in rest:
        path = rest[1:]
    else:
        raise ConfigurationError(f"{url!r} is not an SQLite store: write {_FORMS}")
    if not path or path.endswith("/") or "\0" in path:
        raise ConfigurationError(f"{url!r} names no file: write {_FORMS}")
    return Address(path)


def connect(address: Address, *, busy: float = BUSY) -> sqlite3.Connection:
    """Open a connection that commits only when told, in WAL mode, durable at every commit."""
    if sqlite3.sqlite_version_info < _OLDEST:
        raise StoreError(f"this Python has SQLite {sqlite3.sqlite_version}; Redrive needs 3.35.5 or newer")
    if not address.in_memory:
        _check_place(Path(address.path))
        _create_private(address.path)
    try:
        con = sqlite3.connect(
            address.path,
            timeout=busy,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED,
        )
    except sqlite3.Error as error:
        raise meaning(error, address.path) or error from error
    try:
        _set_up(con, address, busy)
    except sqlite3.Error as error:
        con.close()
        raise meaning(error, address.path) or error from error
    except BaseException:
        con.close()
        raise
    return con


@contextmanager
def writing(con: sqlite3.Connection) -> Iterator[None]:
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
def unhurried(con: sqlite3.Connection) -> Iterator[None]:
    """What is committed in here reaches the disk with the next ordinary commit, and survives a crash before.

    For what may be done again after a power cut. It spares a wait for the disk.
    """
    con.execute("PRAGMA synchronous = NORMAL")
    try:
        yield
    finally:
        con.execute("PRAGMA synchronous = FULL")


@contextmanager
def picture(con: sqlite3.Connection) -> Iterator[None]:
    """Everything that is read in here was true at one moment."""
    con.execute("BEGIN")
    try:
        yield
    finally:
        con.execute("COMMIT")


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a database file")
    if not path.parent.is_dir():
        raise StoreError(
            f"there is no folder {path.parent} to keep {path.name} in: create it, or name another"
        )


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
            raise StoreError(
                f"{address.path} cannot use write-ahead logging (it said {mode!r}): use a local disk"
            )
        except sqlite3.OperationalError as error:
            if not isinstance(meaning(error, address.path), StoreUnavailable):
                raise
            last = error
            time.sleep(0.05)
    raise last
