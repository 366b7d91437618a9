"""Bringing a file's schema up to date, or saying why that must wait."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

from redrive.errors import SchemaMismatch, StoreError
from redrive.store.migrate import Applied, Migration, known, outstanding
from redrive.store.sqlite.connection import Address, writing
from redrive.store.statements import load

__all__ = ["applied", "prepare"]

SQL = load(__package__, "schema.sql")


def prepare(con: sqlite3.Connection, address: Address, now: int, *, migrate: bool) -> None:
    """Make sure that this code may use the file's schema. Takes no lock if nothing is to be done."""
    ours = known(__package__)
    if not outstanding(applied(con), ours):
        return
    if not migrate:
        raise SchemaMismatch(f"the schema of {address.path} is not up to date: run `redrive migrate`")
    while True:
        with writing(con):  # one transaction per file; another process may have been quicker
            found = applied(con)
            pending = outstanding(found, ours)
            if not pending:
                return
            if found:
                _refuse_beside_workers(con, address, now)
            else:
                con.execute(SQL["create_schema"])
            _refuse_taken_names(con, address, pending)
            _migrate(con, pending[0], now)


def applied(con: sqlite3.Connection) -> list[Applied]:
    """The migrations that a file has had; none if it has no schema of ours."""
    if not con.execute(SQL["has_schema"]).fetchone()[0]:
        return []
    rows = con.execute(SQL["applied"]).fetchall()
    return [
        Applied(version=version, checksum=checksum, oldest_code=oldest) for version, checksum, oldest in rows
    ]


def _refuse_beside_workers(con: sqlite3.Connection, address: Address, now: int) -> None:
    names = [row[0] for row in con.execute(SQL["live_workers"], (now,))]
    if names:
        raise SchemaMismatch(
            f"the schema of {address.path} is older than this code, and workers are using it "
            f"({', '.join(names[:5])}): stop them, then start again"
        )


def _migrate(con: sqlite3.Connection, migration: Migration, now: int) -> None:
    for statement in split(migration.text):
        con.execute(statement)
    con.execute(
        SQL["note_applied"],
        (migration.version, migration.name, migration.checksum, migration.oldest_code, now),
    )


def _refuse_taken_names(con: sqlite3.Connection, address: Address, pending: Sequence[Migration]) -> None:
    """Tables of the user's own are welcome beside ours, unless one has a name that we need."""
    there = {row[0].lower() for row in con.execute(SQL["taken_names"])}
    words = (statement.split() for migration in pending for statement in split(migration.text))
    ours = {_created(parts) for parts in words}
    if clash := sorted(there & ours):
        raise StoreError(
            f"{address.path} has a table or index called {clash[0]!r} that is not Redrive's: "
            "give Redrive a file of its own"
        )


def _created(words: Sequence[str]) -> str:
    """The name in `CREATE TABLE name (...` or `CREATE UNIQUE INDEX name ON ...`."""
    meant = [word for word in words if word.upper() not in {"CREATE", "TABLE", "UNIQUE", "INDEX"}]
    return meant[0].lower() if meant else ""


def split(text: str) -> Iterator[str]:
    """The single statements of a script, without its comments."""
    statement = ""
    for line in text.splitlines():
        if line.lstrip().startswith("--"):
            continue
        statement += line + "\n"
        if statement.strip() and sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
