"""What workflow code asks of the engine, answered from the journal or for real.

    step      recorded? -> the record.   new? -> try, settle, wait, try again ... -> value or StepFailed
    sleep     recorded? -> go on.        new? -> record when it is over, wait
    limit     recorded? -> as it was.    new? -> record when it is over, watch
    start     recorded? -> the record.   new? -> start it, record that

Notes and messages, which nobody waits for, are in `worker/notes.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from redrive.clock import MICROS
from redrive.core.ending import Ending, step_failed
from redrive.core.journal import MAX_ENTRIES, EntryRow, entry_key
from redrive.core.outcome import Interrupted, Noted, Place, Slept, Woke
from redrive.core.payload import check_size
from redrive.core.quick import quick
from redrive.core.states import EntryKind, StepStatus
from redrive.errors import PutDown
from redrive.worker.branch import Branch, current
from redrive.worker.function import TooManyEntries
from redrive.worker.limit import TimeLimit
from redrive.worker.tries import Tries

if TYPE_CHECKING:
    from redrive.worker.definition import Step
    from redrive.worker.execution import Execution

__all__ = ["Requests"]

_NewPlace = quick(Place)


class Requests:
    """The engine calls of one run's function.

    `reserved`: steps were called that are confirmed or cancelled in the end. `pivoted`: one has happened
    after which nothing is undone.
    """

    __slots__ = ("_execution", "_journal", "_turnstile", "pivoted", "reserved")

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._journal = execution.journal
        self._turnstile = execution.turnstile
        self.reserved = False
        self.pivoted = False

    async def step(
        self, branch: Branch, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a step: from the record, or for real until it succeeds or fails for good."""
        execution = self._execution
        branch = self._awaiting(branch)
        place, entry = self.place(branch, EntryKind.STEP, step.name)
        branch.go_in()
        try:
            if step.cancel is not None:
                self.reserved = True
            if entry is not None:
                if entry.done is not None:
                    await self._turnstile.pass_result(entry.done, entry.key)
                    return self._recorded(step, place, entry)
                if entry.status is StepStatus.CANCELLED:
                    await execution.never()
            if execution.claimed.sole_step is not None:
                await execution.sole.keep_out(place)
            if self._journal.turn is not None:
                await self._let_begin(place, entry)
            text = step.signature.encode(args, kwargs)
            check_size(text, execution.worker.max_payload, step.its_input)
            value = await Tries(execution, branch, step, place, text).until_settled(entry, args, kwargs)
            if step.options.pivot:
                self.pivoted = True
            return value
        except asyncio.CancelledError:
            if execution.dead or execution.ending:
                raise PutDown from None
            raise
        finally:
            branch.come_out()

    def _recorded(self, step: Step[Any, Any], place: Place, entry: EntryRow) -> Any:
        if entry.status in (StepStatus.SUCCESS, StepStatus.SKIPPED):
            self.pivoted = self.pivoted or step.options.pivot
            return step.signature.decode_result(entry.output or "null")
        ending = Ending.from_json(entry.failure or "")
        self._execution.endings[entry.key] = (ending, place, entry.attempt)
        raise step_failed(ending, key=entry.key)

    async def _let_begin(self, place: Place, entry: EntryRow | None) -> None:
        """Wait until a step may begin, or go on. One that is cancelled before it goes on has an end, too."""
        execution = self._execution
        try:
            await self._turnstile.begin(place.key)
        except asyncio.CancelledError:
            if entry is not None and not execution.dead:
                await execution.settle(Interrupted(run=execution.view, place=place, attempt=entry.attempt))
            raise

    async def sleep(self, branch: Branch, seconds: float) -> None:
        """Wait durably."""
        execution = self._execution
        branch = self._awaiting(branch)
        place, entry = self.place(branch, EntryKind.SLEEP, "redrive.sleep")
        branch.go_in()
        try:
            if entry is not None and entry.done is not None:
                await self._turnstile.pass_result(entry.done, entry.key)
                return
            if entry is not None and entry.status is StepStatus.CANCELLED:
                await execution.never()
            await self._sleep_live(place, entry, seconds)
        except asyncio.CancelledError:
            recorded = entry is not None and entry.status is not StepStatus.RUNNING
            if not execution.dead and not recorded and not execution.worker.is_being_cancelled:
                resumes = execution.rest.wake_up()
                await execution.settle(Interrupted(run=execution.view, place=place, resumes=resumes))
            if execution.dead or execution.ending:
                raise PutDown from None
            raise
        finally:
            branch.come_out()

    async def _sleep_live(self, place: Place, entry: EntryRow | None, seconds: float) -> None:
        execution = self._execution
        await self._begin_live(place)
        if entry is None:
            delay, idle, hold = int(seconds * MICROS), execution.alone(), execution.worker.hold()
            settled = await execution.settle(
                Slept(run=execution.view, place=place, delay=delay, idle=idle, hold=hold)
            )
            await execution.rest.wait(place, 1, seconds, settled.transition.change)
        else:
            await execution.rest.wait(place, 1, execution.left_until(entry.wake_at), None)
        done = execution.next_done()
        resumes = execution.rest.wake_up()
        await execution.settle(Woke(run=execution.view, place=place, done=done, resumes=resumes))
        await self._turnstile.pass_result(done, place.key)

    async def _begin_live(self, place: Place) -> None:
        """Wait until something that is not on record may begin."""
        await self._execution.sole.keep_out(place)
        if self._journal.turn is not None:
            await self._turnstile.begin(place.key)
        await self._execution.ready()

    def limit(self, branch: Branch, seconds: float) -> TimeLimit:
        """Begin a durable time limit for the block of code that the current task enters."""
        execution = self._execution
        place, entry = self.place(branch, EntryKind.TIMER, "redrive.timeout")
        task = asyncio.current_task()
        assert task is not None
        limit = TimeLimit(execution, place, task)
        if entry is None:
            delay = int(seconds * MICROS)
            execution.worker.committer.post(
                Slept(run=execution.view, place=place, delay=delay, idle=False, hold=0)
            )
            limit.watch(seconds)
        elif entry.done is not None:
            limit.was_reached(entry.done)
        elif entry.status is StepStatus.RUNNING:
            limit.watch(execution.left_until(entry.wake_at))
        return limit

    async def start(self, branch: Branch, name: str, start: Callable[[str], Coroutine[Any, Any, str]]) -> str:
        """Start another run, once: `start` is given a key that stays the same when resumed."""
        execution = self._execution
        branch = self._awaiting(branch)
        place, entry = self.place(branch, EntryKind.START, f"redrive.start {name}")
        branch.go_in()
        try:
            if entry is not None and entry.done is not None and entry.output is not None:
                await self._turnstile.pass_result(entry.done, entry.key)
                return str(json.loads(entry.output))
            await self._begin_live(place)
            started = await self._ask_for(start, place)
            done, output = execution.next_done(), json.dumps(started)
            await execution.settle(Noted(run=execution.view, place=place, output=output, done=done))
            await self._turnstile.pass_result(done, place.key)
            return started
        except asyncio.CancelledError:
            if execution.dead or execution.ending:
                raise PutDown from None
            raise
        finally:
            branch.come_out()

    async def _ask_for(self, start: Callable[[str], Coroutine[Any, Any, str]], place: Place) -> str:
        self._execution.starting += 1
        try:
            return await start(self._start_key(place))
        finally:
            self._execution.starting -= 1

    def _start_key(self, place: Place) -> str:
        """The same for all replays of a run, like the idempotency keys of its steps."""
        claimed = self._execution.claimed
        generation = self._execution.generation_of(place.key)
        key = f"{claimed.root or claimed.public_id}{place.key}"
        return f"{key}:{generation}" if generation else key

    def _awaiting(self, branch: Branch) -> Branch:
        """The branch that awaits a call, which need not be the one that made it: see `gather(a(), b())`."""
        here = current.get()
        return here if isinstance(here, Branch) and here.execution is self._execution else branch

    def place(self, branch: Branch, kind: EntryKind, name: str) -> tuple[Place, EntryRow | None]:
        """Where a call stands in the journal, and what is recorded there."""
        execution, journal = self._execution, self._journal
        if execution.dead or execution.ending:
            raise PutDown
        key = entry_key(branch.path, name, branch.count(name))
        entry = journal.ask(key)
        if entry is not None:
            return _NewPlace(entry.index, key, kind, name), entry
        index = journal.next_index
        if index - journal.set_aside >= MAX_ENTRIES:
            raise TooManyEntries(
                f"run {execution.claimed.public_id} recorded {MAX_ENTRIES:,} entries, the most a run may "
                "have; split the work over several runs"
            )
        journal.next_index = index + 1
        return _NewPlace(index, key, kind, name), None
