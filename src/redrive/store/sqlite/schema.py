"""The schema of a SQLite file: checking it and applying migrations."""

from __future__ import annotations

import atexit
import functools
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from redrive.errors import SchemaMismatch, StoreError
from redrive.store import sql_files
from redrive.store.session import build_record
from redrive.store.sql_files import AppliedMigration, Migration, find_pending_migrations, load_migrations
from redrive.store.sqlite.connection import Address, connect, write_transaction

SQL = sql_files.load_statements(__package__, "schema.sql")

_PATIENCE = 60_000  # milliseconds

_template_lock = threading.Lock()


def prepare_schema(con: sqlite3.Connection, address: Address, now: int, *, migrate: bool) -> None:
    """Make sure that this code can use the file's schema. Takes no lock if the schema is up to date."""
    ours = load_migrations(__package__)
    if not find_pending_migrations(load_applied_migrations(con), ours):
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
    """Return a new database in memory to copy: tests open hundreds of them."""
    con = connect(address)
    atexit.register(con.close)
    _apply_migrations(con, address, ours, 0)
    return con


def _apply_migrations(con: sqlite3.Connection, address: Address, ours: Sequence[Migration], now: int) -> None:
    """Apply the outstanding migrations, each in its own transaction; an empty file gets all in one."""
    # Wait longer than for an ordinary write: another process may be migrating a large file.
    (before,) = con.execute("PRAGMA busy_timeout").fetchone()
    con.execute(f"PRAGMA busy_timeout = {max(before, _PATIENCE)}")
    try:
        while _apply_next(con, address, ours, now):
            pass
    finally:
        con.execute(f"PRAGMA busy_timeout = {before}")


def _apply_next(con: sqlite3.Connection, address: Address, ours: Sequence[Migration], now: int) -> bool:
    """Apply the next migration; return False if there is none, or another process applied it first."""
    with write_transaction(con):
        found = load_applied_migrations(con)
        pending = find_pending_migrations(found, ours)
        if not pending:
            return False
        if not found:
            con.execute(SQL["create_schema"])
        elif workers := [row[0] for row in con.execute(SQL["live_workers"], (now,))]:
            raise SchemaMismatch(
                f"the schema of {address.path} is older than this code, and workers are using it "
                f"({', '.join(workers[:5])}): stop them, then start again"
            )
        there = {row[0].lower() for row in con.execute(SQL["existing_names"])}
        if clash := sorted((there - _list_created_names(ours[: len(found)])) & _list_created_names(pending)):
            raise StoreError(
                f"{address.path} has a table or index called {clash[0]!r} that is not Redrive's: give Redrive another "
                "file"
            )
        for migration in pending[:1] if found else pending:
            for statement in split_statements(migration.text):
                con.execute(statement)
            record = (migration.version, migration.name, migration.checksum, migration.oldest_code, now)
            con.execute(SQL["record_migration"], record)
    return True


def load_applied_migrations(con: sqlite3.Connection) -> list[AppliedMigration]:
    """Return the migrations that were applied to a file; none if it has no schema of Redrive."""
    if not con.execute(SQL["has_schema"]).fetchone()[0]:
        return []
    return [build_record(AppliedMigration, row) for row in con.execute(SQL["applied"])]


def has_schema(address: Address) -> bool:
    """Return True if the file has a schema of Redrive of any age. Reads only; creates nothing.

    Return True as well if the file cannot be read: opening the store then raises the error.
    """
    file = Path(address.path)
    if not file.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as con:
            return bool(con.execute(SQL["has_schema"]).fetchone()[0])
    except sqlite3.Error:
        return True


def _list_created_names(migrations: Sequence[Migration]) -> set[str]:
    """Return the names in `CREATE TABLE name (...` and `CREATE UNIQUE INDEX name ON ...`."""
    names = set()
    for statement in (text for migration in migrations for text in split_statements(migration.text)):
        words = (word for word in statement.split() if word.upper() not in {"CREATE", "TABLE", "UNIQUE", "INDEX"})
        names.add(next(words, "").lower())
    return names


def split_statements(text: str) -> Iterator[str]:
    """Yield the single statements of a script, without its comments."""
    statement = ""
    for line in text.splitlines():
        if line.lstrip().startswith("--"):
            continue
        statement += line + "\n"
        if statement.strip() and sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
