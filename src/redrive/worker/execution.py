"""One run in the hands of a worker, from its claim to its end.

    drive     decode the input, call the function, settle how it ended; or do what follows the function
    settle    send an outcome, wait until what was decided is durable
    check     go on only with a run that is still this worker's
    put down  unwind its code, send nothing more

What its function asks for is answered in `worker/requests.py` and `worker/notes.py`.

Everything that leaves this module goes through the committer as an outcome, and comes back as what
was decided. When the run is no longer this worker's (it waits too long, was taken away, or the
worker stops), the execution is *put down*: from then on every engine call raises `PutDown`, nothing
more is sent, and its tasks are cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from redrive.clock import MICROS, Timer
from redrive.core.ending import Ending, Stage
from redrive.core.failure import Failure
from redrive.core.failure import capture as capture_failure
from redrive.core.generations import generation_of_call
from redrive.core.journal import EntryRow, Journal
from redrive.core.outcome import (
    Ended,
    Escaped,
    Expired,
    OpenStep,
    Outcome,
    Place,
    Released,
)
from redrive.core.states import FINAL
from redrive.errors import PutDown
from redrive.reasons import Reason
from redrive.settle.view import view_of_claimed
from redrive.worker.attempt import Attempt
from redrive.worker.branch import Branch
from redrive.worker.confirm import confirm_all
from redrive.worker.function import call_function
from redrive.worker.notes import Notes
from redrive.worker.requests import Requests
from redrive.worker.rest import Rest
from redrive.worker.rollback import roll_back
from redrive.worker.sole import Sole
from redrive.worker.tasks import Tasks
from redrive.worker.turnstile import Turnstile

if TYPE_CHECKING:
    from redrive.settle.settler import Settled
    from redrive.store.workers import Claimed
    from redrive.worker.definition import WorkflowDefinition
    from redrive.worker.loop import Worker

__all__ = ["Execution"]

log = logging.getLogger("redrive.worker")


class Execution:
    """A claimed run while this worker has it."""

    def __init__(
        self,
        worker: Worker,
        claimed: Claimed,
        workflow: WorkflowDefinition,
        *,
        claimed_at: int,
        ended: Ended | None = None,
    ) -> None:
        self.worker = worker
        self.claimed = claimed
        self.claimed_at = claimed_at
        self.clock = worker.clock
        self.correlation_id = claimed.correlation_id or claimed.public_id
        self.dead = False
        self.winding = False
        self.ending = False
        self.view = view_of_claimed(claimed, worker.options_of(claimed.options), worker.version)
        self.workflow = workflow
        self._ended = ended
        self._follows = ended is not None or self.view.undoing
        self.journal = Journal(() if self._follows else claimed.journal)
        self._loop = asyncio.get_running_loop()
        self.rest = Rest(self)
        self.tasks = Tasks(self, self._loop)
        self.turnstile = Turnstile(
            self._loop, self.journal, on_quiet=self._all_blocked, on_diverged=self._diverged
        )
        self.requests = Requests(self)
        self.notes = Notes(self)
        self.sole = Sole(self)
        self.open: dict[int, Attempt] = {}
        self._in_flight = 0
        self.starting = 0  # runs that the store is being asked to start
        self._recording: dict[int, asyncio.Future[Settled]] = {}  # results on their way, by number
        self.kept_waiting = 0
        self.endings: dict[str, tuple[Ending, Place, int]] = {}
        self._difference: Reason | None = None
        self._task: asyncio.Task[None] | None = None

    # -- the life of the run ------------------------------------------------------------------------

    def launch(self) -> asyncio.Task[None]:
        """Begin executing; the task ends when the run ended or was put down."""
        self._task = self._loop.create_task(self._drive(), name=f"redrive run {self.claimed.public_id}")
        return self._task

    async def _drive(self) -> None:
        if self.dead:  # it was put down before it had its first turn
            return
        root = Branch(self)
        me = asyncio.current_task()
        assert me is not None
        root.task = me
        self.turnstile.tasks[me] = root
        deadline = self._arm_deadline()
        tracing = self.worker.tracing
        span = None if tracing is None else tracing.executing(self.view, self.claimed_at)
        try:
            if self._follows:
                await self._follow(root)
                return
            if self.claimed.deadline is not None and not self.left_until(self.claimed.deadline):
                await self._expire()
                return
            outcome = await call_function(self, self.workflow, root)
            if not self.dead:
                self.ending = True
                await self.tasks.close_branches(me)
                await self._finish(outcome)
        except PutDown:
            pass  # the run is somebody else's by now, or waits in the store
        except asyncio.CancelledError:
            if not self.dead:
                raise
        finally:
            if deadline is not None:
                deadline.cancel()
            if span is not None:
                span.end()
            self.turnstile.end(me)

    def come_apart(self) -> None:
        """It is over: let go of the parts that hold it, so that no circle of references keeps its memory.

        Where tasks of its code are still unwinding, they need it whole.
        """
        if not self.tasks.any_left:
            self._task = None
            del self.rest, self.tasks, self.requests, self.notes, self.sole

    async def _follow(self, root: Branch) -> None:
        """Do what follows the function: confirm what it reserved, or undo what it did."""
        if self._ended is not None:
            await confirm_all(self, root, self._ended)
        else:
            await roll_back(self, root)

    def _rolls_back(self, outcome: Escaped) -> bool:
        """True if what the function did is to be undone: it says so, or made reservations, and no pivot.

        A replay of one step alone ends as it began, and so does a run whose function was never called.
        """
        wanted = self.view.options.rollback or self.requests.reserved
        called = outcome.ending.stage is not Stage.INPUT and self.claimed.sole_step is None
        return wanted and called and not self.requests.pivoted

    async def _finish(self, outcome: Outcome) -> None:
        if self.sole.cut_off:
            outcome = self.sole.stopped()
        if self._difference is None and isinstance(outcome, Ended):
            forgotten = self.journal.forgotten()
            if forgotten:
                self._difference = self.journal.difference(())
        if self._difference is not None:
            outcome = await self.worker.code_changed(self.claimed, self.view, self._difference)
        else:
            self.notes.send_held_back()
        if isinstance(outcome, Escaped):
            outcome = replace(outcome, rolls_back=self._rolls_back(outcome))
        elif isinstance(outcome, Ended) and self.requests.reserved:
            self.dead = True  # whatever is left of the function's tasks sends nothing more
            self.worker.confirm(self, outcome)
            return
        settled = await self.settle(outcome)
        self.dead = True
        self.worker.ended(self.claimed, settled)

    # -- journal ------------------------------------------------------------------------------------

    def number_from(self, rows: Iterable[EntryRow]) -> None:
        """Number new entries behind those on record."""
        self._number_behind(Journal(rows))

    def follow(self, before: Execution) -> None:
        """Number new entries behind what another execution recorded, some of which may be on its way."""
        self._number_behind(before.journal)

    def _number_behind(self, known: Journal) -> None:
        journal = self.journal
        journal.next_index = max(journal.next_index, known.next_index)
        journal.next_done = max(journal.next_done, known.next_done)

    def next_index(self) -> int:
        """The number of a new entry."""
        index = self.journal.next_index
        self.journal.next_index = index + 1
        return index

    def next_done(self) -> int:
        number = self.journal.next_done
        self.journal.next_done = number + 1
        return number

    def generation_of(self, key: str) -> int:
        """The generation of a call: it is part of what outside services know the call by."""
        current = self.claimed.generation
        return generation_of_call(self.claimed.journal, key, current) if current else 0

    # -- waiting ------------------------------------------------------------------------------------

    def _all_blocked(self) -> None:
        """Nothing moves by itself any more: the run waits, or is at the end of what it may do."""
        if self.sole.is_over:
            self.tasks.engine_task(self.sole.stop())
        else:
            self.rest.all_wait()

    def alone(self) -> bool:
        """True if nothing else goes on in the run, so that a wait of this branch is a wait of the run."""
        return len(self.turnstile.tasks) <= 1 and not self._in_flight and not self.rest

    def left_until(self, wake_at: int | None) -> float:
        return max(0.0, ((wake_at or 0) - self.worker.store.now()) / MICROS)

    async def ready(self) -> None:
        """Return when new work may begin: the lease is good, nothing is being put down or wound up."""
        while True:
            if self.dead or self.ending:
                raise PutDown
            if self.winding:
                self.kept_waiting += 1  # it would go on now, and does so wherever the run is taken up next
                self.worker.came_to_stop()
                await self.never()
            if self.notes.held_back and self.journal.turn is None:
                self.notes.send_held_back()
            if self.rest.parking is not None:
                await asyncio.shield(self.rest.parking)
            elif self.notes.unsaved is not None:
                await self.notes.saved()
            elif self.worker.lease.healthy():
                return
            else:
                self.kept_waiting += 1
                try:
                    await self.clock.sleep(0.05)
                finally:
                    self.kept_waiting -= 1

    @property
    def is_ready(self) -> bool:
        """The quick form of `ready`, for the common case."""
        return (
            not (self.dead or self.ending or self.winding or self.rest.parking or self.notes.unsaved)
            and not self.notes.held_back
            and self.worker.lease.healthy()
        )

    async def never(self) -> None:
        """Wait until the run is put down."""
        await self._loop.create_future()

    # -- settling -----------------------------------------------------------------------------------

    async def settle(self, outcome: Outcome) -> Settled:
        """Send an outcome and wait until what was decided is durable."""
        if self.dead:
            raise PutDown
        self._in_flight += 1
        answer = self.worker.committer.submit(outcome)
        done: int | None = getattr(outcome, "done", None)
        if done is not None:
            self._recording[done] = answer
        try:
            return self.check(await answer)
        finally:
            self._in_flight -= 1
            if done is not None:
                self._recording.pop(done, None)

    async def recorded_before(self, done: int) -> None:
        """Wait until no result with a lower number is on its way: whoever resumes will see that one first."""
        if lower := [answer for number, answer in self._recording.items() if number < done]:
            await asyncio.wait(lower)

    def check(self, settled: Settled) -> Settled:
        """Go on only with a run that is still this worker's."""
        change = settled.transition.change
        if settled.kept and settled.transition.clears_suspicion:
            self._cleared()
        if not settled.kept:
            log.info("run %s is no longer this worker's", self.claimed.public_id)
        elif change is None or change.status not in FINAL or self.ending:
            return settled
        else:
            self.worker.ended(self.claimed, settled)
        self.put_down()
        raise PutDown

    def _cleared(self) -> None:
        """The run has made progress and is no suspect any more: its worker may take the next one."""
        if self.view.deaths:
            self.view = replace(self.view, deaths=0)
            self.worker.bell.ring()

    def capture(self, error: BaseException) -> Failure:
        return capture_failure(error, self.worker.rules, self.worker.store.now() / MICROS)

    # -- putting down -------------------------------------------------------------------------------

    def put_down(self) -> None:
        """This worker has nothing more to do with the run: unwind its code, send nothing."""
        if self.dead:
            return
        self.dead = True
        self.turnstile.close()
        self.tasks.cancel()
        self.worker.hands.put_down(self)

    async def give_back(self, delay: int) -> None:
        """Release the run for any worker to take up after `delay` microseconds."""
        await self.settle(Released(run=self.view, open=self.open_steps(), delay=delay))
        self.put_down()

    def wind_up(self) -> None:
        """The worker stops: begin nothing new; say so once nothing is in flight."""
        self.winding = True
        if not self.busy:
            self.worker.came_to_stop()

    @property
    def is_live(self) -> bool:
        """True while the workflow function goes on here."""
        return not self.dead and not self.ending

    @property
    def busy(self) -> bool:
        """True while a step executes, something is being recorded, or another run is being started."""
        return bool(self.open) or self._in_flight > 0 or self.starting > 0

    @property
    def settling(self) -> bool:
        """True while an answer is awaited, which will tell whether the run is still this worker's."""
        return self._in_flight > 0

    def release(self) -> Released:
        """The outcome of giving the run back as it is."""
        delay = 0.0 if self.open or self.kept_waiting else self.rest.first_due_in()
        return Released(run=self.view, open=self.open_steps(), delay=int(delay * MICROS))

    def open_steps(self) -> tuple[OpenStep, ...]:
        """The entries that have not ended: attempts under way, and waits."""
        now = self.clock.monotonic()
        executing = (
            OpenStep(place=a.place, attempt=a.attempt, began_ago=int((now - a.began) * MICROS))
            for a in self.open.values()
            if not a.over  # what is over is being recorded already
        )
        return (*executing, *self.rest.open_steps())

    def heartbeats(self) -> dict[tuple[int, int], str | None]:
        """The signs of life that steps sent since the last time."""
        attempts = list(self.open.values())  # the loop goes on opening and closing them meanwhile
        return {(self.claimed.id, a.place.index): a.news() for a in attempts if a.has_news}

    def _arm_deadline(self) -> Timer | None:
        if self.claimed.deadline is None or self._follows:
            return None
        return self.clock.call_later(self.left_until(self.claimed.deadline), self._deadline_passed)

    def _deadline_passed(self) -> None:
        if not self.dead and not self.ending:
            self.tasks.engine_task(self._expire())

    async def _expire(self) -> None:
        with suppress(PutDown):
            await self.settle(Expired(run=self.view, open=self.open_steps()))
            self.put_down()  # what it did is undone by whoever claims it next

    def _diverged(self, wanted: list[str]) -> None:
        """The code asks for something else than is recorded: end the function and settle that."""
        self._difference = self.journal.difference(wanted)
        self.turnstile.close()
        self.tasks.engine_task(self._give_up())

    async def _give_up(self) -> None:
        assert self._difference is not None
        outcome = await self.worker.code_changed(self.claimed, self.view, self._difference)
        with suppress(PutDown):
            await self.settle(outcome)
            self.put_down()
