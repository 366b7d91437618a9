"""Bringing a file's schema up to date, or saying why that must wait."""

from __future__ import annotations

import atexit
import functools
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from redrive.errors import SchemaMismatch, StoreError
from redrive.store.sql_files import (
    AppliedMigration,
    Migration,
    load_migrations,
    load_statements,
    outstanding_migrations,
)
from redrive.store.sqlite.connection import Address, connect, write_transaction

SQL = load_statements(__package__, "schema.sql")

_PATIENCE = 60_000  # milliseconds

_template_lock = threading.Lock()


def prepare_schema(con: sqlite3.Connection, address: Address, now: int, *, migrate: bool) -> None:
    """Make sure that this code may use the file's schema. Takes no lock if nothing is to be done."""
    ours = load_migrations(__package__)
    if not outstanding_migrations(applied_migrations(con), ours):
        return
    if not migrate:
        raise SchemaMismatch(f"the schema of {address.path} is not up to date: run `redrive migrate`")
    if address.in_memory:
        with _template_lock:
            _memory_template(address, tuple(ours)).backup(con)
    else:
        _apply_migrations(con, address, ours, now)


@functools.cache
def _memory_template(address: Address, ours: tuple[Migration, ...]) -> sqlite3.Connection:
    """A database in memory as it is when it is set up, to be copied: tests open hundreds of them."""
    con = connect(address)
    atexit.register(con.close)
    _apply_migrations(con, address, ours, 0)
    return con


def _apply_migrations(con: sqlite3.Connection, address: Address, ours: Sequence[Migration], now: int) -> None:
    """Apply what is outstanding.

    Each migration is a transaction of its own, except in an empty file, which is set up by one.
    """
    with _longer_busy_timeout(con):
        while _apply_next(con, address, ours, now):
            pass


def _apply_next(con: sqlite3.Connection, address: Address, ours: Sequence[Migration], now: int) -> bool:
    """Apply what comes next; False if nothing does, or another process was quicker."""
    with write_transaction(con):
        found = applied_migrations(con)
        pending = outstanding_migrations(found, ours)
        if not pending:
            return False
        if found:
            _refuse_beside_workers(con, address, now)
        else:
            con.execute(SQL["create_schema"])
        _refuse_taken_names(con, address, ours[: len(found)], pending)
        for migration in pending[:1] if found else pending:
            _migrate(con, migration, now)
    return True


@contextmanager
def _longer_busy_timeout(con: sqlite3.Connection) -> Iterator[None]:
    """Wait longer than for an ordinary write: another process may be bringing a large file up to date."""
    (before,) = con.execute("PRAGMA busy_timeout").fetchone()
    con.execute(f"PRAGMA busy_timeout = {max(before, _PATIENCE)}")
    try:
        yield
    finally:
        con.execute(f"PRAGMA busy_timeout = {before}")


def applied_migrations(con: sqlite3.Connection) -> list[AppliedMigration]:
    """The migrations that a file has had; none if it has no schema of ours."""
    if not con.execute(SQL["has_schema"]).fetchone()[0]:
        return []
    rows = con.execute(SQL["applied"]).fetchall()
    return [
        AppliedMigration(version=version, checksum=checksum, oldest_code=oldest) for version, checksum, oldest in rows
    ]


def has_schema(address: Address) -> bool:
    """True if the file has a schema of ours, of whatever age. Nothing is made or changed by the look.

    Also if that cannot be told: whoever opens the store is told what is wrong with it.
    """
    file = Path(address.path)
    if not file.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as con:
            return bool(con.execute(SQL["has_schema"]).fetchone()[0])
    except sqlite3.Error:
        return True


def _refuse_beside_workers(con: sqlite3.Connection, address: Address, now: int) -> None:
    names = [row[0] for row in con.execute(SQL["live_workers"], (now,))]
    if names:
        raise SchemaMismatch(
            f"the schema of {address.path} is older than this code, and workers are using it "
            f"({', '.join(names[:5])}): stop them, then start again"
        )


def _migrate(con: sqlite3.Connection, migration: Migration, now: int) -> None:
    for statement in split_statements(migration.text):
        con.execute(statement)
    con.execute(
        SQL["record_migration"], (migration.version, migration.name, migration.checksum, migration.oldest_code, now)
    )


def _refuse_taken_names(
    con: sqlite3.Connection, address: Address, done: Sequence[Migration], pending: Sequence[Migration]
) -> None:
    """Tables of the user's own are welcome beside ours, unless one has a name that we need."""
    there = {row[0].lower() for row in con.execute(SQL["existing_names"])}
    if clash := sorted((there - _created_names(done)) & _created_names(pending)):
        raise StoreError(
            f"{address.path} has a table or index called {clash[0]!r} that is not Redrive's: "
            "give Redrive a file of its own"
        )


def _created_names(migrations: Sequence[Migration]) -> set[str]:
    """What these create."""
    return {_created_name(words.split()) for migration in migrations for words in split_statements(migration.text)}


def _created_name(words: Sequence[str]) -> str:
    """The name in `CREATE TABLE name (...` or `CREATE UNIQUE INDEX name ON ...`."""
    meant = [word for word in words if word.upper() not in {"CREATE", "TABLE", "UNIQUE", "INDEX"}]
    return meant[0].lower() if meant else ""


def split_statements(text: str) -> Iterator[str]:
    """The single statements of a script, without its comments."""
    statement = ""
    for line in text.splitlines():
        if line.lstrip().startswith("--"):
            continue
        statement += line + "\n"
        if statement.strip() and sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
