"""Reap: find what no worker will finish, and decide on it as a worker would have.

* Workers whose lease ran out are declared dead; their runs become due again.
* Attempts that passed their limit in a worker that does not end them are ended from here.
* Runs that passed their deadline are ended.

Two reapers at once do no harm: each transition is fenced, so the second one's is refused. Neither does a
run that cannot be read or decided on: the others are, and the log names it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redrive.clock import MICROS, Clock
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.journal import EntryRow
from redrive.core.outcomes import AttemptFailed, DeadlinePassed, EntryRef, Outcome, WorkerLost
from redrive.core.run_options import StepOptions
from redrive.core.states import RunStatus
from redrive.core.transitions import AttemptEnd
from redrive.duration import format_duration
from redrive.observability.counters import Counters, SettleListener
from redrive.records import replace
from redrive.settle.settler import (
    LocalSettler,
    make_lenient_run_view,
    make_open_step,
    make_open_steps,
    settle_bisecting,
    sum_parked_time,
)
from redrive.store.port import Store
from redrive.store.recovery import HeldRun
from redrive.store.runs import RunRow

log = logging.getLogger("redrive.chores")

_BATCH = 200


class Reaper:
    """Ends what its worker does not end. `margin` is the head start workers get, in seconds."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        margin: float = 1.0,
        ears: Sequence[SettleListener] = (),
        tally: Counters | None = None,
    ) -> None:
        self._store = store
        self._settler = LocalSettler(store, clock, ears=ears)
        self._tally = tally
        self._margin = int(margin * MICROS)

    async def run_once(self) -> int:
        """Reap once; returns how many runs were decided on."""
        return await self._recover_orphans() + await self._end_hung_attempts() + await self._expire_overdue_runs()

    async def _recover_orphans(self) -> int:
        count = 0
        for worker in await self._store.expire_workers():
            held = await self._store.held(worker.id)
            outcomes = make_lost_outcomes(held, self._store.now(), died=worker.state != "STOPPED")
            # One commit for all of a worker's runs: who is suspected depends on who was there.
            decided = await self._settle(outcomes)
            if decided:  # otherwise another node was quicker, and says so
                log.warning("worker %d (%s) is gone; %d of its runs are due again", worker.id, worker.name, decided)
                if self._tally is not None and worker.state != "STOPPED":
                    self._tally.worker_deaths += 1
            count += decided
        return count

    async def _end_hung_attempts(self) -> int:
        held = await self._store.hung(self._margin, _BATCH)
        return await self._settle([out for run in held if (out := await self._make_timeout_outcome(run)) is not None])

    async def _make_timeout_outcome(self, held: HeldRun) -> Outcome | None:
        """The attempt that hangs in this run has timed out; others under way there are lost with it.

        None if it came to its end after all, just before its run was looked at.
        """
        now = self._store.now()
        journal = await self._store.journal(held.run.id)
        late = [e for e in held.open if e.limit_at is not None and e.limit_at < now - self._margin]
        if not late:
            return None
        entry = min(late, key=lambda entry: entry.limit_at or now)
        step = _read_step_options(held.run, entry)
        if step is None:
            return _make_lost_outcome(held, now)
        tried = [] if step.circuit is None else await self._store.attempts(held.run.id)
        message = f"step {entry.name!r} did not finish within {format_duration(step.limit)}, nor did its worker end it"
        return AttemptFailed(
            run=make_lenient_run_view(held.run),
            place=EntryRef(entry.index, entry.key, entry.kind, entry.name),
            attempt=entry.attempt,
            began_ago=max(0, now - entry.began_at),
            first_ago=max(0, now - entry.first_at - sum_parked_time(tried, entry.index, now)),
            # Far beyond what its worker may record until this is written.
            done=max((e.done for e in journal if e.done is not None), default=-1) + 1_000_000,
            input=entry.input or "null",
            failure=Failure.of(Category.TIMEOUT, message, error_type="builtins.TimeoutError"),
            step=step,
            end=AttemptEnd.TIMED_OUT,
            taken=True,
            admitted=step.admitted(held.run.workflow, entry.name),
            others=tuple(make_open_step(e, now) for e in held.open if e is not entry),
        )

    async def _expire_overdue_runs(self) -> int:
        now = self._store.now()
        held = await self._store.overdue(self._margin, _BATCH)
        return await self._settle(
            [DeadlinePassed(run=make_lenient_run_view(h.run), open=make_open_steps(h.open, now)) for h in held]
        )

    async def _settle(self, outcomes: list[Outcome]) -> int:
        if not outcomes:
            return 0
        settled = await settle_bisecting(self._settler, await self._mark_unwritten_letters(outcomes))
        return sum(each.kept for each in settled)

    async def _mark_unwritten_letters(self, outcomes: list[Outcome]) -> list[Outcome]:
        """The same, with whether anybody has seen a letter yet that is to hear how a rollback ends."""
        asked = [each.run.public_id for each in outcomes if each.run.undoing and each.run.letter]
        cases = await self._store.cases(asked) if asked else []
        unseen = {case.run.id for case in cases if case.letter is None}
        return [
            replace(each, run=replace(each.run, letter_unwritten=True)) if each.run.id in unseen else each
            for each in outcomes
        ]


def _read_step_options(run: RunRow, entry: EntryRow) -> StepOptions | None:
    """The snapshot of an attempt; None if it cannot be read."""
    try:
        return StepOptions() if entry.options is None else StepOptions.from_json(entry.options)
    except Exception as error:  # whatever is wrong with it
        log.error("the options of step %r of run %s cannot be read: %r", entry.name, run.public_id, error)
        return None


def _make_lost_outcome(held: HeldRun, now: int) -> WorkerLost:
    """The run is taken from its worker, as if that had died; the death is laid to nobody.

    Whoever claims it next knows from its own code what may be repeated.
    """
    run = make_lenient_run_view(held.run)
    return WorkerLost(run=run, deaths=run.deaths, executing=True, open=make_open_steps(held.open, now))


def _is_executing(run: RunRow) -> bool:
    """Return False if the run waited in its worker's memory: it sleeps, or has a time at which it is due."""
    return run.status is not RunStatus.SLEEPING and run.available_at is None


def make_lost_outcomes(held: list[HeldRun], now: int, *, died: bool) -> list[Outcome]:
    """What the death of their worker means for its runs.

    A death is laid to the suspects among the runs it executed; if there was none, all become suspects.
    Runs that only waited are no suspects, and a worker that stopped in good order lays nothing to anybody.
    """
    executing = [h for h in held if _is_executing(h.run)]
    known = any(h.run.deaths for h in executing)
    outcomes: list[Outcome] = []
    for h in held:
        is_executing = _is_executing(h.run)
        suspected = died and is_executing and (h.run.deaths > 0 or not known)
        outcomes.append(
            WorkerLost(
                run=make_lenient_run_view(h.run),
                deaths=h.run.deaths + 1 if suspected else h.run.deaths,
                executing=is_executing,
                wake_in=max(0, (h.run.available_at or now) - now),
                open=make_open_steps(h.open, now),
            )
        )
    return outcomes
