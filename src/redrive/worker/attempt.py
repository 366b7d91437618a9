"""Attempts of steps: their bodies with time limits, in threads for plain `def` functions, and their messages.

A message of a step is kept with the attempt. It is committed with the step's success, or dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from redrive.clock import Timer, resume_started
from redrive.core.keys_and_ids import flow_key, message_id
from redrive.core.outbox import check_message_key, check_topic
from redrive.core.payload import check_size, encode_any
from redrive.core.transitions import MessageWrite
from redrive.errors import InputError, MisusedStep
from redrive.observability.tracing import current_traceparent
from redrive.reasons import Reason, ReasonCode
from redrive.time_values import format_duration
from redrive.worker.branches import Branch

if TYPE_CHECKING:
    from redrive.core.outcomes import AttemptStarted, EntryRef
    from redrive.core.run_options import StepOptions
    from redrive.worker.definitions import Step
    from redrive.worker.execution import Execution

MAX_MESSAGES = 1_000
"""Messages that one attempt of a step may publish: they are written in one commit."""

_LOCK = threading.Lock()


class Attempt(msgspec.Struct, eq=False):
    """An attempt of a step. `step_info()` returns it to the step's body.

    `over`: the body has ended. `due`: when its time limit passes. `has_heartbeat`: the body sent a heartbeat
    that the lease has not passed on yet. `drafts`: the messages that it published. `make_mark`: returns its begin
    mark, for the lease's thread to record if the body blocks the loop. `marked`: it did so.
    """

    execution: Execution
    branch: Branch
    step: str
    place: EntryRef
    attempt: int
    began: float
    over: bool = False
    due: float | None = None
    has_heartbeat: bool = False
    drafts: MessageDrafts | None = None
    make_mark: Callable[[], AttemptStarted] | None = None
    marked: bool = False
    _details: str | None = None
    _heard: float | None = None
    _sent_events: int = 0

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.execution.claimed.public_id

    @property
    def tenant(self) -> str:
        """The tenant who owns the run."""
        return self.execution.claimed.tenant

    @property
    def correlation_id(self) -> str:
        """The id that ties together everything done on behalf of one request."""
        return self.execution.correlation_id

    @property
    def idempotency_key(self) -> str:
        """A key for outside services: it is the same for all attempts and replays of this step."""
        claimed = self.execution.claimed
        root = claimed.root or claimed.public_id
        return flow_key(claimed.tenant, root, self.place.key, self.execution.generation_of(self.place.key))

    def heartbeat(self, details: Any = None) -> None:
        """Show that the step is alive, with details for users. May be called from any thread."""
        self._details = None if details is None else json.dumps(details)[:4000]
        self._heard = self.execution.clock.monotonic()
        self.has_heartbeat = True

    def next_event(self) -> int:
        """Return the number of the next event that this attempt sends: its place in the step is its key."""
        with _LOCK:
            self._sent_events += 1
            return self._sent_events - 1

    def publish(self, topic: str, payload: Any, key: str | None = None) -> MessageId:
        """Publish a message if this attempt succeeds. May be called from any thread."""
        with _LOCK:  # two threads must not create the drafts at once
            if self.drafts is None:
                self.drafts = MessageDrafts()
        if self.over:
            self.drafts.close()
        return self.drafts.add(self.execution, self.place.index, topic, payload, key)

    @property
    def last_heartbeat_at(self) -> float:
        """Monotonic time of the last heartbeat, or of the beginning."""
        return self.began if self._heard is None else self._heard

    def news(self) -> str | None:
        """Return the details of the latest heartbeat, and mark it as sent."""
        self.has_heartbeat = False
        details, self._details = self._details, None
        return details


class _AttemptTimeLimit:
    """The time limits of an attempt. It cancels the attempt's task when one passes."""

    __slots__ = ("_attempt", "_clock", "_expired", "_limits", "_pending", "_task", "_timer")

    def __init__(self, attempt: Attempt, options: StepOptions) -> None:
        self._clock = attempt.execution.clock
        self._attempt = attempt
        self._limits = (options.timeout, options.heartbeat_timeout)
        self._task = asyncio.current_task()
        self._timer: Timer | None = None
        self._pending = False
        self._expired = ""

    async def around(self, work: Awaitable[Any]) -> Any:
        """Await the work; raise TimeoutError if this limit cancels it."""
        try:
            return await work
        except asyncio.CancelledError:
            if self._absorb_cancellation():
                raise TimeoutError(self._expired) from None
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            # A cancellation that the body swallowed must not stay with the workflow's task.
            self._absorb_cancellation()

    def arm(self) -> None:
        """Check the limits, counted from the attempt's beginning, and set a timer for the next one."""
        timeout, silence = self._limits
        now = self._clock.monotonic()
        left = self._attempt.began + timeout - now
        if left <= 0:
            self._expire(f"did not finish within {format_duration(timeout)}")
            return
        if silence is not None:
            quiet_for = now - self._attempt.last_heartbeat_at
            if quiet_for >= silence:
                self._expire(f"sent no heartbeat for {format_duration(silence)}")
                return
            left = min(left, silence - quiet_for)
        self._timer = self._clock.call_later(left, self.arm)

    def _expire(self, what: str) -> None:
        self._expired = f"step {self._attempt.step!r} {what}"
        if self._task is not None:
            self._pending = self._task.cancel()

    def _absorb_cancellation(self) -> bool:
        """Withdraw this limit's cancellation. Return True if no other code cancelled the task as well."""
        if self._task is None or not self._pending:
            return False
        self._pending = False
        return self._task.uncancel() == 0


async def run_on_loop(
    attempt: Attempt, step: Step[Any, Any], body: Any, waits_for: Any, on_start: Callable[[], None]
) -> Any:
    """Continue a body that began and waits for `waits_for`, within its time limits."""
    on_start()
    limit = _AttemptTimeLimit(attempt, step.options)
    limit.arm()
    return await limit.around(resume_started(body, waits_for))


async def run_in_thread(
    attempt: Attempt, step: Step[Any, Any], call: Callable[[], Any], on_start: Callable[[], None]
) -> Any:
    """Run a `def` body in a thread, within its time limits. `on_start` is called when it gets the thread."""
    limit = _AttemptTimeLimit(attempt, step.options)

    def begins() -> None:
        # A step that waited for a free thread is timed from when it got one.
        if not attempt.over:
            attempt.began = attempt.execution.clock.monotonic()
            attempt.due = attempt.began + step.options.timeout
            on_start()
            limit.arm()

    return await limit.around(attempt.execution.worker.threads.run_step(call, begins))


class MessageId(str):
    """The id of a message. Awaiting it returns the same id."""

    __slots__ = ()

    def __await__(self) -> Generator[NoReturn, None, str]:
        return str(self)
        yield


def new_message(
    execution: Execution, index: int, number: int, topic: str, payload: Any, key: str | None
) -> MessageWrite:
    """Return the message as stored. Raises InputError if its topic, key or payload is not allowed."""
    topic, key = check_topic(topic), check_message_key(key)
    text = encode_any(payload)
    check_size(text, execution.worker.max_payload, f"the payload of a message on {topic!r}")
    return MessageWrite(
        public_id=message_id(execution.claimed.public_id, index, number),
        topic=topic,
        payload=text,
        run_id=execution.claimed.public_id,
        correlation_id=execution.correlation_id,
        key=key,
        trace=current_traceparent() or execution.view.options.trace,
    )


class MessageDrafts:
    """The messages that one attempt of a step has published so far, from any thread."""

    __slots__ = ("_closed", "_messages")

    def __init__(self) -> None:
        self._messages: list[MessageWrite] = []
        self._closed = False

    def add(self, execution: Execution, index: int, topic: str, payload: Any, key: str | None) -> MessageId:
        """Keep another message. Raises MisusedStep if the attempt is over."""
        with _LOCK:
            number = len(self._messages)
            if self._closed:
                raise MisusedStep(
                    f"a message on {topic!r} was published after its attempt was over, so it will not be "
                    "committed; let the step wait for tasks and threads that it begins"
                )
            if number == MAX_MESSAGES:
                raise InputError(Reason(ReasonCode.TOO_MANY_MESSAGES, limit=MAX_MESSAGES))
            message = new_message(execution, index, number, topic, payload, key)
            self._messages.append(message)
        return MessageId(message.public_id)

    def close(self) -> tuple[MessageWrite, ...]:
        """Return all messages, and accept no more."""
        with _LOCK:
            self._closed = True
            return tuple(self._messages)


class ThreadPools:
    """Threads for `def` functions, which run with the context of their caller.

    Workflow functions and steps have separate pools. A workflow function blocks its thread while its steps
    run, so in a shared pool workflow functions could take all threads and wait forever.

    A thread cannot be stopped. If a step timed out, its thread stays in use until the function returns;
    `stuck` counts these threads.
    """

    def __init__(self, steps: int, workflows: int) -> None:
        self._steps = ThreadPoolExecutor(steps, thread_name_prefix="redrive-step")
        self._workflows = ThreadPoolExecutor(workflows, thread_name_prefix="redrive-workflow")
        self._stuck: set[Future[Any]] = set()

    @property
    def stuck(self) -> int:
        """The number of threads that still run a function whose attempt is over."""
        return len(self._stuck)

    async def run_step(self, call: Callable[[], Any], on_start: Callable[[], None]) -> Any:
        """Run a step's body; `on_start` is called on the loop when a thread begins it."""
        return await self._run(self._steps, call, on_start)

    async def run_workflow(self, call: Callable[[], Any]) -> Any:
        """Run a workflow function."""
        return await self._run(self._workflows, call)

    async def _run(self, pool: Executor, call: Callable[[], Any], on_start: Callable[[], None] | None = None) -> Any:
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()

        def work() -> Any:
            if on_start is not None:
                loop.call_soon_threadsafe(on_start)
            try:
                return context.run(call)
            except StopIteration as stop:  # a future cannot carry it, so it becomes an error as in a coroutine
                raise RuntimeError("the function raised StopIteration") from stop

        future = pool.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():
                self._stuck.add(future)
                future.add_done_callback(self._stuck.discard)
            raise

    def close(self) -> None:
        """Accept no more calls. Running functions are not stopped."""
        self._steps.shutdown(wait=False, cancel_futures=True)
        self._workflows.shutdown(wait=False, cancel_futures=True)
