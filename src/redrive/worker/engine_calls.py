"""The engine calls of workflow code, answered from the journal or executed.

    step       recorded? -> the record.   new? -> try, settle, wait, try again ... -> value or StepFailed
    sleep      recorded? -> continue.     new? -> record when it ends, wait
    limit      recorded? -> as it was.    new? -> record when it ends, watch
    start      recorded? -> the record.   new? -> start the run, record that; so for an event that is sent
    wait       recorded? -> the record.   new? -> look, record the wait, look again ... (worker/waits.py)
    record     recorded? -> the record.   new? -> make the value, send it
    publish    recorded? -> its id.       new? -> send the message

Code does not wait for values and messages to be recorded. In a run with one branch it does not wait for the result
of a step either. All of these go to the committer at once, and the next step of the run begins when they are durable.
A message is held back until the function has requested all recorded entries: the code may have changed, and changed
code must not publish anything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

from redrive.clock import MICROS
from redrive.core.failure_reason import FailureReason, build_step_failed
from redrive.core.journal import MAX_ENTRIES, EntryRow, entry_name
from redrive.core.keys_and_ids import message_id
from redrive.core.outbox import check_topic
from redrive.core.outcomes import (
    EntryCancelled,
    EntryRef,
    Outcome,
    SleepEnded,
    SleepStarted,
    StepReplayEnded,
    ValueRecorded,
    WaitAnswered,
    WorkflowFailed,
)
from redrive.core.payload import check_size
from redrive.core.states import EntryKind, StepStatus
from redrive.errors import PayloadError, RunDetached, StepFailed
from redrive.worker.attempt import new_message
from redrive.worker.branches import Branch, current_scope
from redrive.worker.definitions import LimitExceeded
from redrive.worker.remote_steps import RemoteStepCall
from redrive.worker.step_call import StepCall
from redrive.worker.time_limit import TimeLimit
from redrive.worker.waits import Waits

if TYPE_CHECKING:
    from redrive.worker.committer import QueuedOutcome
    from redrive.worker.definitions import Step
    from redrive.worker.execution import Execution

FailedStep = tuple[FailureReason, EntryRef, int]
"""The final failure of a step, its journal entry, and the number of attempts."""


class EngineCalls:
    """The engine calls of one run's function.

    `reserved`: steps were called that must be confirmed or cancelled when the run ends. `pivoted`: a step succeeded
    after which nothing is undone. `held_back`: messages that wait for the code to agree with the journal.
    `unsaved`: the latest result, value or message that was sent and may not be durable yet. `single_step`: the limits
    of a replay of one step alone; None for other runs.
    """

    __slots__ = (
        "_asking",
        "_execution",
        "_failed",
        "_journal",
        "_order",
        "_patches",
        "_waits",
        "held_back",
        "load_error",
        "pivoted",
        "reserved",
        "single_step",
        "unsaved",
    )

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._journal = execution.journal
        self._order = execution.order
        self._failed: dict[str, FailedStep] = {}
        self.held_back: list[ValueRecorded] = []
        self.unsaved: QueuedOutcome | None = None
        self._asking = 0
        self.reserved = False
        self.pivoted = False
        self._waits: Waits | None = None
        self._patches: dict[tuple[Branch, str], bool] = {}
        self.load_error: PayloadError | None = None  # of a recorded result that no longer fits its type
        self.single_step: SingleStepReplay | None = None
        if execution.claimed.sole_step is not None:
            self.single_step = SingleStepReplay(execution, execution.claimed.sole_step, self._failed)

    async def step(self, branch: Branch, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a step's recorded result, or call it until it succeeds or fails for good."""
        execution = self._execution
        branch, place, entry = self.find_entry(branch, EntryKind.STEP, step.name)
        branch.enter_call()
        try:
            if step.cancel is not None:
                self.reserved = True
            if entry is not None:
                if entry.done is not None:
                    await self._order.pass_result(entry.done, entry.key)
                    if entry.status in (StepStatus.SUCCESS, StepStatus.SKIPPED):
                        self.pivoted = self.pivoted or step.options.pivot
                        try:
                            return step.signature.decode_result(entry.output or "null")
                        except PayloadError as error:
                            self.load_error = error
                            raise
                    raise self.step_failed(FailureReason.from_json(entry.failure or ""), place, entry.attempt)
                if entry.status is StepStatus.CANCELLED:
                    await execution.wait_forever()
            if self.single_step is not None:
                await self.single_step.block_other_steps(place)
            if self._journal.next_key is not None:
                try:
                    await self._order.begin(place.key)
                except asyncio.CancelledError:
                    if entry is not None and not execution.dead:  # cancelled before it could resume
                        await execution.settle(EntryCancelled(run=execution.view, place=place, attempt=entry.attempt))
                    raise
            text = step.signature.encode(args, kwargs)
            check_size(text, execution.worker.max_payload, step.input_label)
            if step.options.remote is None:
                call = StepCall(execution, branch, step, place, text, execution.clock.monotonic())
                value = await call.run(entry, args, kwargs)
            else:
                value = await RemoteStepCall(execution, self.waits, step, place, text).run(entry)
            if step.options.pivot:
                self.pivoted = True
            return value
        except asyncio.CancelledError:
            if execution.dead or execution.ending:
                raise RunDetached from None
            raise
        finally:
            branch.busy -= 1

    def step_failed(self, ending: FailureReason, place: EntryRef, attempt: int) -> StepFailed:
        """Remember how a step failed for good, and return the exception for its caller."""
        self._failed[place.key] = (ending, place, attempt)
        return build_step_failed(ending, key=place.key)

    def find_failure(self, key: str) -> FailedStep | None:
        """Return how the step with this key failed; None if it did not."""
        return self._failed.get(key)

    async def sleep(self, branch: Branch, seconds: float) -> None:
        """Wait durably."""
        execution = self._execution
        branch, place, entry = self.find_entry(branch, EntryKind.SLEEP, "redrive.sleep")
        with self.mark_blocked(branch):
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
                    resumes = execution.suspension.wake_up()
                    await execution.settle(EntryCancelled(run=execution.view, place=place, resumes=resumes))
                raise

    async def _sleep_live(self, place: EntryRef, entry: EntryRow | None, seconds: float) -> None:
        execution = self._execution
        await self.wait_until_live(place)
        if entry is None:
            idle, hold = execution.is_only_branch(), execution.worker.hold()
            settled = await execution.settle(
                SleepStarted(run=execution.view, place=place, delay=int(seconds * MICROS), idle=idle, hold=hold)
            )
            await execution.wait(place, 1, seconds, settled.transition.change)
        else:
            await execution.wait(place, 1, execution.seconds_until(entry.wake_at), None)
        done = self._journal.new_done_number()
        resumes = execution.suspension.wake_up()
        await execution.settle(SleepEnded(run=execution.view, place=place, done=done, resumes=resumes))
        await self._order.pass_result(done, place.key)

    async def wait_until_live(self, place: EntryRef, *, ahead: bool = False) -> None:
        """Wait until a call that is not recorded may begin; see `Execution.ready` for `ahead`."""
        if self.single_step is not None:
            await self.single_step.block_other_steps(place)
        if self._journal.next_key is not None:
            await self._order.begin(place.key)
        await self._execution.ready(ahead=ahead)

    def limit(self, branch: Branch, seconds: float) -> TimeLimit:
        """Begin a durable time limit for the block of code that the current task enters."""
        execution = self._execution
        _, place, entry = self.find_entry(branch, EntryKind.TIMER, "redrive.timeout")
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
        """Start another run, once: `start` gets a key that is the same when the run is resumed."""
        return await self.call_once(branch, EntryKind.START, f"redrive.start {name}", start)

    async def call_once(
        self, branch: Branch, kind: EntryKind, name: str, call: Callable[[str], Coroutine[Any, Any, str]]
    ) -> str:
        """Ask the store for something, once: `call` gets a key that is the same when the run is resumed."""
        execution = self._execution
        branch, place, entry = self.find_entry(branch, kind, name)
        with self.mark_blocked(branch):
            if entry is not None and entry.done is not None and entry.output is not None:
                await self._order.pass_result(entry.done, entry.key)
                return str(json.loads(entry.output))
            await self.wait_until_live(place)
            with self.ask_store():
                # Like the idempotency keys of steps, the key is the same for all replays of a run.
                claimed, generation = execution.claimed, execution.generation_of(place.key)
                key = f"{claimed.root or claimed.public_id}{place.key}"
                started = await call(f"{key}:{generation}" if generation else key)
            done, output = self._journal.new_done_number(), json.dumps(started)
            await self.settle_result(
                branch, ValueRecorded(run=execution.view, place=place, output=output, done=done), done
            )
            return started

    async def settle_result(self, branch: Branch, outcome: ValueRecorded | WaitAnswered, done: int) -> None:
        """Send the result of a call; return when the function may see it, which may be before it is recorded."""
        key = outcome.place.key
        if self._execution.may_continue(branch, done, key):
            self.send_ahead(outcome)
        else:
            await self._execution.settle(outcome)
            await self._order.pass_result(done, key)

    @property
    def waits(self) -> Waits:
        """The waits of the run for events and for other runs."""
        if self._waits is None:
            self._waits = Waits(self._execution)
        return self._waits

    @property
    def begun_waits(self) -> Waits | None:
        """The waits that the run had until now, None if it had none."""
        return self._waits

    @property
    def is_asking(self) -> bool:
        """True while the store is being asked for something on behalf of the function, such as another run."""
        return self._asking > 0

    @contextmanager
    def ask_store(self) -> Iterator[None]:
        """Mark that the store is being asked for something: the run is neither idle nor drained meanwhile."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    @contextmanager
    def mark_blocked(self, branch: Branch) -> Iterator[None]:
        """Mark the branch as blocked by the engine; if the run is over here, its code unwinds."""
        branch.enter_call()
        try:
            yield
        except asyncio.CancelledError:
            if not self._execution.is_live:
                raise RunDetached from None
            raise
        finally:
            branch.busy -= 1

    def find_entry(self, branch: Branch, kind: EntryKind, name: str) -> tuple[Branch, EntryRef, EntryRow | None]:
        """Return the branch that makes a call, the position of the call in the journal, and its recorded entry."""
        execution, journal = self._execution, self._journal
        if execution.dead or execution.ending:
            raise RunDetached
        # The branch that awaits a call need not have created it: see `gather(a(), b())`.
        here = current_scope.get()
        if here is not branch and isinstance(here, Branch) and here.execution is execution:
            branch = here
        key = branch.next_key(name)
        entry = journal.request_entry(key)
        if entry is not None:
            return branch, EntryRef(entry.index, key, kind, name), entry
        if journal.next_index - journal.superseded_count >= MAX_ENTRIES:
            raise LimitExceeded(
                f"run {execution.claimed.public_id} recorded {MAX_ENTRIES:,} entries, the most a run may "
                "have; split the work over several runs"
            )
        if journal.needs_patches and journal.has_missed_patch(branch.path):
            execution.leave_to_other_code(key)
            raise RunDetached
        return branch, EntryRef(journal.new_index(), key, kind, name), None

    def record(self, branch: Branch, name: str, make: Callable[[], Any]) -> Any:
        """Return a value that is made once and recorded."""
        return self._call_on_loop(branch, self._record, branch, name, make)

    def patched(self, branch: Branch, name: str) -> bool:
        """Return True if the run takes the new code of a patch; each branch decides once, and records it."""
        return bool(self._call_on_loop(branch, self._patched, branch, name))

    def _patched(self, branch: Branch, name: str) -> bool:
        for each in branch.lineage():  # tasks follow the code that created them
            if (known := self._patches.get((each, name))) is not None:
                return known
        # What is recorded and not requested yet may have come behind this place, also in a branch that began after
        # this one had ended. The old code fits all of it.
        takes: bool = self._record(
            branch, f"redrive.patched {name}", lambda: not self._journal.has_unrequested(), kind=EntryKind.PATCH
        )
        self._patches[branch, name] = takes
        return takes

    def publish(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        """Publish a message, once: a resumed run finds it in the journal."""
        return str(self._call_on_loop(branch, self._publish, branch, topic, payload, key))

    def _call_on_loop(self, branch: Branch, call: Callable[..., Any], *args: Any) -> Any:
        """Make a call on the event loop, which workflow code in a thread must wait for."""
        if not branch.threaded:
            return call(*args)

        async def on_loop() -> Any:
            return call(*args)

        return self._execution.call_from_thread(on_loop())

    def _record(self, branch: Branch, name: str, make: Callable[[], Any], *, kind: EntryKind = EntryKind.NOTE) -> Any:
        execution = self._execution
        _, place, entry = self.find_entry(branch, kind, name)
        if entry is not None and entry.output is not None:
            return json.loads(entry.output)
        value = make()
        noted = ValueRecorded(run=execution.view, place=place, output=json.dumps(value))
        self.send_ahead(noted)
        return value

    def _publish(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        execution = self._execution
        name = f"redrive.publish {check_topic(topic)}"
        _, place, entry = self.find_entry(branch, EntryKind.PUBLISH, name)
        if entry is not None:
            return message_id(execution.claimed.public_id, place.index, 0)
        if self.single_step is not None:
            self.single_step.cut_off = True  # a replay of one step alone ends at a new message
            raise RunDetached
        message = new_message(execution, place.index, 0, topic, payload, key)
        output = json.dumps(message.public_id)
        self.held_back.append(ValueRecorded(run=execution.view, place=place, output=output, messages=(message,)))
        self.send_if_caught_up()
        return message.public_id

    def send_if_caught_up(self) -> None:
        """Send the messages that were held back, if the code has requested all recorded entries."""
        if self.held_back and self._journal.next_key is None:
            self.send_held_back()

    def send_held_back(self) -> None:
        """Send the messages that were held back while the run was resumed."""
        for message in self.held_back:
            self.send_ahead(message)
        self.held_back.clear()

    def send_ahead(self, outcome: Outcome) -> None:
        """Send an outcome for which the function does not wait."""
        self.unsaved = self._execution.worker.committer.post(outcome)

    async def saved(self) -> None:
        """Wait until everything that was sent ahead is durable."""
        execution = self._execution
        while (unsaved := self.unsaved) is not None:
            if unsaved.settled is None:
                answer = unsaved.expect_answer()
                # With several branches, cancelling this wait must not cancel that of another branch.
                await (answer if len(self._order.branches) == 1 else asyncio.wait([answer]))
                continue
            self.unsaved = None
            change = execution.check(unsaved.settled).transition.change
            if change is not None and change.release:
                execution.detach()  # the store refused the data of the result: the run is resumed with that failure
                raise RunDetached


class SingleStepReplay:
    """Limits of a replay of one step alone: the rest comes from the record, and nothing else begins.

    `cut_off`: the function came to a new message, and ends there.
    """

    __slots__ = ("_blocked", "_execution", "_failed", "_key", "cut_off")

    def __init__(self, execution: Execution, key: str, failed: Mapping[str, FailedStep]) -> None:
        self._execution = execution
        self._key = key
        self._failed = failed
        self._blocked = 0  # calls that may not begin
        self.cut_off = False

    async def block_other_steps(self, place: EntryRef) -> None:
        """Let only the call of the one step begin. The run stops when only other calls are left."""
        if place.key == self._key:
            return
        self._blocked += 1
        self._execution.order.recheck()
        await self._execution.wait_forever()

    @property
    def is_over(self) -> bool:
        """True if only calls that may not begin are left."""
        execution = self._execution
        return self._blocked > 0 and not execution.busy and not execution.suspension.includes(self._key)

    async def stop(self) -> None:
        """End the run where it is."""
        with suppress(RunDetached):
            await self._execution.settle(self.outcome())

    def outcome(self) -> Outcome:
        """Return the outcome of the replay: the result of its step."""
        run = self._execution.view
        failed = self._failed.get(self._key)
        if failed is None:
            return StepReplayEnded(run=run, step=entry_name(self._key))
        ending, place, attempt = failed
        return WorkflowFailed(run=run, ending=ending, place=place, attempt=attempt)


class _DetachedCalls:
    """The engine calls of an execution that is over: code that still runs in a thread unwinds at its next call."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RunDetached


DETACHED_CALLS = cast("EngineCalls", _DetachedCalls())
