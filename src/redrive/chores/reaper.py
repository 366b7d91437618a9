"""The reaper: ends runs and attempts that their workers do not end.

* Workers whose lease expired are declared dead; their runs become due again.
* Attempts that passed their time limit in a worker that does not end them are ended.
* Runs that passed their deadline are ended.
* Steps that workers of a queue execute are given to others, or ended, in the same cases.

Two reapers at once do no harm: each transition is fenced, so the store refuses the second one. A run that
cannot be read or decided on does not hinder the others; it is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redrive.clock import MICROS, Clock
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.outcomes import AttemptFailed, DeadlinePassed, EntryRef, OpenEntry, Outcome, WorkerLost
from redrive.core.run_options import StepOptions
from redrive.core.states import RunStatus
from redrive.core.transitions import AttemptEnd
from redrive.observability.counters import Counters, SettleListener
from redrive.record_fields import replace
from redrive.settle import settler
from redrive.settle.step_tasks import TaskSettler
from redrive.store.chores import HeldRun
from redrive.store.port import Store
from redrive.time_values import format_duration

log = logging.getLogger("redrive.chores")

_BATCH = 200


class Reaper:
    """Ends runs and attempts that their workers do not end, `margin` seconds after the workers should have."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        margin: float = 1.0,
        listeners: Sequence[SettleListener] = (),
        counters: Counters | None = None,
    ) -> None:
        self._store = store
        self._settler = settler.LocalSettler(store, clock, listeners=listeners)
        self._tasks = TaskSettler(store, clock, listeners=listeners)
        self._counters = counters
        self._margin = int(margin * MICROS)

    async def run_once(self) -> int:
        """Handle everything that is due; return the number of runs that were decided on."""
        # First, because a step that hung its worker until the lease expired counts as timed out, not as a crash.
        count = await self._settle(await self._find_timeouts())
        count += await self._recover_orphans()
        count += await self._recover_tasks()
        now, make_view = self._store.now(), settler.make_lenient_run_view
        overdue = await self._store.overdue(self._margin, _BATCH)
        return count + await self._settle(
            [DeadlinePassed(run=make_view(h.run), open=settler.make_open_steps(h.open, now)) for h in overdue]
        )

    async def _find_timeouts(self) -> list[Outcome]:
        hung = await self._store.hung(self._margin, _BATCH)
        # A worker that a step blocks renews its lease until the limit of the step. One that crashed before did not, so
        # its attempts are lost. Heartbeats come several times within a third of the lease.
        last_seen = {
            worker.id: worker.beat_at + (worker.lease_until - worker.beat_at) // 3
            for worker in (await self._store.workers() if hung else ())
        }
        now = self._store.now()
        found = [await self._make_timeout_outcome(held, last_seen.get(held.run.worker or 0, now)) for held in hung]
        return [outcome for outcome in found if outcome is not None]

    async def _recover_tasks(self) -> int:
        """End tasks that passed their limit, and give tasks of workers that are gone to others."""
        count = 0
        if late := await self._store.late_tasks(self._margin, _BATCH):
            count += await self._tasks.settle_late(late)
        if lost := await self._store.lost_tasks(_BATCH):
            count += await self._tasks.settle_lost(lost)
        return count

    async def _recover_orphans(self) -> int:
        count = 0
        for worker in await self._store.expire_workers():
            held = await self._store.held(worker.id)
            name = f"{worker.id} ({worker.name})"
            outcomes = make_lost_outcomes(held, self._store.now(), died=worker.state != "STOPPED", worker=name)
            # One commit for all of a worker's runs: whether a run is suspected depends on the others.
            decided = await self._settle(outcomes)
            if decided:  # otherwise another process was first, and logs it
                suspects = [each.run.id for each in outcomes if each.deaths > each.run.deaths]
                if suspects:
                    await self._store.record_suspects(worker.id, suspects)
                log.warning("worker %s is dead; runs to continue: %d", name, decided)
                if self._counters is not None and worker.state != "STOPPED":
                    self._counters.worker_deaths += 1
            count += decided
        return count

    async def _make_timeout_outcome(self, held: HeldRun, last_seen: int) -> Outcome | None:
        """Return the outcome of an attempt that hangs; other attempts of the run are lost with it.

        None if the attempt has ended meanwhile, or if its worker was last seen before the limit of the attempt.
        """
        now = self._store.now()
        journal = await self._store.journal(held.run.id)
        late = [e for e in held.open if e.limit_at is not None and e.limit_at < min(now - self._margin, last_seen)]
        if not late:
            return None
        entry = min(late, key=lambda entry: entry.limit_at or now)
        try:
            step = StepOptions() if entry.options is None else StepOptions.from_json(entry.options)
        except Exception as error:  # of any kind: the snapshot is unreadable
            settler.log_unreadable_options(held.run.public_id, entry.name, error)
            # The run is taken from its worker as if the worker had died, but counts no death. The worker that
            # claims it next knows from its own code what may be repeated.
            run = settler.make_lenient_run_view(held.run)
            return WorkerLost(run=run, deaths=run.deaths, executing=True, open=_open_steps(held, now))
        tried = [] if step.circuit is None else await self._store.attempts(held.run.id)
        message = f"step {entry.name!r} did not finish within {format_duration(step.limit)}, nor did its worker end it"
        return AttemptFailed(
            run=settler.make_lenient_run_view(held.run),
            place=EntryRef(entry.index, entry.key, entry.kind, entry.name),
            attempt=entry.attempt,
            began_ago=max(0, now - entry.began_at),
            first_ago=max(0, now - entry.first_at - settler.sum_parked_time(tried, entry.index, now)),
            # Far above any number that the worker may use until this is written.
            done=max((e.done for e in journal if e.done is not None), default=-1) + 1_000_000,
            input=entry.input or "null",
            failure=Failure.of(Category.TIMEOUT, message, error_type="builtins.TimeoutError"),
            step=step,
            end=AttemptEnd.TIMED_OUT,
            taken=True,
            admitted=step.build_admitted_call(held.run.workflow, entry.name),
            others=tuple([each for each in _open_steps(held, now) if each.place.index != entry.index]),
        )

    async def _settle(self, outcomes: Sequence[Outcome]) -> int:
        if not outcomes:
            return 0
        # An outcome is marked where the letter of a rollback was not written yet.
        run_ids = [each.run.public_id for each in outcomes if each.run.undoing and each.run.letter]
        cases = await self._store.cases(run_ids) if run_ids else []
        unwritten = {case.run.id for case in cases if case.letter is None}
        marked = [
            replace(each, run=replace(each.run, letter_unwritten=True)) if each.run.id in unwritten else each
            for each in outcomes
        ]
        return sum(each.kept for each in await settler.settle_bisecting(self._settler, marked))


def _open_steps(held: HeldRun, now: int) -> tuple[OpenEntry, ...]:
    """Return the open entries of a run, without attempts that other workers make: those do not end with its worker."""
    return tuple([each for each in settler.make_open_steps(held.open, now) if not _is_remote(each)])


def _is_remote(entry: OpenEntry) -> bool:
    return entry.executing and entry.options is not None and '"remote":' in entry.options


def make_lost_outcomes(held: list[HeldRun], now: int, *, died: bool, worker: str = "") -> list[WorkerLost]:
    """Return the outcomes of a worker's death, or of its stop (`died=False`), for the runs that it held.

    The death counts against the suspects among the runs that it executed; if there was none, all of these
    become suspects. Runs that only waited are not suspected.
    """
    # A run that sleeps, or has a time at which it is due, waited in the worker's memory.
    executing = {h.run.id for h in held if h.run.status is not RunStatus.SLEEPING and h.run.available_at is None}
    known = any(h.run.deaths for h in held if h.run.id in executing)
    outcomes: list[WorkerLost] = []
    for h in held:
        is_executing = h.run.id in executing
        suspected = died and is_executing and (h.run.deaths > 0 or not known)
        outcomes.append(
            WorkerLost(
                run=settler.make_lenient_run_view(h.run),
                deaths=h.run.deaths + 1 if suspected else h.run.deaths,
                executing=is_executing,
                worker=worker,
                wake_in=max(0, (h.run.available_at or now) - now),
                open=_open_steps(h, now),
            )
        )
    return outcomes
