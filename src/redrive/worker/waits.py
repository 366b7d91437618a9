"""Waits of a run for events, other runs and people: answered by what is in the store, under the run's fence.

    look       read the unread events, the other run, or the answer, together with the number of wake-ups
    register   record the wait, then look again: an event or an end that came in between is found
    wait       until a wake-up, the limit, or the end of the hold, for which the run stays in memory
    answer     record the answer; taking the events is part of it

A wake-up only says that it is worth looking. Only the store answers a wait, so a lost wake-up costs time and never an
answer. `seen` is the number of wake-ups at the last look: the store does not suspend a run that has more.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from redrive.clock import MICROS
from redrive.core.children import build_child_failed, build_child_failure, build_missing_run, is_answer
from redrive.core.decide_entry import WAIT_EXPIRED_ERROR_TYPE, build_answer_failure, build_wait_failure
from redrive.core.failure_reason import FailureReason, build_step_failed
from redrive.core.outcomes import (
    EntryCancelled,
    EntryRef,
    EventsRefused,
    QuestionAsked,
    WaitAnswered,
    WaitFailed,
    WaitStarted,
    WaitTimedOut,
)
from redrive.core.payload import Signature
from redrive.core.questions import Question, task_id
from redrive.core.questions import encode_answer as encode_person_answer
from redrive.core.states import EntryKind, StepStatus
from redrive.core.transitions import EventUse
from redrive.core.waits_and_events import EVENT_KIND, OpenWait, Wait, WaitMode, WaitState, encode_answer, match_events
from redrive.errors import ConfigurationError, PayloadError, RunDetached, WaitExpired
from redrive.reasons import Reason
from redrive.store.children import AwaitedRun, RunEnd
from redrive.store.encryption.keyring import Unreadable
from redrive.store.sql_store import repeat_until_answered
from redrive.time_values import to_datetime
from redrive.worker.remote_steps import LiveStep, RemoteSteps

if TYPE_CHECKING:
    from redrive.core.journal import EntryRow
    from redrive.core.transitions import RunWrite
    from redrive.store.claims import ClaimedRun
    from redrive.store.events import EventRow, Mailbox
    from redrive.store.questions import AskedQuestion, RecordedAnswer
    from redrive.worker.branches import Branch
    from redrive.worker.execution import Execution

Found = TypeVar("Found", bound="Mailbox | AwaitedRun | AskedQuestion")

NO_DEFAULT: Any = object()
"""The default of a wait that raises when its limit has passed."""

_CLOCK_PAUSE = 0.002  # seconds after which an expiry is tried again that the store's clock found too early


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event that answered a wait: its name, its payload, when it was sent and by whom."""

    name: str
    payload: Any
    at: datetime | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a person to `redrive.ask`: the value, who gave it and when, and the note beside it.

    `by` and `at` are None if a user gave the result of the wait in a replay.
    """

    value: Any
    by: str | None = None
    at: datetime | None = None
    note: str | None = None


class WaitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A wait as workflow code asks for it. `types`: the signatures of payloads by the name of the event, or the run.

    `workflow`: that of the run that is waited for. `question`: what a person is asked.
    """

    call: str
    wait: Wait
    types: dict[str, Signature | None]
    timeout: float | None = None
    default: Any = NO_DEFAULT
    workflow: str = ""
    question: Question | None = None

    @property
    def name(self) -> str:
        """The name of the journal entry."""
        subjects = self.workflow if self.wait.mode is WaitMode.RUN else ", ".join(self.wait.names)
        return f"redrive.{self.call} {subjects}".rstrip()

    def decode(self, name: str, text: str) -> Any:
        """Return a payload as its type has it; PayloadError if it does not fit."""
        signature = self.types.get(name)
        return json.loads(text) if signature is None else signature.decode_result(text)

    def read_answer(self, text: str) -> Any:
        """Return the recorded answer as workflow code gets it."""
        wait = self.wait
        if wait.mode in (WaitMode.ONE, WaitMode.RUN):
            return self.decode(wait.names[0], text)
        found = json.loads(text)
        if wait.mode is WaitMode.MANY:
            return [self.decode(wait.names[0], json.dumps(each)) for each in found]
        at = found.get("at")
        if wait.mode is WaitMode.TASK:
            value, when = self.decode("", json.dumps(found["value"])), None if at is None else to_datetime(at)
            return Answer(value=value, by=found.get("by"), at=when, note=found.get("note"))
        payload = self.decode(found["name"], json.dumps(found["payload"]))
        return Event(
            name=found["name"], payload=payload, at=None if at is None else to_datetime(at), by=found.get("by")
        )


class _LiveWait(msgspec.Struct, eq=False):
    """A wait that is executed here. `woken` is set when it has to look at its state again.

    `end`: the run that is waited for, as the last look found it; `answer`: so for the answer of a person.
    `subject`: the name under which others wait for that run. `local`: that run if this worker holds it, and will report
    its end.
    """

    place: EntryRef
    branch: Branch
    request: WaitRequest
    woken: asyncio.Event
    limit_at: int | None = None
    subject: str | None = None
    local: Execution | None = None
    end: RunEnd | None = None
    answer: RecordedAnswer | None = None

    @property
    def is_for_events(self) -> bool:
        """True if events answer the wait."""
        return self.request.wait.kind == EVENT_KIND

    def describe(self) -> OpenWait:
        return OpenWait(index=self.place.index, wait=self.request.wait, limit_at=self.limit_at)


class Waits:
    """The waits of one run for events, other runs and people.

    `seen`: the wake-ups at the last look. `_known`: the highest number of wake-ups that was reported to this process.
    `_used`: numbers of events that a wait of this execution took or set aside; the store may not show that yet.
    `_over`: indexes of waits that ended in this execution.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._open: dict[int, _LiveWait] = {}
        self.steps = RemoteSteps(execution, self)
        self._unread: tuple[EventRow, ...] = ()
        self._used: set[int] = set()
        self._over: set[int] = set()
        self._known = 0
        self.seen = 0

    @property
    def is_open(self) -> bool:
        """True while a branch waits for an event."""
        return bool(self._open or self.steps.is_open)

    @property
    def is_stale(self) -> bool:
        """True if the run has more wake-ups than its waits have seen."""
        return self._known > self.seen

    def forget_if_closed(self) -> None:
        """Tell the worker that the run waits for nothing."""
        if not self.is_open:
            self._execution.worker.waits_by_run.pop(self._execution.claimed.id, None)

    def wake(self, wakeups: int) -> None:
        """Let the waits look again, if the run has more wake-ups than they have seen."""
        self._known = max(self._known, wakeups)
        if self.is_stale:
            self.steps.wake()
            for wait in self._open.values():
                if wait.local is not None and wait.local.is_settling:
                    continue  # its end is on its way here, or the answer that it was taken from this worker
                wait.local = None
                wait.woken.set()

    async def wait(self, branch: Branch, request: WaitRequest) -> Any:
        """Return the answer of a wait: from the record, or when its events are there."""
        execution = self._execution
        calls = execution.calls
        branch, place, entry = calls.find_entry(branch, EntryKind.WAIT, request.name)
        with calls.mark_blocked(branch):
            try:
                if entry is not None and entry.done is not None:
                    await execution.order.pass_result(entry.done, entry.key)
                    if entry.status in (StepStatus.SUCCESS, StepStatus.SKIPPED):
                        return self._read_recorded(request, entry)
                    self._cancel_given_up_child(request, entry)
                    return self._give_up(request, place, FailureReason.from_json(entry.failure or ""))
                if entry is not None and entry.status is StepStatus.CANCELLED:
                    self._cancel_given_up_child(request, entry)
                    await execution.wait_forever()
                return await self._wait_live(branch, request, place, entry)
            except asyncio.CancelledError:
                recorded = entry is not None and entry.status is not StepStatus.RUNNING
                if not execution.dead and not recorded and not execution.worker.is_being_cancelled:
                    resumes = execution.suspension.wake_up()
                    await execution.settle(EntryCancelled(run=execution.view, place=place, resumes=resumes))
                    self._over.add(place.index)
                    if not execution.ending:  # a run that may be replayed keeps its children
                        await self._cancel_child(request)
                raise

    async def _cancel_child(self, request: WaitRequest) -> None:
        """Cancel the run that a wait gave up, if it is a child that ends with this run and no other branch waits."""
        execution, wait = self._execution, request.wait
        if wait.mode is not WaitMode.RUN or self._is_awaited(wait.names[0]):
            return
        backend, view, run_id = execution.worker.backend, execution.view, wait.names[0]
        with execution.calls.ask_store():
            await repeat_until_answered(lambda: backend.end_child(view, run_id, undo=False), execution.clock)

    def _is_awaited(self, run_id: str) -> bool:
        """Return True if a branch waits for a run, or will as soon as it has been resumed."""
        if any(
            each.request.wait.mode is WaitMode.RUN and each.request.wait.names[0] == run_id
            for each in self._open.values()
        ):
            return True
        rows = [row for row in self._execution.claimed.journal if row.kind is EntryKind.WAIT and not row.superseded]
        waits = [row.input for row in rows if row.status is StepStatus.RUNNING and row.index not in self._over]
        return any(run_id in Wait.from_json(text).names for text in waits if isinstance(text, str))

    def _cancel_given_up_child(self, request: WaitRequest, entry: EntryRow) -> None:
        """Cancel the child of a wait that was given up before: the worker may have died between the two."""
        expired = entry.failure is not None and FailureReason.from_json(entry.failure).failure.error_type
        if request.wait.mode is WaitMode.RUN and (entry.done is None or expired == WAIT_EXPIRED_ERROR_TYPE):
            self._execution.spawn(self._cancel_child(request))

    def _read_recorded(self, request: WaitRequest, entry: EntryRow) -> Any:
        try:
            return request.read_answer(entry.output or "null")
        except PayloadError as error:
            self._execution.calls.load_error = error
            raise

    def _give_up(self, request: WaitRequest, place: EntryRef, ending: FailureReason) -> Any:
        """Return the default of a wait whose limit has passed, or raise; so for a run that failed."""
        if request.default is not NO_DEFAULT:
            return request.default
        self._execution.calls.step_failed(ending, place, 1)
        if ending.failure.error_type != WAIT_EXPIRED_ERROR_TYPE:
            if request.question is not None:
                raise build_step_failed(ending, key=place.key)
            raise build_child_failed(ending, key=place.key)
        raise WaitExpired(str(ending.reason), key=place.key)

    async def _wait_live(self, branch: Branch, request: WaitRequest, place: EntryRef, entry: EntryRow | None) -> Any:
        execution = self._execution
        live = _LiveWait(place, branch, request, asyncio.Event(), None if entry is None else entry.wake_at)
        registered = entry is not None
        with self._watch_local_run(live):
            await execution.calls.wait_until_live(place, ahead=live.local is not None)
            return await self._wait_until_answered(live, registered)

    async def _wait_until_answered(self, live: _LiveWait, registered: bool) -> Any:
        execution, request, place = self._execution, live.request, live.place
        self._open[place.index] = live
        execution.worker.waits_by_run[execution.claimed.id] = self
        try:
            while True:
                state = await self._look(live)
                if live.answer is not None:
                    return await self._answer_by_person(live, live.answer)
                if live.end is not None and self._is_answered(live.end, request):
                    return await self._answer_by_end(live, live.end)
                if state is None:
                    return await self._fail(live, build_missing_run(place, request.wait.names[0]))
                if state.events:
                    values = await self._decode_events(live, state.events)
                    if values is not None:
                        return await self._answer(live, state.events, encode_answer(request.wait, values))
                elif not registered:
                    await self._register(live)
                    registered = True  # and look again: an event may have come since the first look
                elif not state.expired:
                    await self.pause(live, state.due_at)
                elif (ending := await self._expire(live)) is not None:
                    break
        finally:
            del self._open[place.index]
            self._over.add(place.index)
            self.forget_if_closed()
        await self._cancel_child(request)
        return self._give_up(request, place, ending)

    @contextmanager
    def _watch_local_run(self, live: _LiveWait) -> Iterator[None]:
        """Learn from this worker how the run ends that is waited for, if this worker holds it.

        The end is durable when it is reported, so the store need not be asked for it. If the run leaves this worker in
        another way, or something else wakes the wait, the wait looks in the store.
        """
        if live.request.wait.mode is not WaitMode.RUN:
            yield
            return
        execution, run_id = self._execution, live.request.wait.names[0]
        held = execution.worker.held
        found = held.find(run_id)
        if found is None or found.claimed.tenant != execution.claimed.tenant:
            yield
            return
        live.local, live.subject = found, found.claimed.root or run_id
        on_left = partial(_on_run_left, live, found.claimed)
        held.watch(run_id, on_left)
        try:
            yield
        finally:
            held.unwatch(run_id, on_left)

    async def _look(self, live: _LiveWait) -> WaitState | None:
        """Read what the wait is for; return the state of the wait, None if it waits for a run that does not exist."""
        match live.request.wait.mode:
            case WaitMode.RUN:
                return await self._look_at_run(live)
            case WaitMode.TASK:
                return await self._look_at_question(live)
            case _:
                return await self._look_at_events(live)

    async def _read(self, ask: Callable[[], Awaitable[Found | None]]) -> Found:
        """Read what the store has for this run; leave the run if it was taken away: nothing found may be used then."""
        execution = self._execution
        with execution.calls.ask_store():
            found = await repeat_until_answered(ask, execution.clock)
        if found is None or found.fence != execution.view.fence:
            execution.detach()
            raise RunDetached
        self.seen = max(self.seen, found.wakeups)
        return found

    async def _look_at_events(self, live: _LiveWait) -> WaitState:
        """Read the unread events; return the state of this wait, and let other waits look that have an answer."""
        execution = self._execution
        await execution.ready()
        live.woken.clear()
        backend, run = execution.worker.backend, execution.claimed.id
        mailbox = await self._read(lambda: backend.mailbox(run))
        self._unread = tuple([event for event in mailbox.events if event.seq not in self._used])
        waits = [each.describe() for each in self._open.values() if each.is_for_events]
        states = match_events(waits, self._unread, backend.now())
        for other in self._open.values():
            if other is not live and other.is_for_events and states[other.place.index].events:
                other.woken.set()
        return states[live.place.index]

    async def _look_at_run(self, live: _LiveWait) -> WaitState | None:
        """Read the run that is waited for; return the state of this wait, None if that run does not exist."""
        execution = self._execution
        await execution.ready(ahead=live.local is not None)
        live.woken.clear()
        if live.end is not None and live.end.output is not None:
            if len(self._open) == 1:
                self.seen = max(self.seen, self._known)  # the end of this run, for which no other wait has to look
        elif live.local is None:
            backend, run, run_id = execution.worker.backend, execution.claimed.id, live.request.wait.names[0]
            found = await self._read(lambda: backend.awaited_run(run, run_id))
            live.end = found.end
            if found.end is None:
                return None
            live.subject = found.end.subject
        expired = live.limit_at is not None and execution.worker.backend.now() >= live.limit_at
        return WaitState(expired=expired, due_at=live.limit_at)

    async def _look_at_question(self, live: _LiveWait) -> WaitState:
        """Read the answer of a person, if there is one."""
        execution = self._execution
        await execution.ready()
        live.woken.clear()
        backend, run, index = execution.worker.backend, execution.claimed.id, live.place.index
        found = await self._read(lambda: backend.asked_question(run, index))
        live.answer = found.answer
        expired = live.limit_at is not None and backend.now() >= live.limit_at
        return WaitState(expired=expired, due_at=live.limit_at)

    async def _answer_by_person(self, live: _LiveWait, answer: RecordedAnswer) -> Any:
        """Record the answer of a person, or that the type which the code asks for does not take it."""
        for text in (answer.answer, answer.note):
            if isinstance(text, Unreadable):
                raise ConfigurationError(text.why)
        text = encode_person_answer(answer.answer, answer.by, answer.at, answer.note)
        try:
            live.request.read_answer(text)
        except PayloadError as error:
            return await self._fail(live, build_answer_failure(live.place, answer.by, Reason.of_error(error)))
        return await self._answer(live, (), text)

    def _is_answered(self, end: RunEnd, request: WaitRequest) -> bool:
        # A run that is rolled back with its parent keeps its result.
        return end.output is not None or is_answer(end.status, end.open_letter, request.wait.letters)

    async def _answer_by_end(self, live: _LiveWait, end: RunEnd) -> Any:
        """Record the result of the run that was waited for, or its failure."""
        if isinstance(end.output, Unreadable):
            raise ConfigurationError(end.output.why)
        if end.output is None:
            return await self._fail(live, build_child_failure(live.place, end.run_id, end.status, end.failure))
        return await self._answer(live, (), end.output or "null")

    async def _fail(self, live: _LiveWait, ending: FailureReason) -> Any:
        execution, place = self._execution, live.place
        done, resumes = execution.journal.new_done_number(), execution.suspension.wake_up()
        await execution.settle(
            WaitFailed(
                run=execution.view,
                place=place,
                done=done,
                input=live.request.wait.to_json(),
                ending=ending,
                resumes=resumes,
            )
        )
        await execution.order.pass_result(done, place.key)
        return self._give_up(live.request, place, ending)

    async def _decode_events(self, live: _LiveWait, numbers: tuple[int, ...]) -> list[EventRow] | None:
        """Return the events that answer a wait; None if some do not fit its type and were set aside."""
        found = [event for event in self._unread if event.seq in numbers]
        refused: list[EventUse] = []
        for event in found:
            if isinstance(event.payload, Unreadable):
                raise ConfigurationError(event.payload.why)
            try:
                live.request.decode(event.name, event.payload)
            except PayloadError as error:
                reason = Reason.of_error(error).to_text()
                refused.append(EventUse(seq=event.seq, index=live.place.index, refused=reason))
        if not refused:
            return found
        self._used.update(use.seq for use in refused)
        execution = self._execution
        await execution.settle(EventsRefused(run=execution.view, place=live.place, uses=tuple(refused)))
        return None

    async def _register(self, live: _LiveWait) -> None:
        """Record the wait. A run that does nothing else sleeps from now on."""
        execution, request = self._execution, live.request
        delay = None if request.timeout is None else int(request.timeout * MICROS)
        kind: Callable[..., WaitStarted] = WaitStarted
        subjects = request.wait.names if live.subject is None else (live.subject,)
        if request.question is not None:
            kind = partial(QuestionAsked, question=request.question)
            subjects = (task_id(execution.claimed.public_id, live.place.index),)
        outcome = kind(
            run=execution.view,
            place=live.place,
            delay=delay,
            input=request.wait.to_json(),
            subjects=subjects,
            kind=request.wait.kind,
            seen=self.seen,
            idle=execution.is_only_branch(),
            hold=execution.worker.hold(),
        )
        settled = await execution.settle(outcome)
        live.limit_at = None if delay is None else settled.now + delay
        self.suspend(settled.transition.change)

    def suspend(self, change: RunWrite | None) -> None:
        """Let the run sleep, or leave this worker, as the decision about its wait says."""
        if change is not None and change.release:
            self._execution.detach()
            raise RunDetached
        if change is not None:
            self._execution.fall_asleep(self.seen)

    async def pause(self, live: _LiveWait | LiveStep, due_at: int | None) -> None:
        """Wait for a wake-up, or for the time at which the state of the wait changes by itself."""
        execution = self._execution
        seconds = math.inf if due_at is None else execution.seconds_until(due_at)
        with execution.suspension.mark_waiting(live.place, 1, seconds):
            if not execution.suspension.asleep:
                execution.order.recheck()  # perhaps every branch waits now
            timer = None if due_at is None else execution.clock.call_later(seconds, live.woken.set)
            try:
                await live.woken.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def _answer(self, live: _LiveWait, numbers: tuple[int, ...], text: str) -> Any:
        execution, wait, place = self._execution, live.request.wait, live.place
        self._used.update(numbers)
        done, resumes = execution.journal.new_done_number(), execution.suspension.wake_up()
        outcome = WaitAnswered(
            run=execution.view,
            place=place,
            done=done,
            input=wait.to_json(),
            output=text,
            uses=tuple(EventUse(seq=seq, index=place.index) for seq in numbers),
            resumes=resumes,
        )
        await execution.calls.settle_result(live.branch, outcome, done)
        return live.request.read_answer(text)

    async def _expire(self, live: _LiveWait) -> FailureReason | None:
        """Record that the limit has passed; None if the store refuses that, because an event came in time."""
        execution, place = self._execution, live.place
        limit = int((live.request.timeout or 0) * MICROS)
        done, resumes = execution.journal.new_done_number(), execution.suspension.wake_up()
        outcome = WaitTimedOut(run=execution.view, place=place, done=done, seen=self.seen, limit=limit, resumes=resumes)
        settled = await execution.submit(outcome)
        if not settled.kept:
            if resumes:
                execution.fall_asleep(self.seen)  # the store still shows it so
            # The clock of the store may be behind. The next look notices if the run was taken away.
            await execution.clock.sleep(_CLOCK_PAUSE)
            return None
        execution.check(settled)
        await execution.order.pass_result(done, place.key)
        return build_wait_failure(place, limit)


def _on_run_left(live: _LiveWait, claimed: ClaimedRun, end: RunWrite | None) -> None:
    """Let a wait continue: the run that it is for ended in this worker, or left it in another way."""
    live.local = None
    if end is not None and end.output is not None:
        live.end = RunEnd(
            run_id=claimed.public_id,
            tenant=claimed.tenant,
            workflow=claimed.workflow,
            subject=live.subject or claimed.public_id,
            status=end.status,
            output=end.output,
            failure=None,
            open_letter=False,
        )
    live.woken.set()
