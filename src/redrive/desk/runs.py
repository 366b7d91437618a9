"""`app.runs`: look at runs, cancel them, retry those that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from redrive.clock import Clock
from redrive.core.outcome import Cancelled
from redrive.core.replay import Mode
from redrive.core.states import FINAL, EntryKind, RunStatus, StepStatus
from redrive.desk.around import AskWorkers, Surroundings, around
from redrive.desk.aside import aside, length
from redrive.desk.checks import a_flag, is_id, long_text, person
from redrive.desk.handling import handled_by
from redrive.desk.preview import DryRun, Previewer
from redrive.desk.replaying import Order, Replay, Replayer, make_request
from redrive.desk.shapes import Run
from redrive.desk.shaping import Shaper
from redrive.errors import Conflict, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.settle.settler import LocalSettler
from redrive.settle.view import open_steps, view_of
from redrive.signals.tally import Ear
from redrive.store.port import People
from redrive.store.records import Page, RunRow
from redrive.store.selection import RunFilter

__all__ = ["Runs", "find_run"]

_MODES = {"skip_failed": Mode.SKIP}
_OPEN = frozenset({StepStatus.PENDING, StepStatus.RUNNING, StepStatus.RETRYING})


class Runs:
    """Runs as people see and handle them."""

    def __init__(
        self,
        store: People,
        clock: Clock,
        shaper: Shaper,
        replayer: Replayer,
        previewer: Previewer,
        on_change: Callable[[str], None],
        workers: AskWorkers,
        *,
        ears: Sequence[Ear] = (),
    ) -> None:
        self._store = store
        self._replayer = replayer
        self._previewer = previewer
        self._settler = LocalSettler(store, clock, ears=ears)
        self._shaper = shaper
        self._on_change = on_change
        self._workers = workers

    async def get(self, run_id: str, *, tenant: str | None = None) -> Run:
        """One run with its input, result, steps and every attempt."""
        row = await find_run(self._store, run_id, tenant)
        letter = await self._store.letter_of(row.id) if row.status in FINAL else None
        shape = partial(
            self._shaper.run,
            row,
            entries=(entries := await self._store.journal(row.id)),
            attempts=(attempts := await self._store.attempts(row.id)),
            letter_id=None if letter is None else letter.public_id,
            handled_by=await handled_by(self._store, row.public_id),
        )
        return await aside(shape, length(row, entries, attempts))

    async def around(self, run_id: str, *, tenant: str | None = None) -> Surroundings:
        """What else decides how a run goes on: pauses, workers that are alive, the circuit it waits for."""
        return await around(self._store, await find_run(self._store, run_id, tenant), self._workers)

    async def list(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[Run]:
        """A page of runs, newest first; `page.next` and `page.prev` are cursors to its neighbours."""
        page = await self._store.runs(filter or RunFilter(), limit=limit, cursor=cursor)
        runs = await aside(lambda: [self._shaper.run(row) for row in page.items], length(page.items))
        return Page(runs, page.next, page.prev)

    async def cancel(
        self, run_id: str, *, by: str = "unknown", reason: str = "", tenant: str | None = None
    ) -> Run:
        """Cancel a run for good. Its worker hears of it with its next heartbeat and stops the step in flight.

        Cancelling a cancelled run changes nothing; one that ended otherwise is a conflict.
        """
        person(by)
        if reason:
            long_text("reason", reason)
        while True:
            row = await find_run(self._store, run_id, tenant)
            if row.status is RunStatus.CANCELLED:
                return await self.get(run_id, tenant=tenant)
            if row.status in FINAL:
                raise Conflict(Reason(ReasonCode.RUN_ENDED, run=run_id, status=row.status))
            if row.status is RunStatus.COMPENSATING:
                raise Conflict(Reason(ReasonCode.RUN_BEING_UNDONE, run=run_id))
            entries = await self._store.journal(row.id)
            if any(entry.kind is EntryKind.CONFIRM and not entry.superseded for entry in entries):
                raise Conflict(Reason(ReasonCode.RUN_CONFIRMING, run=run_id))
            now = self._store.now()
            still_open = open_steps((e for e in entries if e.status in _OPEN and not e.superseded), now)
            outcome = Cancelled(run=view_of(row), by=by, reason=reason, open=still_open)
            (settled,) = await self._settler.settle([outcome])
            if settled.kept:
                self._on_change(row.public_id)
                return await self.get(run_id, tenant=tenant)

    async def retry(
        self,
        run_id: str,
        mode: str = "from_failed",
        *,
        skip_steps: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        **options: Any,
    ) -> Replay | DryRun:
        """Run a failed or partial run again: `from_failed`, `full`, or `skip_failed`.

        `skip_steps` maps steps, by key or name, to results that are taken instead of calling them;
        `skip_failed` takes `output` (None) for the failed step's. Other options are those of `dlq.replay`;
        a run with an open dead letter is replayed through it.
        """
        chosen = _MODES.get(mode.lower(), mode) if isinstance(mode, str) else mode
        request = await make_request(chosen, skip_steps=skip_steps, **options)
        order = Order(request=request, by=by, reason=reason, key=idempotency_key, of_run=True)
        return await self._carry_out(run_id, order, tenant, dry_run=dry_run)

    async def rollback(
        self,
        run_id: str,
        *,
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
    ) -> Replay | DryRun:
        """Undo what a failed run did, by the compensations of its steps, whether or not its workflow says so.

        Refused if the run passed a pivot. `dry_run` says what would be undone, and undoes nothing.
        """
        request = await make_request(Mode.ROLLBACK)
        order = Order(request=request, by=by, reason=reason, key=idempotency_key, of_run=True)
        return await self._carry_out(run_id, order, tenant, dry_run=dry_run)

    async def _carry_out(
        self, run_id: str, order: Order, tenant: str | None, *, dry_run: bool
    ) -> Replay | DryRun:
        if a_flag("dry_run", dry_run):
            return await self._previewer.preview(run_id, order, tenant=tenant)
        return await self._replayer.replay(run_id, order, tenant=tenant)


async def find_run(store: People, run_id: str, tenant: str | None) -> RunRow:
    """The run of this id, if there is one that the asker may know of."""
    row = await store.run(run_id, tenant=tenant) if is_id(run_id) else None
    if row is None:
        raise NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(run_id)))
    return row
