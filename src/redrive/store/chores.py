"""Store calls of the chores: finding dead workers, hung and overdue runs and expired letters, and purging old data.

Every call is short, bounded, and safe to make from several processes at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import msgspec

from redrive.core.journal import EntryRow
from redrive.store.circuits import MARK_RETENTION
from redrive.store.notifications import purge_notifications
from redrive.store.outbox import purge_messages
from redrive.store.questions import purge_questions
from redrive.store.runs import RunRow, entry_row, run_row
from redrive.store.session import Database, Session, read_call, write_call
from redrive.store.sql_files import Statement, Statements
from redrive.store.workers import WorkerRow, worker_row

SQL = Statements("chores.sql")
CIRCUITS = Statements("circuits.sql")
BULK = Statements("bulk.sql")
STARTS = Statements("starts.sql")
TASKS = Statements("step_tasks.sql")


class HeldRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run whose worker died, that passed its deadline, or whose step hangs.

    `open` are its unfinished entries: running attempts, and waiting retries and sleeps.
    """

    run: RunRow
    worker: int | None
    open: tuple[EntryRow, ...]


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Retention times in microseconds, and the number of rows that one call may remove.

    Without a time for `letters`, letters are never removed, and neither are the runs that failed with them.
    `keep` limits the number of finished runs of each workflow, whatever their age; `keeps` overrides it for
    single workflows.
    """

    runs: int
    letters: int | None
    workers: int
    limit: int
    audit: int = 365 * 86_400_000_000
    messages: int = 86_400_000_000
    keep: int | None = None
    keeps: Mapping[str, int] = msgspec.field(default_factory=dict)

    def workflows_by_limit(self, workflows: Iterable[str]) -> dict[int, list[str]]:
        """Return the workflows by the number of runs that they keep, without those that have no limit."""
        found: dict[int, list[str]] = {}
        for name in workflows:
            if (keep := self.keeps.get(name, self.keep)) is not None:
                found.setdefault(keep, []).append(name)
        return found


class ChoreStore(Protocol):
    """Calls of the chores that recover runs and remove old data."""

    async def expire_workers(self) -> list[WorkerRow]:
        """Declare workers dead whose lease has expired; return all dead or stopped ones that still hold runs."""

    async def held(self, worker: int) -> list[HeldRun]:
        """Return the runs that a worker holds."""

    async def hung(self, margin: int, limit: int) -> list[HeldRun]:
        """Return runs with an attempt that passed its limit by more than `margin`.

        The begin mark of the present claim sets the limit (`limit_in`). If the step has a heartbeat timeout, each
        heartbeat moves the limit on, up to the timeout of the step.
        """

    async def overdue(self, margin: int, limit: int) -> list[HeldRun]:
        """Return unfinished runs that passed their deadline by more than `margin`."""

    async def runs_with_expired_letters(self, limit: int) -> list[RunRow]:
        """Return runs whose open letters got no decision in time."""

    async def unescalated(self) -> list[tuple[str, str, int]]:
        """Return each tenant and workflow with open letters that are not escalated, and when the oldest failed."""

    async def letters_to_escalate(self, tenant: str, workflow: str, *, before: int, limit: int) -> list[str]:
        """Return open letters of a workflow that failed before a time and are not escalated, the oldest first."""

    async def purge(self, purge: PurgeRequest) -> int:
        """Remove data whose retention time is over; return the number of rows removed."""


class ChoreCalls:
    """Implements `ChoreStore`."""

    database: Database

    @write_call(begin=False)
    async def expire_workers(self, session: Session) -> list[WorkerRow]:
        # Most of the time no lease has run out, and the write lock is not needed.
        if await session.rows(SQL["expired_workers"]):
            async with session.transaction():
                await session.rows(SQL["expire_workers"])
        return await dead_workers_with_runs(session)

    @read_call()
    async def held(self, session: Session, worker: int) -> list[HeldRun]:
        return await _read_held(session, "held", worker=worker)

    @read_call()
    async def hung(self, session: Session, margin: int, limit: int) -> list[HeldRun]:
        return await _read_held(session, "stuck_runs", margin=margin, most=limit)

    @read_call()
    async def overdue(self, session: Session, margin: int, limit: int) -> list[HeldRun]:
        return await _read_held(session, "overdue", margin=margin, most=limit)

    @read_call()
    async def runs_with_expired_letters(self, session: Session, limit: int) -> list[RunRow]:
        return [run_row(row) for row in await session.rows(SQL["runs_with_expired_letters"], most=limit)]

    @read_call()
    async def unescalated(self, session: Session) -> list[tuple[str, str, int]]:
        return [(row[0], row[1], row[2]) for row in await session.rows(SQL["unescalated"])]

    @read_call()
    async def letters_to_escalate(
        self, session: Session, tenant: str, workflow: str, *, before: int, limit: int
    ) -> list[str]:
        scope = {"tenant": tenant, "workflow": workflow}
        return [row[0] for row in await session.rows(SQL["letters_to_escalate"], **scope, before=before, most=limit)]

    @write_call()
    async def purge(self, session: Session, purge: PurgeRequest) -> int:
        most = purge.limit
        async with session.transaction():
            now = await session.now()
            # Notifications and bulk actions are kept as long as letters, but not without a limit.
            letters_before = now - (purge.audit if purge.letters is None else purge.letters)
            removed = 0 if purge.letters is None else await _purge_letters(session, letters_before, most)
            removed += await _purge_runs(session, now, purge)
            removed += await _count_removed(session, BULK["delete_old_items"], before=letters_before, most=most)
            removed += await _count_removed(session, BULK["delete_old_bulk"], before=letters_before)
            removed += await purge_questions(session, letters_before, most)
            removed += await _purge_keys(session, now, most)
            for name in ("delete_old_samples", "delete_old_successes", "delete_old_probes"):
                removed += await _count_removed(session, CIRCUITS[name], before=now - MARK_RETENTION, most=most)
            removed += await _purge_workers(session, now - purge.workers, most)
            removed += await purge_messages(session, now - purge.messages, most)
            removed += await purge_notifications(session, now, letters_before, most)
            removed += await _count_removed(session, SQL["delete_old_audit"], before=now - purge.audit, most=most)
        return removed


async def dead_workers_with_runs(session: Session) -> list[WorkerRow]:
    """Return the dead or stopped workers that still hold runs."""
    return [worker_row(row) for row in await session.rows(SQL["dead_workers_with_runs"])]


async def _read_held(session: Session, statement: str, **params: Any) -> list[HeldRun]:
    """Return the runs that a statement finds, with their open entries."""
    runs = [run_row(row) for row in await session.rows(SQL[statement], **params)]
    if not runs:
        return []
    found = await session.rows(SQL["open_entries"], runs=[run.id for run in runs])
    entries = {run: tuple(entry_row(row[1:]) for row in group) for run, group in groupby(found, key=itemgetter(0))}
    return [HeldRun(run=run, worker=run.worker, open=entries.get(run.id, ())) for run in runs]


async def _count_removed(session: Session, statement: Statement, **params: Any) -> int:
    """Run a statement that returns a row for each row it removed; return how many."""
    return len(await session.rows(statement, **params))


async def _purge_letters(session: Session, before: int, most: int) -> int:
    gone = await session.rows(SQL["delete_old_letters"], before=before, most=most)
    if gone:
        await session.rows(SQL["delete_old_replays"], letters=[row[0] for row in gone])
    return len(gone)


async def _purge_workers(session: Session, before: int, most: int) -> int:
    gone = await session.rows(SQL["delete_old_workers"], before=before, most=most)
    if gone:
        await session.rows(SQL["delete_remote_workers"], workers=[row[0] for row in gone])
    return len(gone)


async def _purge_runs(session: Session, now: int, purge: PurgeRequest) -> int:
    """Remove runs that ended long enough ago, then those beyond the number that their workflow keeps."""
    names = [row[0] for row in await session.rows(SQL["ended_workflows"])]
    failed = purge.letters is None  # keep the failed runs that have a letter
    old = await session.rows(SQL["old_runs"], names=names, before=now - purge.runs, most=purge.limit, failed=failed)
    await _drop_runs(session, now, old)
    surplus: list[Any] = []
    for keep, these in purge.workflows_by_limit(names).items():
        most = purge.limit - len(surplus)
        surplus += await session.rows(SQL["surplus_runs"], names=these, keep=keep, most=most, failed=failed)
    await _drop_runs(session, now, surplus)
    return len(old) + len(surplus)


async def _drop_runs(session: Session, now: int, old: Sequence[Any]) -> None:
    """Drop runs with all their rows. A run that an idempotency key still names keeps its state and its result."""
    if not old:
        return
    ids = [id for id, _ in old]
    run_rows = ("drop_entries", "drop_attempts", "drop_inputs", "drop_events", "drop_waits", "drop_notes")
    for name in ("drop_replays", *run_rows):
        await session.rows(SQL[name], runs=ids)
    await session.rows(STARTS["drop_index"], runs=ids)
    await session.rows(TASKS["drop_tasks"], runs=ids)
    await session.rows(SQL["mark_purged"], runs=[id for id, named in old if named], now=now)
    for name in ("drop_results", "drop_runs"):
        await session.rows(SQL[name], runs=[id for id, named in old if not named])


async def _purge_keys(session: Session, now: int, most: int) -> int:
    old = await session.rows(SQL["old_keys"], most=most, now=now)
    if old:
        await session.write_many(
            SQL["drop_key"], ({"tenant": tenant, "key": key, "now": now} for tenant, key, _ in old)
        )
        bare = await session.rows(SQL["purged_runs"], runs=[run for _, _, run in old])
        for name in ("drop_results", "drop_runs"):
            await session.rows(SQL[name], runs=[row[0] for row in bare])
    return len(old)
