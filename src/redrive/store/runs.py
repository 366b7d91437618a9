"""Store calls that read runs, their journals and their failed attempts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from redrive.core.journal import EntryRow
from redrive.core.states import RunStatus
from redrive.store.filters import RunFilter
from redrive.store.list_query import Request, Window, filter_values, states_of
from redrive.store.lists import Query, with_popular
from redrive.store.records import (
    AttemptRow,
    Page,
    RunGlance,
    RunRow,
    attempt_row,
    entry_row,
    run_glance,
    run_row,
)
from redrive.store.session import Database, Session, Statements, reads
from redrive.store.workers import START

__all__ = ["RunCalls", "journals", "runs_by_id"]

SQL = Statements("runs.sql")
LANES = Statements("claims.sql")["lanes"]

_COUNTED = 1000  # runs of an unregistered workflow: operators need to know that there are many, not how many
_LANES = 10_000


class RunCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @reads()
    async def run(self, session: Session, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        row = await session.row(SQL["run"], public_id=public_id, tenant=tenant)
        return None if row is None else run_row(row)

    @reads()
    async def runs_by_id(self, session: Session, public_ids: Sequence[str]) -> list[RunRow]:
        return await runs_by_id(session, public_ids)

    @reads()
    async def runs(
        self, session: Session, where: RunFilter, *, limit: int, cursor: str | None
    ) -> Page[RunRow]:
        request = Request.of(limit, cursor)
        query = Query(session, "runs", await with_popular(session, filter_values(where)), run_row)
        found = await query.fetch(request.window, states_of(where.status, RunStatus))
        return request.page(found.rows, found.reached)

    @reads()
    async def glances(
        self, session: Session, where: RunFilter, *, most: int, oldest: bool = False
    ) -> list[RunGlance]:
        values = await with_popular(session, filter_values(where))
        query = Query(session, "runs", values, run_glance, columns="runs.glances")
        window = Window(most=most, above=0) if oldest else Window(most=most)
        return (await query.fetch(window, states_of(where.status, RunStatus))).rows

    @reads()
    async def journal(self, session: Session, run: int) -> list[EntryRow]:
        return [entry_row(row) for row in await session.rows(SQL["journal"], run=run)]

    @reads()
    async def attempts(self, session: Session, run: int) -> list[AttemptRow]:
        return [attempt_row(row) for row in await session.rows(SQL["attempts"], run=run)]

    @reads()
    async def unclaimable(self, session: Session, workflows: Sequence[str]) -> dict[str, int]:
        now = await session.now()
        known = set(workflows)
        for (names,) in await session.rows(SQL["live_workflows"]):
            known.update(json.loads(names))
        suspects = await session.rows(SQL["due_suspects"], at=now, known=sorted(known), most=_COUNTED)
        waiting = Counter(dict(suspects))
        start = {"tenant": START.tenant, "queue": START.queue, "rank": START.rank, "workflow": START.workflow}
        for tenant, queue, rank, workflow, first_due in await session.rows(LANES, **start, most=_LANES):
            left = _COUNTED - waiting[workflow]
            if first_due <= now and workflow not in known and left > 0:
                lane = {"tenant": tenant, "queue": queue, "rank": rank, "workflow": workflow}
                waiting[workflow] += await session.value(SQL["due_in_lane"], **lane, at=now, most=left)
        return dict(waiting)


async def runs_by_id(session: Session, public_ids: Sequence[str]) -> list[RunRow]:
    """Return those of the runs that exist, with their payloads."""
    return [run_row(row) for row in await session.rows(SQL["runs_by_id"], public_ids=list(public_ids))]


async def journals(session: Session, runs: Sequence[int]) -> dict[int, tuple[EntryRow, ...]]:
    """Return the journals of these runs, superseded entries too."""
    if not runs:
        return {}
    rows = await session.rows(SQL["journals"], runs=list(runs))
    return {
        run: tuple([entry_row(row[1:]) for row in group]) for run, group in groupby(rows, key=itemgetter(0))
    }
