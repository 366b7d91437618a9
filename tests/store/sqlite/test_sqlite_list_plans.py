"""Plans of lists: no list scans its table under any filter; each is read along an index made for it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from list_cases import ASKED, FILL, NO_TEXTS, PLACES, ROWS, allowed, cursor
from session_kit import run_inline, sqlite_calls, sqlite_session

from redrive.store.bulk import NewBulk, filter_json, letter_scan_sql, next_letter_conditions
from redrive.store.filters import AuditFilter, LetterFilter, OutboxFilter, RunFilter
from redrive.store.list_query import choose_scan
from redrive.store.sql_files import load_migrations
from redrive.store.sql_store import SqlStore
from redrive.store.sqlite import schema

LISTS: dict[type[Any], Callable[..., Any]] = {
    RunFilter: SqlStore.runs,
    LetterFilter: SqlStore.letters,
    AuditFilter: SqlStore.audit,
    OutboxFilter: SqlStore.messages,
}
NUMBERS = f"(WITH RECURSIVE s (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS}) SELECT n FROM s)"
NAMES = {
    "pkey": "",
    "run_index": "x USING PRIMARY KEY (field=? AND value=?",
    "messages_public_id": "sqlite_autoindex_messages_1 (public_id>? AND public_id<?)",
}
AS_THEY_ARE = {"pkey", "runs_succeeded", "letters_tagged", "audit_people"}  # every row, or every row that has a value
FEW = {"runs_held", "idempotency_given", "run_index", "messages_public_id", "deliveries_dead"}


@pytest.fixture(scope="module")
def con() -> Iterator[sqlite3.Connection]:
    con = sqlite3.connect(":memory:", isolation_level=None)
    for migration in load_migrations("redrive.store.sqlite"):
        for statement in schema.split_statements(migration.text):
            con.execute(statement)
    for statement in FILL:
        con.execute(statement.format(numbers=NUMBERS, **NO_TEXTS).replace("redrive.", ""))
    con.execute("ANALYZE")
    yield con
    con.close()


def plans(con: sqlite3.Connection, work: Callable[[], Any]) -> list[list[str]]:
    """Record the plans of the statements that read rows of a list during the block."""
    heard: list[str] = []
    con.set_trace_callback(heard.append)
    try:
        work()
    finally:
        con.set_trace_callback(None)
    listed = [text for text in heard if re.search(r"FROM (runs|letters|audit|messages) AS \w ", text)]
    assert listed
    return [[row[3] for row in con.execute(f"EXPLAIN QUERY PLAN {text}")] for text in listed]


def listed(con: sqlite3.Connection, where: Any, place: str | None) -> Any:
    return run_inline(LISTS[type(where)](sqlite_calls(con), where, limit=10, cursor=place))


@pytest.mark.parametrize("tenant", [None, "a", "b"])
@pytest.mark.parametrize("kind", LISTS)
def test_each_filter_is_read_along_an_index_in_order(
    con: sqlite3.Connection, kind: type[Any], tenant: str | None
) -> None:
    for asked, index in ASKED[kind]:
        for place in PLACES:
            where, place_of = kind(tenant=tenant, **asked), cursor(place)
            found = plans(con, lambda where=where, at=place_of: listed(con, where, at))
            for steps in found:
                assert is_good(steps, allowed(kind, index, tenant), place), (asked, place, steps)


def is_good(steps: list[str], indexes: set[str], place: str | None) -> bool:
    """Return True if rows come from one of these indexes, by its conditions, and in order unless they are few."""
    (met,) = [step for step in steps if re.match(r"(SEARCH|SCAN) [rlam]\b", step)]
    named = any(NAMES.get(name, name) in step for name in indexes for step in steps)
    in_order = met.startswith("SCAN") and bool(indexes & AS_THEY_ARE) and place is None
    aimed = met.startswith("SEARCH") and ("=?" in met or bool(indexes & AS_THEY_ARE) or "public_id>?" in met)
    sorted_ = any("TEMP B-TREE" in step for step in steps)
    return named and (aimed or in_order) and (not sorted_ or bool(indexes & FEW))


def test_a_page_behind_a_cursor_does_not_read_newer_rows(con: sqlite3.Connection) -> None:
    """A tenant's letters in all states, most of which have no rows: the planner would prefer the ids."""
    for steps in plans(con, lambda: listed(con, LetterFilter(tenant="a"), cursor("<200"))):
        assert any("letters_of_tenant_by_status (tenant=? AND status=? AND id<?)" in step for step in steps), steps


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (LetterFilter(), "letters_by_status (status=? AND id>? AND id<?)"),
        (LetterFilter(tenant="a"), "letters_of_tenant_by_status (tenant=? AND status=? AND id>? AND id<?)"),
        (LetterFilter(tenant="b", fingerprint="f"), "letters_of_tenant_by_status (tenant=? AND status=?"),
    ],
)
def test_a_bulk_action_lists_letters_in_order_of_an_index(
    con: sqlite3.Connection, where: LetterFilter, index: str
) -> None:
    new = NewBulk(public_id="s", tenant="a", action="REPLAY", by="ann", where=where, request="{}")
    values = next_letter_conditions(filter_json(new.where), above=0, upto=ROWS)
    session = sqlite_session(con)
    scan = run_inline(choose_scan(session, "letters", values, newest_first=False))
    statement = letter_scan_sql(session, "list_next_letters", scan.path, values, newest_first=False)
    given = {**values, "bulk": 1, "bulk_tenant": "a", "most": 10}
    steps = [row[3] for row in con.execute(f"EXPLAIN QUERY PLAN {statement}", given)]
    assert any(index in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps
