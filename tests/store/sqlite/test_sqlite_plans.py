"""Plans: every statement finds its rows by an index, so that a full store is as fast as an empty one."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping

import pytest
from session_kit import run_inline, sqlite_calls

from redrive.core.transitions import AuditWrite
from redrive.store.filters import AuditFilter
from redrive.store.sql_files import Statements, load_migrations
from redrive.store.sqlite import apply as writes
from redrive.store.sqlite import schema

PACKAGE = "redrive.store.sqlite"
LARGE = {"runs", "entries", "attempts", "inputs", "results", "letters", "idempotency", "replays", "audit"}
ALIASES = {"r", "e", "i", "o", "l", "k", "a", "held", "head", "holder"}
FILES = (
    "starts", "writes", "claims", "workers", "runs", "letters", "catalogue", "chores", "settings",
)  # fmt: skip

BOUNDED = {"delete_old_audit"}  # reads the oldest rows, no more than it may remove


def statements(file: str) -> Mapping[str, str]:
    """Return the statements of a file in SQLite's syntax, including shared ones."""
    return Statements(f"{file}.sql").texts("sqlite")


STATEMENTS = [(file, name) for file in FILES for name in statements(file)]


class Anything(dict[str, int]):
    """A value for every parameter."""

    def __missing__(self, key: str) -> int:
        return 1


@pytest.fixture(scope="module")
def con() -> Iterator[sqlite3.Connection]:
    con = sqlite3.connect(":memory:", isolation_level=None)
    for migration in load_migrations(PACKAGE):
        for statement in schema.split_statements(migration.text):
            con.execute(statement)
    yield con
    con.close()


def plan(con: sqlite3.Connection, statement: str) -> list[str]:
    places = statement.count("?")
    params = (1,) * places if places else Anything()
    return [row[3] for row in con.execute(f"EXPLAIN QUERY PLAN {statement}", params)]


def scans(steps: list[str]) -> list[str]:
    """Return the steps of a plan that scan a whole large table."""
    found = (re.match(r"SCAN (\w+)", step) for step in steps)
    return [match.string for match in found if match and match[1] in LARGE | ALIASES]


@pytest.mark.parametrize(("file", "name"), STATEMENTS, ids=lambda value: value)
def test_no_statement_scans_a_large_table(con: sqlite3.Connection, file: str, name: str) -> None:
    steps = plan(con, statements(file)[name])
    assert scans(steps) == (["SCAN a"] if name in BOUNDED else [])


@pytest.mark.parametrize(
    ("file", "name", "index"),
    [
        ("claims", "lanes", "runs_due (tenant=? AND queue=? AND rank=? AND workflow=? AND pin>?)"),
        ("claims", "lanes", "runs_due (tenant=? AND queue=? AND rank=? AND workflow>?)"),
        ("claims", "lanes", "runs_due (tenant=? AND queue=? AND rank>?)"),
        ("claims", "lanes", "runs_due (tenant=? AND queue>?)"),
        ("claims", "lanes", "runs_due (tenant>?)"),
        ("claims", "candidates", "runs_due (tenant=? AND queue=? AND rank=? AND workflow=? AND pin=? AND avail"),
        ("claims", "next_due", "runs_due (tenant=? AND queue=? AND rank=? AND workflow=? AND pin=?"),
        ("claims", "next_suspect", "runs_suspect_of (workflow=? AND pin=?"),
        ("claims", "journals", "entries_of_run (run=?)"),
        ("workers", "held_ids", "runs_held (worker=?)"),
        ("workers", "record_step_heartbeat", "entries_of_run (run=? AND idx=?)"),
        ("chores", "stuck_runs", "entries_limited (limit_at>? AND limit_at<?)"),
        ("chores", "overdue", "runs_deadline (deadline>? AND deadline<?)"),
        ("chores", "ended_workflows", "runs_finished (workflow>?)"),
        ("chores", "unescalated", "letters_unescalated (tenant=? AND workflow>?)"),
        ("chores", "unescalated", "letters_unescalated (tenant>?)"),
        ("chores", "letters_to_escalate", "letters_unescalated (tenant=? AND workflow=? AND failed_at<?)"),
        ("chores", "old_runs", "runs_finished (workflow=? AND finished_at>? AND finished_at<?)"),
        ("chores", "surplus_runs", "runs_finished (workflow=? AND finished_at>?)"),
        ("chores", "surplus_runs", "last USING INTEGER PRIMARY KEY (rowid=?)"),
        ("chores", "surplus_runs", "r USING INDEX runs_finished (workflow=? AND finished_at>? AND finish"),
        ("chores", "surplus_runs", "sqlite_autoindex_letters_2 (run=?)"),
        ("chores", "old_keys", "idempotency_expiring (expires_at<?)"),
        ("chores", "runs_with_expired_letters", "letters_expiring (expires_at<?)"),
        ("writes", "supersede", "entries_of_run (run=? AND idx=?)"),
        ("writes", "loosen", "entries_of_run (run=? AND idx=?)"),
        ("writes", "move_letter", "sqlite_autoindex_letters_1 (public_id=?)"),
        ("writes", "move_letter_to_run", "sqlite_autoindex_runs_1 (public_id=?)"),
        ("writes", "move_letter_to_run", "sqlite_autoindex_letters_1 (public_id=?)"),
        ("writes", "reopen_run", "INTEGER PRIMARY KEY (rowid=?)"),
        ("writes", "end_replay", "PRIMARY KEY (letter=?)"),
        ("writes", "put_replay", "PRIMARY KEY (letter=?)"),
        ("letters", "letters_by_id", "sqlite_autoindex_letters_1 (public_id=?)"),
        ("letters", "letters_of_runs", "sqlite_autoindex_runs_1 (public_id=?)"),
        ("letters", "letters_of_runs", "sqlite_autoindex_letters_2 (run=?)"),
        ("letters", "replays", "PRIMARY KEY (letter=?)"),
        ("letters", "triage", "sqlite_autoindex_letters_1 (public_id=?)"),
        ("children", "run_end", "sqlite_autoindex_runs_1 (public_id=?)"),
        ("children", "run_end", "sqlite_autoindex_letters_2 (run=?)"),
        ("children", "children_of", "runs_of_owner (owner=?)"),
        ("children", "run_waits", "waits_for (kind=? AND subject>?)"),
        ("children", "ended_subjects", "sqlite_autoindex_runs_1 (public_id=?)"),
        ("children", "wake_waiting", "INTEGER PRIMARY KEY (rowid=?)"),
        ("children", "wake_free", "INTEGER PRIMARY KEY (rowid=?)"),
        ("children", "owned_runs", "runs_owned (owner>?)"),
        ("children", "owned_runs", "sqlite_autoindex_runs_1 (public_id=?)"),
        ("writes", "move_children", "runs_of_owner (owner=?)"),
        ("chores", "delete_old_replays", "PRIMARY KEY (letter=?)"),
        ("chores", "delete_old_audit", "INTEGER PRIMARY KEY"),
        ("chores", "delete_old_letters", "letters_closed (closed_at>? AND closed_at<?)"),
    ],
)
def test_each_statement_uses_its_index(con: sqlite3.Connection, file: str, name: str, index: str) -> None:
    steps = plan(con, statements(file)[name])
    assert any(index in step for step in steps), steps


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        (
            "circuit",
            [
                "sqlite_autoindex_circuits_1 (tenant=? AND key=?)",
                "runs_parked (tenant=? AND parked_on=?)",
                "p USING PRIMARY KEY (tenant=? AND key=? AND generation=?)",
                "r USING INTEGER PRIMARY KEY (rowid=?)",
                "circuit_samples_counted (tenant=? AND key=? AND generation=? AND good=?)",
            ],
        ),
        ("update_circuit", ["sqlite_autoindex_circuits_1 (tenant=? AND key=?)"]),
        ("release_parked", ["runs_parked (tenant=? AND parked_on=?)", "INTEGER PRIMARY KEY (rowid=?)"]),
        (
            "permit_state",
            ["PRIMARY KEY (tenant=? AND key=? AND generation=? AND run=?", "INTEGER PRIMARY KEY (rowid=?)"],
        ),
        (
            "circuits_due",
            [
                "runs_parked (tenant=? AND parked_on>?)",
                "runs_parked (tenant>?)",
                "circuits_open (until>? AND until<?)",
                "circuit_samples_recent (at>?)",
            ],
        ),
        ("circuits_changed_since", ["circuits_changed (changed_at>?)"]),
        ("delete_old_samples", ["circuit_samples_recent (at<?)"]),
        ("delete_old_probes", ["probes_old (at<?)"]),
    ],
)
def test_circuits_and_their_waiting_runs_are_found_by_index(
    con: sqlite3.Connection, name: str, indexes: list[str]
) -> None:
    steps = plan(con, statements("circuits")[name])
    assert [index for index in indexes if not any(index in step for step in steps)] == [], steps
    # The result of a subquery may be scanned, and the row that a recursion begins with.
    walked = [
        step
        for step in steps
        if step.startswith("SCAN") and not re.match(r"SCAN (waits|waiting|newest|w\b|CONST|\(subquery)", step)
    ]
    assert walked == [], steps


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("open_letters", ["SCAN g USING INDEX groups_open", "SCAN f"]),
        ("oldest_letter", ["SEARCH l USING INDEX letters_by_status (status=?)"]),
        ("due_by_lane", ["SEARCH runs USING INDEX runs_due (tenant=? AND queue=? AND rank=? AND workflow=?"]),
        ("suspects", ["USING INDEX runs_suspect", "USING INDEX runs_held"]),
        ("parked", ["USING INDEX runs_parked"]),
        ("suspended_versions", ["runs_suspended (workflow=? AND version>?)", "runs_suspended (workflow>?)"]),
        ("count_suspended", ["runs_suspended (workflow=? AND version=?)"]),
        ("held_versions", ["USING INDEX runs_held"]),
        ("sink_lags", ["deliveries_due (sink=? AND available_at>?", "deliveries_behind (sink=?", "deliveries_dead"]),
    ],
)
def test_figures_are_counted_along_an_index(con: sqlite3.Connection, name: str, steps: list[str]) -> None:
    """The statements read along waiting rows and stop at a limit: never through a whole table."""
    found = plan(con, statements("stats")[name])
    assert all(any(step in line for line in found) for step in steps), found
    assert not [line for line in found if re.fullmatch(r"SCAN (runs|letters|deliveries|messages|r|l|d|m)", line)]


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        (
            "has_due_deliveries",
            ["deliveries_due (sink=? AND available_at>? AND available_at<?)", "bundles_open (sink=?"],
        ),
        ("due_deliveries", ["deliveries_due (sink=? AND available_at>? AND available_at<?)"]),
        ("next_delivery", ["deliveries_due (sink=? AND available_at>?)", "bundles_open (sink=?)"]),
        ("earlier_unfinished", ["deliveries_in_order (sink=? AND tenant=? AND key=? AND message<?)"]),
        ("ahead", ["deliveries_in_order (sink=? AND tenant=? AND key=? AND message<?)"]),
        ("lock_unfinished", ["PRIMARY KEY (message=? AND sink=?)"]),
        ("wait_behind", ["PRIMARY KEY (message=? AND sink=?)"]),
        ("take_deliveries", ["PRIMARY KEY (message=? AND sink=?)"]),
        ("unfinished", ["PRIMARY KEY (message=? AND sink=?)"]),
        ("mark_delivered", ["PRIMARY KEY (message=? AND sink=?)"]),
        ("record_delivery", ["PRIMARY KEY (message=? AND sink=?)"]),
        ("release", ["deliveries_behind (sink=? AND behind=?)"]),
        ("unfinished_deliveries", ["PRIMARY KEY (message=?)", "sqlite_autoindex_messages_1 (public_id=?)"]),
        ("retry_delivery", ["PRIMARY KEY (message=? AND sink=?)"]),
        ("skip", ["PRIMARY KEY (message=? AND sink=?)"]),
        ("deliveries_of", ["PRIMARY KEY (message=?)", "PRIMARY KEY (id=?)"]),
        ("blocked_keys", ["deliveries_in_order (sink=? AND tenant=? AND key=? AND message>?)"]),
        ("expired_bundles", ["bundles_open (sink=?)", "w USING INTEGER PRIMARY KEY"]),
        ("bundle_of", ["sqlite_autoindex_messages_1 (public_id=?)"]),
        ("finish_bundles", ["PRIMARY KEY (id=? AND sink=?)"]),
        ("split_bundle", ["b USING PRIMARY KEY (id=?)", "m USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]),
        ("drop_bundles", ["PRIMARY KEY (id=?)"]),
    ],
)
def test_the_relay_finds_deliveries_and_messages_by_index(con: sqlite3.Connection, name: str, steps: list[str]) -> None:
    found = plan(con, statements("outbox")[name])
    assert [step for step in steps if not any(step in line for line in found)] == [], found
    # Dead deliveries and open bundles are few, and the result of a subquery or a list may be scanned.
    few = r"SCAN (\w+ VIRTUAL|CONSTANT|w\b|weighed|due|next|others|\(|\d|d USING INDEX deliveries_dead)"
    assert [line for line in found if line.startswith("SCAN") and not re.match(few, line)] == []


def test_a_time_long_ago_is_not_searched_row_by_row(con: sqlite3.Connection) -> None:
    line = AuditWrite(event="e", tenant="t", by="ann", subject="s")
    for hour in range(20):
        writes.write_audit(con, hour * 3_600_000_000, [line] * 500)
    ticks: list[int] = []
    con.set_progress_handler(lambda: ticks.append(1), 100)
    try:
        where = AuditFilter(until=3_600_000_000)
        page = run_inline(sqlite_calls(con).audit(where, limit=10, cursor=None))
    finally:
        con.set_progress_handler(None, 0)
        con.execute("DELETE FROM audit")
    assert len(page.items) == 10
    assert len(ticks) < 50  # hundreds of instructions; thousands of rows are newer
