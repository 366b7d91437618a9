"""What SQLite's errors mean for the engine: try again, blame a row, or call a person."""

from __future__ import annotations

import sqlite3

from redrive.errors import DataRefused, RedriveError, StoreError, StoreUnavailable

__all__ = ["NOTHING_LOST", "meaning"]

NOTHING_LOST = "nothing is lost, the call is repeated"

_DATA_CODES = {
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_RANGE,
}
_DATA_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, UnicodeEncodeError, OverflowError)
_BROKEN = {
    sqlite3.SQLITE_NOTADB: "is not an SQLite database; name another file, or restore it from a backup",
    sqlite3.SQLITE_CORRUPT: "is damaged; stop all workers and restore it from a backup (or try `.recover`)",
    sqlite3.SQLITE_READONLY: "cannot be written; give this user write access to the file and its folder",
    sqlite3.SQLITE_PERM: "cannot be used by this user; give it access to the file and its folder",
    sqlite3.SQLITE_AUTH: "cannot be used by this user; give it access to the file and its folder",
}
_PASSING = {
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


def meaning(error: BaseException, file: str) -> RedriveError | None:
    """Translate an error from the driver; None if it is not the database's doing."""
    if isinstance(error, _DATA_ERRORS):
        return DataRefused(f"the store refused a row: {error}")
    if not isinstance(error, sqlite3.Error):
        return None
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DATA_CODES:
        return DataRefused(f"the store refused a row: {error}")
    if code in _PASSING:
        return StoreUnavailable(f"{file} {_PASSING[code]} ({error}); {NOTHING_LOST}")
    if code in _BROKEN:
        return StoreError(f"{file} {_BROKEN[code]} ({error})")
    if isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError) and "binding" in str(error):
        return DataRefused(f"the store refused a row: {error}")
    return StoreError(f"{file} cannot be used: {error}")
