"""Every statement finds its rows by the index made for it, however full the store is.

Tables that nobody has analysed yet are the hard case: the planner knows nothing of them, and the plans
it makes then are kept. The engine's connections therefore allow it no other way than the index.
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from postgres_kit import Bench, eventually
from store_kit import SECOND, becomes, entry, writes

from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.store.filters import conditions, given, hint
from redrive.store.pages import Window
from redrive.store.port import Claim, LetterFilter, Purge, RunFilter
from redrive.store.postgres import chores, claims, lists, reads, settings, starts, workers
from redrive.store.postgres import writes as applying
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import Statement, in_schema, prepare

MODULES = (starts, claims, workers, reads, chores, settings)
STATEMENTS = {name: statement for module in MODULES for name, statement in module.SQL.items()}
SMALL = {"workers"}  # a row for each worker of the last day
WHOLE = {"all_workers", "policies", "paused", "old_workers", "bury", "graves"}  # of a small table


async def plan(line: Line, statement: Statement) -> list[str]:
    """The lines of a statement's generic plan, without costs."""
    text = in_schema(statement.text, line._schema)
    await line.con.execute(f"PREPARE asked AS {text}")
    nothing = f"({', '.join(['NULL'] * len(statement.names))})" if statement.names else ""
    rows = await line.con.fetch(f"EXPLAIN (COSTS OFF) EXECUTE asked{nothing}")
    await line.con.execute("DEALLOCATE asked")
    return [row[0].strip() for row in rows]


def scans(lines: list[str]) -> list[str]:
    """Each index that is used, with what it is asked for: `runs_due: tenant = ...`."""
    found = []
    for place, line in enumerate(lines):
        if name := re.search(r"Scan (?:Backward )?using (\w+)", line):
            after = lines[place + 1] if place + 1 < len(lines) else ""
            condition = (
                re.sub(r"[()]", "", after.removeprefix("Index Cond: ")) if "Index Cond" in after else ""
            )
            found.append(f"{name[1]}: {condition}")
    return found


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_no_statement_walks_through_a_table(bench: Bench, name: str) -> None:
    async with bench.line() as line:
        lines = await plan(line, STATEMENTS[name])
    walked = {found[1] for found in (re.search(r"Seq Scan on (\w+)", each) for each in lines) if found}
    assert walked <= SMALL
    assert not [each for each in lines if re.search(r"Hash Join|Merge Join|Bitmap", each)]
    if name not in WHOLE:
        aimless = [each for each in scans(lines) if each.endswith(": ")]
        assert aimless in ([], ["runs_suspect: "], ["runs_due: ", "runs_suspect: "]), lines


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("lanes", "runs_due: ROWtenant, queue, rank, workflow > ROW"),
        ("look", "runs_due: ROWtenant, queue, rank, workflow > ROW"),
        (
            "look",
            "runs_due: tenant = lanes.tenant AND queue = lanes.queue AND rank = lanes.rank AND workflow =",
        ),
        ("look", "runs_suspect: "),
        ("take", "runs_pkey: id = w_1.id"),
        ("journals", "entries_of_run: run = ANY"),
        ("beat", "runs_held: worker = "),
        ("beat", "runs_pkey: id = s.run"),
        ("beat", "entries_of_run: run = signs.run AND idx = signs.idx"),
        ("hung", "entries_limited: limit_at < "),
        ("hung", "runs_pkey: id = e.run"),
        ("overdue", "runs_deadline: deadline < "),
        ("graves", "runs_held: worker = w.id"),
        ("held", "runs_held: worker = "),
        ("old_runs", "runs_finished: finished_at"),
        ("old_runs", "letters_run_tenant_key: run = r.id"),
        ("old_keys", "idempotency_expiring: expires_at <= "),
        ("expiring_letters", "letters_expiring: expires_at <= "),
        ("expire_letter", "letters_pkey: id = ANY"),
        ("fail_expired", "runs_pkey: id = ANY"),
        ("old_letters", "letters_closed: closed_at"),
        ("run", "runs_public_id_key: public_id = "),
        (
            "due_in_lane",
            "runs_due: tenant = $1 AND queue = $2 AND rank = $3 AND workflow = $4 AND available_at",
        ),
    ],
)
async def test_each_uses_the_index_made_for_it(bench: Bench, name: str, index: str) -> None:
    async with bench.line() as line:
        found = scans(await plan(line, STATEMENTS[name]))
    assert [each for each in found if each.startswith(index)], found


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (RunFilter(), "runs_pkey: "),
        (RunFilter(tenant="a"), "runs_of_tenant: tenant = "),
        (RunFilter(workflow="w"), "runs_of_workflow: workflow = "),
        (RunFilter(status="PENDING"), "runs_by_status: status = "),
        (RunFilter(status="FAILED"), "runs_by_status: status = "),
        (RunFilter(status="RUNNING"), "runs_held: "),
        (RunFilter(correlation_id="c"), "runs_correlated: "),
        (RunFilter(idempotency_key="k"), "idempotency_given: given = "),
        (LetterFilter(), "letters_pkey: "),
        (LetterFilter(tenant="a"), "letters_of_tenant: tenant = "),
        (LetterFilter(status="OPEN"), "letters_by_status: status = "),
        (LetterFilter(fingerprint="f"), "letters_by_fingerprint: fingerprint = "),
    ],
    ids=str,
)
async def test_each_list_uses_the_index_made_for_it(
    bench: Bench, where: RunFilter | LetterFilter, index: str
) -> None:
    table = "runs" if isinstance(where, RunFilter) else "letters"
    values = conditions(given(where), Window(most=10, below=100), None)
    hints: list[str] = []
    if where.status is not None:
        values["status"] = str(where.status)
        hints = hint(table, values["status"])
    wanted = " AND ".join(lists.SQL[f"{table}.{name}"] for name in [*values, *hints])
    statement = prepare(lists.SQL[table].format(conditions=wanted, order="DESC"))
    async with bench.line() as line:
        lines = await plan(line, statement)
    found = scans(lines)
    assert [each for each in found if each.startswith(index)], lines
    assert not [each for each in lines if "Seq Scan" in each]


# -- how much is really read ---------------------------------------------------------------------------

FILL = """
INSERT INTO redrive.workers (name, version, state, workflows, lease, started_at, beat_at, lease_until)
VALUES ('busy', 'v', 'LIVE', '["w"]', 1, 0, 0, 9000000000000000000);
INSERT INTO redrive.runs
    (public_id, tenant, workflow, queue, rank, status, created_at, finished_at, fence)
SELECT 'done' || n, 'tenant' || n % 7, 'w', 'default', 0, 'SUCCESS', {now}, {now}, 2
FROM generate_series(1, {finished}) AS n;
INSERT INTO redrive.runs (public_id, tenant, workflow, queue, rank, status, created_at, available_at)
SELECT 'due' || n, 'tenant' || n % 7, 'w', 'default', 0, 'PENDING', {now}, {now}
FROM generate_series(1, {due}) AS n;
INSERT INTO redrive.runs (public_id, tenant, workflow, queue, rank, status, created_at, worker, fence)
SELECT 'held' || n, 'tenant' || n % 7, 'w', 'default', 0, 'RUNNING', {now}, 1, 1
FROM generate_series(1, {held}) AS n;
INSERT INTO redrive.inputs (run, tenant, input, options) SELECT id, tenant, '', '' FROM redrive.runs;
INSERT INTO redrive.results (run, tenant, output) SELECT id, tenant, '1' FROM redrive.runs WHERE fence = 2;
INSERT INTO redrive.entries
    (run, idx, attempt, fence, first_at, began_at, ended_at, tenant, key, kind, name, status)
SELECT id, 0, 1, 2, {now}, {now}, {now}, tenant, 'k', 'step', 's', 'SUCCESS'
FROM redrive.runs WHERE fence = 2;
INSERT INTO redrive.letters
    (public_id, tenant, run, run_id, workflow, status, code, stage, category, reason, failure, fingerprint,
     payload_hash, input, options, attempts, version, created_at, failed_at, expires_at)
SELECT 'letter' || n, 'tenant' || n % 7, n, 'r', 'w', 'OPEN', 'timeout', 'exec', 'timeout', 'r', '', 'f',
       '', '', '', 1, '', {now}, {now}, 9000000000000000000
FROM generate_series(1, {letters}) AS n;
"""


async def fill(bench: Bench, *, finished: int, due: int, held: int) -> None:
    """A store with a past. Nobody analyses its tables."""
    sizes = {
        "finished": finished,
        "due": due,
        "held": held,
        "letters": finished // 20,
        "now": bench.clock.now(),
    }
    for table in ("runs", "inputs", "results", "entries", "letters"):
        await bench.sql(f"ALTER TABLE redrive.{table} SET (autovacuum_enabled = off)")
    for statement in FILL.split(";\n")[:-1]:
        await bench.sql(statement.format(**sizes))


async def rows_read(bench: Bench, work) -> int:
    """How many rows and index entries a piece of work reads, on a connection of its own."""
    count = (
        "SELECT (SELECT COALESCE(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE schemaname = $1) "
        "+ (SELECT COALESCE(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE schemaname = $1) AS n, "
        "(SELECT n_tup_upd FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'versions') AS mark"
    )

    async def counted() -> SimpleNamespace:
        (row,) = await bench.sql(count, bench.address.schema)
        return SimpleNamespace(**row)

    await bench.sql(
        "INSERT INTO redrive.versions (version, first_seen_at) VALUES ('x', 0) ON CONFLICT DO NOTHING"
    )
    before = await counted()
    async with bench.line() as line:
        await work(line)
        await line.script("UPDATE redrive.versions SET first_seen_at = first_seen_at")
        await line.con.close()  # what a connection has read is published when it ends

    async def published() -> bool:
        return (await counted()).mark > before.mark

    await eventually(published)
    return int((await counted()).n - before.n)


async def the_calls_of_a_day(bench: Bench) -> dict[str, object]:
    """Every kind of call, with what it is allowed to read."""
    worker, run = await bench.kit.worker(), (await bench.store.held(1))[0].run
    everybody = Claim(worker=worker, workflows=("w",), capacity=50, suspect=True)
    idle = replace(everybody, workflows=("nothing",))
    purge = Purge(runs=10**15, letters=10**15, workers=10**15, limit=100)
    mark = writes(run, entry(5, StepStatus.RUNNING, limit_in=SECOND))
    taken = becomes(run, RunStatus.SLEEPING, wake_in=0, take=True)
    return {
        "start": lambda line: starts.start(line, bench.time, [bench.kit.new() for _ in range(50)]),
        "claim": lambda line: claims.claim(line, bench.time, everybody),
        "idle claim": lambda line: claims.claim(line, bench.time, idle),
        "apply": lambda line: applying.apply(line, bench.time, [mark], 1),
        "take": lambda line: applying.apply(line, bench.time, [taken], None),
        "bury": lambda line: chores.bury(line, bench.time, certain=True),
        "hung": lambda line: chores.hung(line, bench.time, 0, 100),
        "overdue": lambda line: chores.overdue(line, bench.time, 0, 100),
        "purge": lambda line: chores.purge(line, bench.time, purge),
        "run": lambda line: reads.run(line, run.public_id, None),
        "journal": lambda line: reads.journal(line, run.id),
        "letter": lambda line: reads.letter_of(line, run.id),
        "runs": lambda line: lists.runs(line, RunFilter(), 20, None),
        "runs of a tenant": lambda line: lists.runs(line, RunFilter(tenant="tenant3"), 20, None),
        "running": lambda line: lists.runs(line, RunFilter(status=RunStatus.RUNNING), 20, None),
        "pending": lambda line: lists.runs(line, RunFilter(status=RunStatus.PENDING), 20, None),
        "failed": lambda line: lists.runs(line, RunFilter(status=RunStatus.FAILED), 20, None),
        "letters": lambda line: lists.letters(line, LetterFilter(status=LetterStatus.OPEN), 20, None),
        "unclaimable": lambda line: reads.unclaimable(line, bench.time, []),
    }  # fmt: skip


async def check_reading(bench: Bench, most: int) -> None:
    too_much = {}
    for name, call in (await the_calls_of_a_day(bench)).items():
        if (read := await rows_read(bench, call)) > most:
            too_much[name] = read
    assert too_much == {}


async def test_no_call_reads_more_than_it_needs(bench: Bench) -> None:
    await fill(bench, finished=20_000, due=3000, held=300)
    await check_reading(bench, most=1500)


@pytest.mark.slow
async def test_no_call_reads_more_than_it_needs_among_a_million(bench: Bench) -> None:
    await fill(bench, finished=1_000_000, due=100_000, held=300)
    await check_reading(bench, most=1500)
