"""What workflow code asks of the engine, answered from the journal or for real.

    step       recorded? -> the record.   new? -> try, settle, wait, try again ... -> value or StepFailed
    sleep      recorded? -> continue.     new? -> record when it is over, wait
    limit      recorded? -> as it was.    new? -> record when it is over, watch
    start      recorded? -> the record.   new? -> start it, record that
    record     recorded? -> the record.   new? -> make the value, send it
    publish    recorded? -> its id.       new? -> send the message

Code does not wait for recorded values and messages. They go to the committer at once, and whatever begins
next in the run waits until they are durable. A message is held back while the journal has not been walked
through: the code might turn out to be other code, which must not publish anything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

from redrive.clock import MICROS
from redrive.core.failure_reason import FailureReason, build_step_failed
from redrive.core.idempotency import message_id
from redrive.core.journal import MAX_ENTRIES, EntryRow, entry_key, entry_name
from redrive.core.outbox import check_topic
from redrive.core.outcomes import (
    EntryCancelled,
    EntryRef,
    Outcome,
    SleepEnded,
    SleepStarted,
    StepReplayEnded,
    ValueRecorded,
    WorkflowFailed,
)
from redrive.core.payload import check_size
from redrive.core.states import EntryKind, StepStatus
from redrive.errors import RunDetached, StepFailed
from redrive.worker.attempt import new_message
from redrive.worker.branches import Branch, current_scope
from redrive.worker.definitions import TooManyEntries
from redrive.worker.step_call import StepCall
from redrive.worker.waits import TimeLimit

if TYPE_CHECKING:
    from redrive.settle.settler import Settled
    from redrive.worker.definitions import Step
    from redrive.worker.execution import Execution

FailedStep = tuple[FailureReason, EntryRef, int]
"""How a step failed for good, where it stands in the journal, and how many attempts were made."""


class Requests:
    """The engine calls of one run's function.

    `reserved`: steps were called that are confirmed or cancelled in the end. `pivoted`: one has happened
    after which nothing is undone. `single_step`: how far a replay of one step alone may go.
    """

    __slots__ = (
        "_execution",
        "_failed",
        "_held_back",
        "_journal",
        "_order",
        "_starting",
        "_unsaved",
        "pivoted",
        "reserved",
        "single_step",
    )

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._journal = execution.journal
        self._order = execution.order
        self._failed: dict[str, FailedStep] = {}
        self._held_back: list[ValueRecorded] = []
        self._unsaved: asyncio.Future[Settled] | None = None  # the answer to the latest that was sent
        self._starting = 0
        self.reserved = False
        self.pivoted = False
        self.single_step = SingleStepReplay(execution, self._failed)

    # -- what code waits for --------------------------------------------------------------------------

    async def step(self, branch: Branch, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a step: from the record, or for real until it succeeds or fails for good."""
        execution = self._execution
        branch = self._find_awaiting_branch(branch)
        place, entry = self._find_entry(branch, EntryKind.STEP, step.name)
        branch.enter_call()
        try:
            if step.cancel is not None:
                self.reserved = True
            if entry is not None:
                if entry.done is not None:
                    await self._order.pass_result(entry.done, entry.key)
                    return self._read_recorded_result(step, place, entry)
                if entry.status is StepStatus.CANCELLED:
                    await execution.wait_forever()
            if execution.claimed.sole_step is not None:
                await self.single_step.block_other_steps(place)
            if self._journal.next_key is not None:
                await self._wait_to_begin(place, entry)
            text = step.signature.encode(args, kwargs)
            check_size(text, execution.worker.max_payload, step.input_label)
            value = await StepCall(execution, branch, step, place, text).run(entry, args, kwargs)
            if step.options.pivot:
                self.pivoted = True
            return value
        except asyncio.CancelledError:
            if execution.dead or execution.ending:
                raise RunDetached from None
            raise
        finally:
            branch.leave_call()

    def _read_recorded_result(self, step: Step[Any, Any], place: EntryRef, entry: EntryRow) -> Any:
        if entry.status in (StepStatus.SUCCESS, StepStatus.SKIPPED):
            self.pivoted = self.pivoted or step.options.pivot
            return step.signature.decode_result(entry.output or "null")
        raise self.step_failed(FailureReason.from_json(entry.failure or ""), place, entry.attempt)

    def step_failed(self, ending: FailureReason, place: EntryRef, attempt: int) -> StepFailed:
        """Remember how a step failed for good, and return what its caller sees."""
        self._failed[place.key] = (ending, place, attempt)
        return build_step_failed(ending, key=place.key)

    def find_failure(self, key: str) -> FailedStep | None:
        """Return how the step with this key failed; None if it did not."""
        return self._failed.get(key)

    async def _wait_to_begin(self, place: EntryRef, entry: EntryRow | None) -> None:
        """Wait until a step may begin or resume. One that is cancelled before it resumes is recorded."""
        execution = self._execution
        try:
            await self._order.begin(place.key)
        except asyncio.CancelledError:
            if entry is not None and not execution.dead:
                await execution.settle(EntryCancelled(run=execution.view, place=place, attempt=entry.attempt))
            raise

    async def sleep(self, branch: Branch, seconds: float) -> None:
        """Wait durably."""
        execution = self._execution
        branch = self._find_awaiting_branch(branch)
        place, entry = self._find_entry(branch, EntryKind.SLEEP, "redrive.sleep")
        with self._mark_blocked(branch):
            try:
                if entry is not None and entry.done is not None:
                    await self._order.pass_result(entry.done, entry.key)
                    return
                if entry is not None and entry.status is StepStatus.CANCELLED:
                    await execution.wait_forever()
                await self._sleep_live(place, entry, seconds)
            except asyncio.CancelledError:
                recorded = entry is not None and entry.status is not StepStatus.RUNNING
                if not execution.dead and not recorded and not execution.worker.is_being_cancelled:
                    resumes = execution.waits.wake_up()
                    await execution.settle(EntryCancelled(run=execution.view, place=place, resumes=resumes))
                raise

    async def _sleep_live(self, place: EntryRef, entry: EntryRow | None, seconds: float) -> None:
        execution = self._execution
        await self._wait_until_live(place)
        if entry is None:
            idle, hold = execution.is_only_branch(), execution.worker.hold()
            settled = await execution.settle(
                SleepStarted(run=execution.view, place=place, delay=int(seconds * MICROS), idle=idle, hold=hold)
            )
            await execution.wait(place, 1, seconds, settled.transition.change)
        else:
            await execution.wait(place, 1, execution.seconds_until(entry.wake_at), None)
        done = self._journal.new_done_number()
        resumes = execution.waits.wake_up()
        await execution.settle(SleepEnded(run=execution.view, place=place, done=done, resumes=resumes))
        await self._order.pass_result(done, place.key)

    async def _wait_until_live(self, place: EntryRef) -> None:
        """Wait until something that is not on record may begin."""
        await self.single_step.block_other_steps(place)
        if self._journal.next_key is not None:
            await self._order.begin(place.key)
        await self._execution.ready()

    def limit(self, branch: Branch, seconds: float) -> TimeLimit:
        """Begin a durable time limit for the block of code that the current task enters."""
        execution = self._execution
        place, entry = self._find_entry(branch, EntryKind.TIMER, "redrive.timeout")
        task = asyncio.current_task()
        assert task is not None
        limit = TimeLimit(execution, place, task)
        if entry is None:
            delay = int(seconds * MICROS)
            execution.worker.committer.post(
                SleepStarted(run=execution.view, place=place, delay=delay, idle=False, hold=0)
            )
            limit.watch(seconds)
        elif entry.done is not None:
            limit.fire_recorded(entry.done)
        elif entry.status is StepStatus.RUNNING:
            limit.watch(execution.seconds_until(entry.wake_at))
        return limit

    async def start(self, branch: Branch, name: str, start: Callable[[str], Coroutine[Any, Any, str]]) -> str:
        """Start another run, once: `start` is given a key that stays the same when resumed."""
        execution = self._execution
        branch = self._find_awaiting_branch(branch)
        place, entry = self._find_entry(branch, EntryKind.START, f"redrive.start {name}")
        with self._mark_blocked(branch):
            if entry is not None and entry.done is not None and entry.output is not None:
                await self._order.pass_result(entry.done, entry.key)
                return str(json.loads(entry.output))
            await self._wait_until_live(place)
            self._starting += 1
            try:
                started = await start(self._start_key(place))
            finally:
                self._starting -= 1
            done, output = self._journal.new_done_number(), json.dumps(started)
            await execution.settle(ValueRecorded(run=execution.view, place=place, output=output, done=done))
            await self._order.pass_result(done, place.key)
            return started

    @property
    def is_starting(self) -> bool:
        """True while the store is being asked to start another run."""
        return self._starting > 0

    def _start_key(self, place: EntryRef) -> str:
        """Return a key that is the same for all replays of a run, like the idempotency keys of its steps."""
        claimed = self._execution.claimed
        generation = self._execution.generation_of(place.key)
        key = f"{claimed.root or claimed.public_id}{place.key}"
        return f"{key}:{generation}" if generation else key

    @contextmanager
    def _mark_blocked(self, branch: Branch) -> Iterator[None]:
        """Mark the branch as blocked by the engine; if the run is over here, its code unwinds."""
        branch.enter_call()
        try:
            yield
        except asyncio.CancelledError:
            if not self._execution.is_live:
                raise RunDetached from None
            raise
        finally:
            branch.leave_call()

    def _find_awaiting_branch(self, branch: Branch) -> Branch:
        """Return the branch that awaits a call, which need not have made it: see `gather(a(), b())`."""
        here = current_scope.get()
        return here if isinstance(here, Branch) and here.execution is self._execution else branch

    def _find_entry(self, branch: Branch, kind: EntryKind, name: str) -> tuple[EntryRef, EntryRow | None]:
        """Return where a call stands in the journal, and what is recorded there."""
        execution, journal = self._execution, self._journal
        if execution.dead or execution.ending:
            raise RunDetached
        key = entry_key(branch.path, name, branch.count(name))
        entry = journal.request_entry(key)
        if entry is not None:
            return EntryRef(entry.index, key, kind, name), entry
        if journal.next_index - journal.superseded_count >= MAX_ENTRIES:
            raise TooManyEntries(
                f"run {execution.claimed.public_id} recorded {MAX_ENTRIES:,} entries, the most a run may "
                "have; split the work over several runs"
            )
        return EntryRef(journal.new_index(), key, kind, name), None

    # -- what code does not wait for --------------------------------------------------------------------

    def record(self, branch: Branch, name: str, make: Callable[[], Any]) -> Any:
        """Return a value that is made once and recorded."""
        if branch.threaded:
            return self._execution.call_from_thread(_call_on_loop(lambda: self._record(branch, name, make)))
        return self._record(branch, name, make)

    def _record(self, branch: Branch, name: str, make: Callable[[], Any]) -> Any:
        execution = self._execution
        place, entry = self._find_entry(branch, EntryKind.NOTE, name)
        if entry is not None and entry.output is not None:
            return json.loads(entry.output)
        value = make()
        self._send(ValueRecorded(run=execution.view, place=place, output=json.dumps(value)))
        return value

    def publish(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        """Publish a message, once: a resumed run finds it in the journal."""
        if branch.threaded:
            call = _call_on_loop(lambda: self._publish(branch, topic, payload, key))
            return str(self._execution.call_from_thread(call))
        return self._publish(branch, topic, payload, key)

    def _publish(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        execution = self._execution
        name = f"redrive.publish {check_topic(topic)}"
        place, entry = self._find_entry(branch, EntryKind.PUBLISH, name)
        if entry is not None:
            return message_id(execution.claimed.public_id, place.index, 0)
        self.single_step.refuse_message()
        message = new_message(execution, place.index, 0, topic, payload, key)
        output = json.dumps(message.public_id)
        self._held_back.append(ValueRecorded(run=execution.view, place=place, output=output, messages=(message,)))
        self.send_if_caught_up()
        return message.public_id

    def send_if_caught_up(self) -> None:
        """Send the messages that were held back, if the code agrees with the whole journal."""
        if self._held_back and self._journal.next_key is None:
            self.send_held_back()

    def send_held_back(self) -> None:
        """Send the messages that were held back while the run was resumed."""
        for message in self._held_back:
            self._send(message)
        self._held_back.clear()

    def _send(self, noted: ValueRecorded) -> None:
        self._unsaved = self._execution.worker.committer.submit(noted)

    @property
    def is_saved(self) -> bool:
        """True if nothing is held back or being recorded."""
        return self._unsaved is None and not self._held_back

    @property
    def is_unsaved(self) -> bool:
        """True while something that was sent may not be durable yet."""
        return self._unsaved is not None

    async def saved(self) -> None:
        """Wait until everything that was sent is durable."""
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None:
            self._execution.check(await unsaved)


async def _call_on_loop(call: Callable[[], Any]) -> Any:
    """Make a call on the loop."""
    return call()


class SingleStepReplay:
    """Limits a replay of one step alone: the rest comes from the record, and nothing else begins.

    A run that may do everything is not hindered. `cut_off`: the function came to a message, and ends there.
    """

    __slots__ = ("_execution", "_failed", "_kept_out", "cut_off")

    def __init__(self, execution: Execution, failed: Mapping[str, FailedStep]) -> None:
        self._execution = execution
        self._failed = failed
        self._kept_out = 0  # calls that were not let begin
        self.cut_off = False

    async def block_other_steps(self, place: EntryRef) -> None:
        """Let no call begin but that of the one step; the run stops when only other calls are left."""
        execution = self._execution
        if execution.claimed.sole_step in (None, place.key):
            return
        self._kept_out += 1
        execution.order.recheck()
        await execution.wait_forever()

    def refuse_message(self) -> None:
        """End the replay at a new message."""
        if self._execution.claimed.sole_step is not None:
            self.cut_off = True
            raise RunDetached

    @property
    def is_over(self) -> bool:
        """True if all that is left to do is kept out."""
        execution = self._execution
        return self._kept_out > 0 and not execution.busy and not execution.waits.includes(execution.claimed.sole_step)

    async def stop(self) -> None:
        """End the run where it is."""
        with suppress(RunDetached):
            await self._execution.settle(self.outcome())

    def outcome(self) -> Outcome:
        """Return how a replay of one step alone ends that may not continue: as that step did."""
        run, sole_step = self._execution.view, self._execution.claimed.sole_step or ""
        failed = self._failed.get(sole_step)
        if failed is None:
            return StepReplayEnded(run=run, step=entry_name(sole_step))
        ending, place, attempt = failed
        return WorkflowFailed(run=run, ending=ending, place=place, attempt=attempt)


class _DetachedRequests:
    """The requests of an execution that is over: code that still runs in a thread unwinds when it calls."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RunDetached


DETACHED_REQUESTS = cast("Requests", _DetachedRequests())
