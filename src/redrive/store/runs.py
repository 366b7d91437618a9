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
from redrive.store.list_query import PageRequest, Window, filter_values, parse_states
from redrive.store.lists import ListQuery, detect_popular
from redrive.store.records import AttemptRow, Page, RunRow, RunSummary, attempt_row, entry_row, run_row, run_summary
from redrive.store.session import Database, Session, Statements, read_call
from redrive.store.workers import LANE_START

SQL = Statements("runs.sql")
LANES = Statements("claims.sql")["lanes"]

_MOST_COUNTED = 1000  # runs of an unregistered workflow: operators need to know that there are many, not how many
_MOST_LANES = 10_000


class RunCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @read_call()
    async def run(self, session: Session, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        row = await session.row(SQL["run"], public_id=public_id, tenant=tenant)
        return None if row is None else run_row(row)

    @read_call()
    async def runs_by_id(self, session: Session, public_ids: Sequence[str]) -> list[RunRow]:
        return await runs_by_id(session, public_ids)

    @read_call()
    async def runs(self, session: Session, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        request = PageRequest.of(limit, cursor)
        query = ListQuery(session, "runs", await detect_popular(session, filter_values(where)), run_row)
        found = await query.fetch(request.window, parse_states(where.status, RunStatus))
        return request.page(found.rows, found.reached)

    @read_call()
    async def run_summaries(
        self, session: Session, where: RunFilter, *, most: int, oldest: bool = False
    ) -> list[RunSummary]:
        values = await detect_popular(session, filter_values(where))
        query = ListQuery(session, "runs", values, run_summary, columns="runs.summaries")
        window = Window(most=most, above=0) if oldest else Window(most=most)
        return (await query.fetch(window, parse_states(where.status, RunStatus))).rows

    @read_call()
    async def journal(self, session: Session, run: int) -> list[EntryRow]:
        return [entry_row(row) for row in await session.rows(SQL["journal"], run=run)]

    @read_call()
    async def attempts(self, session: Session, run: int) -> list[AttemptRow]:
        return [attempt_row(row) for row in await session.rows(SQL["attempts"], run=run)]

    @read_call()
    async def unclaimable(self, session: Session, workflows: Sequence[str]) -> dict[str, int]:
        now = await session.now()
        known = set(workflows)
        for (names,) in await session.rows(SQL["live_workflows"]):
            known.update(json.loads(names))
        suspects = await session.rows(SQL["due_suspects"], at=now, known=sorted(known), most=_MOST_COUNTED)
        waiting = Counter(dict(suspects))
        start = {
            "tenant": LANE_START.tenant,
            "queue": LANE_START.queue,
            "rank": LANE_START.rank,
            "workflow": LANE_START.workflow,
        }
        for tenant, queue, rank, workflow, first_due in await session.rows(LANES, **start, most=_MOST_LANES):
            left = _MOST_COUNTED - waiting[workflow]
            if first_due <= now and workflow not in known and left > 0:
                lane = {"tenant": tenant, "queue": queue, "rank": rank, "workflow": workflow}
                waiting[workflow] += await session.value(SQL["due_in_lane"], **lane, at=now, most=left)
        return dict(waiting)


async def runs_by_id(session: Session, public_ids: Sequence[str]) -> list[RunRow]:
    """Return those of the runs that exist, with their payloads."""
    return [run_row(row) for row in await session.rows(SQL["runs_by_id"], public_ids=list(public_ids))]


async def read_journals(session: Session, runs: Sequence[int]) -> dict[int, tuple[EntryRow, ...]]:
    """Return the journals of these runs, superseded entries too."""
    if not runs:
        return {}
    rows = await session.rows(SQL["journals"], runs=list(runs))
    return {run: tuple([entry_row(row[1:]) for row in group]) for run, group in groupby(rows, key=itemgetter(0))}
