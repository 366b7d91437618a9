"""Plans: every statement finds its rows by the index made for it, however full the store is.

Tables without statistics are the hard case: the planner knows nothing about them, and keeps the plans that
it makes then. The engine's connections therefore allow it no other way than the index.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import cluster
import pytest
import pytest_asyncio
from postgres_kit import Bench, opened

from redrive.store.postgres.connection import Connection
from redrive.store.sql_files import NumberedStatement, Statements, number_parameters, replace_schema

FILES = ("starts", "claims", "workers", "runs", "letters", "catalogue", "chores", "settings", "children")


def statements(file: str) -> dict[str, NumberedStatement]:
    """Return the statements of a file in PostgreSQL's syntax, including shared ones."""
    return {name: number_parameters(text) for name, text in Statements(f"{file}.sql").texts("postgres").items()}


STATEMENTS = {name: statement for file in FILES for name, statement in statements(file).items()}
SMALL = {"workers"}  # a row for each worker of the last day
WHOLE = {
    "all_workers",
    "live_versions",
    "policies",
    "paused",
    "delete_old_workers",
    "expire_workers",
    "dead_workers_with_runs",
}  # of a small table
BOUNDED = {
    "delete_old_audit",  # reads the oldest rows, no more than it may remove
    "count_held_by_worker",  # reads the runs that workers hold, along their index
    "count_stalled",  # the same
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=cluster.POSTGRES)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Open a store in a new schema for all tests of a module: none of them writes.

    An emptied schema would not do: the planner takes a rebuilt index for a little larger.
    """
    cluster.need_postgres()
    async with cluster.fresh(request.param) as url, opened(url) as bench:
        yield bench


async def plan(line: Connection, statement: NumberedStatement) -> list[str]:
    """Return the lines of a statement's generic plan, without costs.

    The server shows all of a recursion only after it ran.
    """
    how = "ANALYZE, TIMING OFF, SUMMARY OFF" if "RECURSIVE" in statement.text else "ANALYZE OFF"
    text = replace_schema(statement.text, line._schema)
    await line.con.execute(f"PREPARE asked AS {text}")
    nothing = f"({', '.join(['NULL'] * len(statement.names))})" if statement.names else ""
    rows = await line.con.fetch(f"EXPLAIN ({how}, COSTS OFF) EXECUTE asked{nothing}")
    await line.con.execute("DEALLOCATE asked")
    return [row[0].strip() for row in rows]


def scans(lines: list[str]) -> list[str]:
    """Return each index that is used, with its condition: `runs_due: tenant = ...`."""
    found = []
    for place, line in enumerate(lines):
        if name := re.search(r"Scan (?:Backward )?using (\w+)", line):
            after = lines[place + 1] if place + 1 < len(lines) else ""
            condition = re.sub(r"[()]", "", after.removeprefix("Index Cond: ")) if "Index Cond" in after else ""
            found.append(f"{name[1]}: {condition}")
    return found


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_no_statement_scans_a_whole_table(bench: Bench, name: str) -> None:
    async with bench.line() as line:
        lines = await plan(line, STATEMENTS[name])
    walked = {found[1] for found in (re.search(r"Seq Scan on (\w+)", each) for each in lines) if found}
    assert walked <= SMALL
    assert not [each for each in lines if re.search(r"Hash Join|Merge Join|Bitmap", each)]
    if name not in WHOLE | BOUNDED:
        aimless = [each for each in scans(lines) if each.endswith(": ")]
        assert aimless in ([], ["runs_due: "], ["pauses_pkey: "]), lines  # or where the first name is read


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("lanes", "runs_due: ROWtenant, queue, rank, workflow, pin > ROW"),
        ("find_due_lanes", "runs_due: ROWtenant, queue, rank, workflow, pin > ROW"),
        (
            "find_due_lanes",
            "runs_due: tenant = lanes.tenant AND queue = lanes.queue AND rank = lanes.rank AND workflow =",
        ),
        ("find_due_lanes", "runs_suspect_of: workflow = n.name AND pin = n.pin"),
        ("take", "runs_pkey: id = w_1.id"),
        ("journals", "entries_of_run: run = ANY"),
        ("beat", "runs_held: worker = "),
        ("beat", "runs_pkey: id = s.run"),
        ("beat", "entries_of_run: run = signs.run AND idx = signs.idx"),
        ("stuck_runs", "entries_limited: limit_at < "),
        ("stuck_runs", "runs_pkey: id = e.run"),
        ("overdue", "runs_deadline: deadline < "),
        ("dead_workers_with_runs", "runs_held: worker = w.id"),
        ("held", "runs_held: worker = "),
        ("ended_workflows", "runs_finished: workflow > ''"),
        ("ended_workflows", "runs_finished: workflow > names"),
        ("old_runs", "runs_finished: workflow = n.workflow AND finished_at IS NOT NULL AND finished_at <= "),
        ("old_runs", "letters_run_tenant_key: run = r.id"),
        ("surplus_runs", "letters_run_tenant_key: run = r_"),
        ("surplus_runs", "runs_finished: workflow = n.workflow"),
        ("surplus_runs", "runs_finished: workflow = n.workflow AND ROWfinished_at, id <= ROW"),
        ("surplus_runs", "idempotency_of_run: run = "),
        ("old_keys", "idempotency_expiring: expires_at <= "),
        ("old_keys", "letters_public_id_key: public_id = "),
        ("runs_with_expired_letters", "letters_expiring: expires_at <= "),
        ("drop_replays", "replays_pkey: letter = ANY"),
        ("delete_old_letters", "letters_closed: closed_at"),
        ("run", "runs_public_id_key: public_id = "),
        ("children_of", "runs_of_owner: owner = "),
        ("run_waits", "waits_for: kind = 'run'"),
        ("ended_subjects", "runs_public_id_key: public_id = "),
        ("wake_waiting", "runs_pkey: id = "),
        ("wake_free", "runs_pkey: id = ANY"),
        ("owned_runs", "runs_owned: ROWowner, id > ROW"),
        ("due_in_lane", "runs_due: tenant = $1 AND queue = $2 AND rank = $3 AND workflow = $4 AND pin = $5 AND"),
    ],
)
async def test_each_statement_uses_its_index(bench: Bench, name: str, index: str) -> None:
    async with bench.line() as line:
        found = scans(await plan(line, STATEMENTS[name]))
    assert [each for each in found if each.startswith(index)], found


RELAYED = (
    "due_deliveries", "next_delivery", "earlier_unfinished", "ahead", "lock_unfinished", "wait_behind",
    "take_deliveries", "unfinished", "mark_delivered", "record_delivery", "release", "unfinished_deliveries",
    "retry_delivery",
    "skip",
    "deliveries_of", "blocked_keys", "expired_bundles", "bundle_of", "finish_bundles", "split_bundle",
    "drop_bundles",
)  # fmt: skip


@pytest.mark.parametrize("name", RELAYED)
async def test_the_relay_finds_deliveries_and_messages_by_index(bench: Bench, name: str) -> None:
    async with bench.line() as line:
        lines = await plan(line, statements("outbox")[name])
    found = scans(lines)
    assert [each for each in lines if re.search(r"Seq Scan on|Hash Join|Merge Join|Bitmap", each)] == []
    assert found
    few = ("deliveries_dead", "bundles_open")  # dead deliveries, and those being delivered
    aimless = [each for each in found if each.endswith(": ") and not each.startswith(few)]
    # An index without a condition on its first column is read from end to end.
    aimless += [each for each in found if each.startswith("deliveries_pkey") and "message" not in each]
    assert aimless == []


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        (
            "circuit",
            [
                "circuits_tenant_key_key: ",
                "runs_parked: tenant = ",
                "probes_pkey: tenant = ",
                "runs_pkey: id = p.run",
                "circuit_samples_counted: tenant = ",
            ],
        ),
        ("lock_circuit", ["circuits_tenant_key_key: tenant = "]),
        ("update_circuit", ["circuits_tenant_key_key: tenant = "]),
        ("release_parked", ["runs_parked: tenant = ", "runs_pkey: id = ANY"]),
        ("permit_state", ["probes_pkey: tenant = ", "runs_pkey: id = "]),
        (
            "circuits_due",
            [
                "runs_parked: tenant = head.tenant AND parked_on > ",
                "runs_parked: tenant > ",
                "circuits_open: until <= ",
                "circuit_samples_recent: at >= ",
            ],
        ),
        ("circuits_changed_since", ["circuits_changed: changed_at >= "]),
        ("delete_old_samples", ["circuit_samples_recent: at <= ", "circuit_samples_pkey: run = "]),
        ("delete_old_probes", ["probes_old: at <= ", "runs_pkey: id = p.run", "probes_pkey: tenant = "]),
    ],
)
async def test_circuits_and_their_waiting_runs_are_found_by_index(bench: Bench, name: str, indexes: list[str]) -> None:
    async with bench.line() as line:
        lines = await plan(line, statements("circuits")[name])
    found = scans(lines)
    assert [index for index in indexes if not any(each.startswith(index) for each in found)] == [], lines
    assert [each for each in lines if re.search(r"Seq Scan on|Hash Join|Merge Join|Bitmap", each)] == []
    assert [each for each in found if each.endswith(": ")] == []  # an index without a condition is read from end to end


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        ("open_letters", ["groups_open: ", "letter_feed_pkey: "]),
        ("oldest_letter", ["letters_by_status: status = 'OPEN'"]),
        ("due_by_lane", ["runs_due: tenant = lane.tenant AND queue = lane.queue AND rank = lane.rank"]),
        ("suspects", ["runs_suspect: ", "runs_held: "]),
        ("parked", ["runs_parked: "]),
        ("suspended_versions", ["runs_suspended: workflow = head.workflow AND version > head.version"]),
        ("count_suspended", ["runs_suspended: workflow = $1 AND version = $2"]),
        ("held_versions", ["runs_held: "]),
        ("sink_lags", ["deliveries_due: sink = ", "deliveries_behind: sink = "]),
    ],
)
async def test_figures_are_counted_along_an_index(bench: Bench, name: str, indexes: list[str]) -> None:
    """The statements read along waiting rows and stop at a limit: never through a whole table."""
    async with bench.line() as line:
        lines = await plan(line, statements("stats")[name])
    found = scans(lines)
    assert all(any(each.startswith(index) for each in found) for index in indexes), lines
    assert not [each for each in lines if re.search(r"Seq Scan on (runs|letters|deliveries|messages)", each)]
