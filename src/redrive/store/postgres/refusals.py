"""What PostgreSQL's errors mean for the engine: try again, blame a row, or call a person."""

from __future__ import annotations

import asyncpg

from redrive.errors import DataRefused, RedriveError, SchemaMismatch, StoreError, StoreUnavailable

__all__ = ["NOTHING_LOST", "ONCE", "leaves_usable", "meaning"]

NOTHING_LOST = "nothing is lost, the call is repeated"
"""What follows for the engine, which asks until it is answered."""

ONCE = "try again when it does; nothing was left half done"
"""What follows for a person who asked for something once."""

# By SQLSTATE, the longest beginning that fits.
_PASSING = {
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
_DATA = ("22", "23", "54")
_MISSING = ("42P01", "3F000", "42883", "42703", "42704")
_PERSON = {
    "28": "refused the login: check user and password in the URL, and the server's pg_hba.conf",
    "3D000": "has no database of that name: create it, or name another in the URL",
    "42501": "denies this user a right: as an administrator, GRANT redrive_login TO it",
    "22023": "knows no role redrive_engine: run `redrive migrate` with a user who may create roles",
}
_LOST_CONNECTION = (OSError, EOFError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def meaning(error: BaseException, where: str, then: str = NOTHING_LOST) -> RedriveError | None:
    """Translate an error from the driver; None if it is not the database's doing.

    `then` says what follows if the same call may work a moment later.
    """
    if isinstance(error, asyncpg.DataError | UnicodeEncodeError | OverflowError):
        return DataRefused(f"the store refused a row: {error}")
    if isinstance(error, asyncpg.PostgresError):
        return _by_state(error, where, then)
    if isinstance(error, _LOST_CONNECTION):
        return StoreUnavailable(f"{where} does not answer ({_words(error)}); {then}")
    return None


def _by_state(error: asyncpg.PostgresError, where: str, then: str) -> RedriveError:
    state = error.sqlstate or ""
    if state in ("08P01", "08004"):
        return StoreError(
            f"{where} or a pooler before it refuses the connection ({_words(error)}); behind PgBouncer in "
            "transaction mode the URL needs statement_cache_size=0"
        )
    if why := _find(_PASSING, state):
        return StoreUnavailable(f"{where}: {why} ({_words(error)}); {then}")
    if state in _MISSING:
        return SchemaMismatch(f"{where} lacks what this code needs ({_words(error)}): run `redrive migrate`")
    if state.startswith(_DATA):
        return DataRefused(f"the store refused a row: {_words(error)}")
    if advice := _find(_PERSON, state):
        return StoreError(f"{where} {advice} ({_words(error)})")
    return StoreError(f"{where} cannot be used: {_words(error)} [{state}]")


def leaves_usable(error: BaseException) -> bool:
    """True if the connection can be used again after this error, once its transaction is rolled back."""
    if isinstance(error, asyncpg.DataError | UnicodeEncodeError | OverflowError | RedriveError):
        return True
    if not isinstance(error, asyncpg.PostgresError):
        return False
    return not (error.sqlstate or "").startswith(("08", "25", "57P", "XX", "26"))


def _find(table: dict[str, str], state: str) -> str | None:
    return next((words for start, words in table.items() if state.startswith(start)), None)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
