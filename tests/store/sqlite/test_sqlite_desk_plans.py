"""Plans for groups, bulk actions and searchable fields: every statement uses an index, and pages are in order."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from redrive.store.sql_files import Statements, load_migrations
from redrive.store.sqlite import schema

PACKAGE = "redrive.store.sqlite"
BULK = Statements("bulk.sql").texts("sqlite")
GROUPS = Statements("groups.sql").texts("sqlite")
STATEMENTS = {
    name: text
    for file in ("groups.sql", "bulk.sql", "starts.sql")
    for name, text in Statements(file).texts("sqlite").items()
    if "." not in name and "{" not in text
}
# Read in order of their key, up to the limit: a queue that is taken from its front.
QUEUES = {"take_feed_rows", "oldest_feed_time", "has_feed_rows", "is_muted", "mute_group"}


@pytest.fixture(scope="module")
def con() -> Iterator[sqlite3.Connection]:
    con = sqlite3.connect(":memory:", isolation_level=None)
    for migration in load_migrations(PACKAGE):
        for statement in schema.split_statements(migration.text):
            con.execute(statement)
    yield con
    con.close()


def plan(con: sqlite3.Connection, statement: str) -> list[str]:
    named = dict.fromkeys(re.findall(r":(\w+)", statement), 1)
    values = named or (1,) * statement.count("?")
    return [row[3] for row in con.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_scans_a_whole_table(con: sqlite3.Connection, name: str) -> None:
    walked = [
        step
        for step in plan(con, STATEMENTS[name])
        if re.match(r"SCAN (?!json_each|wanted|old$|CONSTANT ROW|pauses|s$)", step)
    ]
    assert walked == [] or name in QUEUES, walked


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("replace_sample", "letters_by_fingerprint (fingerprint=?)"),
        ("delete_old_counts", "group_counts_old (kept_until<?)"),
        ("tenant_counts", "group_counts_of_tenants (seconds=? AND slot>?)"),
        ("delete_old_versions", "group_versions_old (last_seen<?)"),
        ("note_resolution", "groups_by_fingerprint (fingerprint=?)"),
        ("claim_bulk", "bulk_actions_running (lease_until<?)"),
        ("record_results", "bulk_items_by_status (bulk=? AND status=? AND number=?)"),
        ("pending", "bulk_items_by_status (bulk=? AND status=?)"),
        ("delete_old_bulk", "bulk_actions_ended (ended_at>? AND ended_at<?)"),
        ("drop_index", "run_index_of_run (run=?)"),
    ],
)
def test_each_statement_uses_its_index(con: sqlite3.Connection, name: str, index: str) -> None:
    steps = plan(con, STATEMENTS[name])
    assert any(index in step for step in steps), steps


@pytest.mark.parametrize(
    ("names", "order", "index"),
    [
        (["open"], "newest", "groups_open"),
        (["open", "below"], "newest", "groups_open (latest<?)"),
        (["open", "tenant", "above"], "oldest", "groups_of_tenant_open (tenant=? AND latest>?)"),
        (["any", "below"], "newest", "groups_all (latest<?)"),
        (["any", "tenant"], "oldest", "groups_of_tenant (tenant=?)"),
        (["open"], "count", "groups_by_size"),
        (["open", "unmuted", "tenant"], "count", "groups_of_tenant_by_size (tenant=? AND open>?)"),
    ],
)
def test_pages_of_groups_are_read_in_order(con: sqlite3.Connection, names: list[str], index: str, order: str) -> None:
    wanted = " AND ".join(GROUPS[f"groups.{name}"] for name in names)
    steps = plan(con, GROUPS["groups"].format(conditions=wanted, order=GROUPS[f"order.{order}"]))
    assert any(index in step for step in steps), steps
    assert any("PRIMARY KEY (tenant=? AND fingerprint=? AND seconds=? AND slot>?)" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps


@pytest.mark.parametrize(
    ("status", "index"),
    [
        ("all", "PRIMARY KEY (bulk=? AND number<?)"),
        ("PENDING", "bulk_items_by_status (bulk=? AND status=? AND number<?)"),
        ("DONE", "bulk_items_by_status (bulk=? AND status=? AND number<?)"),
        ("FAILED", "bulk_items_by_status (bulk=? AND status=? AND number<?)"),
    ],
)
def test_pages_of_a_bulk_action_are_read_in_order(con: sqlite3.Connection, status: str, index: str) -> None:
    wanted = f"{BULK[f'items.{status}']} AND {BULK['items.below']}"
    steps = plan(con, BULK["items"].format(conditions=wanted, order="DESC"))
    assert any(index in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps
