"""Statements in `.sql` files: their names, their purpose, and their use by both stores."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.resources import files

import pytest

from redrive.errors import ConfigurationError
from redrive.store.sql_files import load_migrations, load_statements, parse_statements, translate_to_sqlite

SHARED, SQLITE, POSTGRES = "redrive.store", "redrive.store.sqlite", "redrive.store.postgres"
STORES = [SQLITE, POSTGRES]


def test_statements_are_found_by_name() -> None:
    text = "-- A file.\n\n-- name: one\n-- The first.\nSELECT 1;\n"
    text += "\n-- name: two\n-- The second.\nSELECT 2,\n  3;\n"
    assert parse_statements(text, "x.sql") == {"one": "SELECT 1", "two": "SELECT 2,\n  3"}


def test_a_statement_without_a_purpose_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="about its purpose"):
        parse_statements("-- name: one\nSELECT 1;\n", "x.sql")


def test_a_name_is_used_once() -> None:
    with pytest.raises(ConfigurationError, match="two statements"):
        parse_statements("-- name: a\n-- One.\nSELECT 1;\n-- name: a\n-- Two.\nSELECT 2;\n", "x.sql")


@pytest.mark.parametrize(
    ("shared", "sqlite"),
    [
        ("id = ANY (CAST(:ids AS bigint[]))", "id IN (SELECT value FROM json_each(:ids))"),
        ("id <> ALL (CAST(:ids AS bigint[]))", "id NOT IN (SELECT value FROM json_each(:ids))"),
        ("id = ANY (ARRAY(SELECT 1 LIMIT 2))", "id IN (SELECT * FROM (SELECT 1 LIMIT 2))"),
        ("EXISTS (SELECT 1 FROM redrive.runs\n OFFSET 0)", "EXISTS (SELECT 1 FROM runs)"),
        ("SELECT 1 FOR SHARE SKIP LOCKED", "SELECT 1"),
        ("SELECT 1 FOR NO KEY UPDATE OF r", "SELECT 1"),
        ("FROM a /* INDEXED BY b */ /* CROSS */ JOIN c", "FROM a INDEXED BY b CROSS JOIN c"),
    ],
)
def test_a_shared_statement_is_adapted_to_sqlite(shared: str, sqlite: str) -> None:
    assert translate_to_sqlite(shared) == sqlite


def test_parallel_arrays_are_rows_on_sqlite() -> None:
    text = translate_to_sqlite(
        "SELECT w.a, w.b, w.c FROM unnest(CAST(:x AS text[]), CAST(:y AS bigint[]), CAST(:z AS text[])) AS w (a, b, c)"
    )
    with closing(sqlite3.connect(":memory:")) as con:
        rows = con.execute(text, {"x": '["p","q"]', "y": "[1,2]", "z": '[null,"\u00e9"]'}).fetchall()
    assert rows == [("p", 1, None), ("q", 2, "\u00e9")]


def statements(store: str) -> dict[str, set[str]]:
    """Return the names in each statement file of a store."""
    folder = files(store).joinpath("statements")
    return {file.name: set(load_statements(store, file.name)) for file in folder.iterdir()}


@pytest.mark.parametrize("store", [SHARED, *STORES])
def test_every_statement_is_used(store: str) -> None:
    users = [SHARED, *STORES] if store == SHARED else [SHARED, store]
    code = "\n".join(text for each in users for text in sources(each).values())
    for file, names in statements(store).items():
        assert f'"{file}"' in code, f"{file} is not loaded"
        for name in names:
            last = name.split(".")[-1]
            used = f'"{last}"' in code or f'.{last}"' in code or f"    {last}: " in code
            assert used, f"{file}: {name!r} is not used"


# Statements that are one call of a function or one round trip on PostgreSQL, and several on SQLite.
TOGETHER = {
    "start": {"existing_ids", "existing_keys", "last_id", "insert_run", "insert_input", "insert_key",
              "starting_worker"},
    "apply": {
        "fences", "open_attempt", "change_run", "clear_suspicion", "set_version", "put_result",
        "put_entry", "close_entries", "put_attempt", "put_letter",
        "expired_wait", "drop_waits", "end_wait", "put_wait", "use_event", "put_note", "waiting_for",
        "put_question", "end_question", "withdraw_questions",
    },
    "send_event": {"receiver", "event_of_key", "unread_size", "put_event", "event_wait", "wake_run"},
    "awaited_run": {"waiting_run", "run_end"},
    "apply_with_rest": {
        "reopen_run", "edit_input", "supersede", "loosen", "move_letter", "move_letter_to_run", "end_replay",
        "put_replay", "count_replay", "return_events", "drop_superseded_waits", "copy_events", "copy_wakeups",
        "replace_run", "copy_owner", "move_children",
        "insert_circuit_if_new", "put_sample", "drop_probe",
        "last_message", "put_message", "put_delivery",
        "sinks_for", "messages_between", "put_bundle", "clear_bundles",
    },
    "start_single": {"starting_worker", "insert_run", "insert_input"},
    "write_success": {"fences", "change_run", "put_result", "waiting_for"},
    "write_entry": {"fences", "put_entry"},
    "write_entry_and_success": {"fences", "put_entry", "change_run", "put_result", "waiting_for"},
    "write_entry_once": {"fences", "put_entry"},
    "write_entry_and_success_once": {"fences", "put_entry", "change_run", "put_result", "waiting_for"},
    "note": {"put_audit"},
    "find_due_lanes": {"worker_version", "candidates", "next_due", "next_suspect", "paused_names", "claimed_runs"},
    "beat": {"renew_lease", "held_ids", "record_step_heartbeat", "is_draining"},
}  # fmt: skip
# Statements that only PostgreSQL has: roles, locks where SQLite has one writer, the clock of the server.
ONLY_POSTGRES = {
    "lock_migrations", "missing_roles", "current_user", "backend_pid", "roles_not_granted", "tenant_tables",
    "excess_role_rights",
    "excess_login_rights", "insert_probe_run", "foreign_rows", "server_time", "end_idle_connections", "publish",
    "inherits_engine",
}  # fmt: skip
# SQLite migrates without other users of the file; on PostgreSQL an administrator decides when. One query
# of the fences serves all transitions there, and the texts of a letter are in its row.
ONLY_SQLITE = {"has_due_deliveries", "live_workers", "count_held_fences", "put_letter_texts", "any_run_wait"}


@pytest.mark.parametrize("store", STORES)
def test_a_statement_is_either_shared_or_specific_to_a_store(store: str) -> None:
    shared = statements(SHARED)
    twice = {file: names & shared.get(file, set()) for file, names in statements(store).items()}
    assert {file: names for file, names in twice.items() if names} == {}


def test_both_stores_use_the_same_name_for_the_same_statement() -> None:
    sqlite, postgres = (set().union(*statements(store).values()) for store in STORES)
    assert sqlite - postgres == ONLY_SQLITE.union(*TOGETHER.values())
    assert postgres - sqlite == ONLY_POSTGRES | TOGETHER.keys()


def test_a_combined_postgres_statement_names_its_parts() -> None:
    """A search for `put_entry` finds it in both stores."""
    parts = TOGETHER["apply"] | TOGETHER["apply_with_rest"] | TOGETHER["note"] | TOGETHER["beat"]
    package = files(POSTGRES)
    texts = [item.read_text("utf-8") for item in package.joinpath("statements").iterdir()]
    texts += [item.read_text("utf-8") for item in package.joinpath("migrations").iterdir()]
    text = "\n".join(texts)
    assert [name for name in sorted(parts) if name not in text] == []


def test_both_stores_have_the_same_migrations() -> None:
    names = [[(each.version, each.name) for each in load_migrations(store)] for store in STORES]
    assert names[0] == names[1]


def sources(package: str) -> dict[str, str]:
    return {item.name: item.read_text("utf-8") for item in files(package).iterdir() if item.name.endswith(".py")}
