"""One try of one step: calling the body, within its time, in a thread if it is a plain `def`."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from redrive.clock import Timer
from redrive.core.keys import flow_key
from redrive.duration import words
from redrive.halfway import rest_of
from redrive.worker.branch import Branch, current
from redrive.worker.publishing import Drafts, Published

if TYPE_CHECKING:
    from redrive.core.options import StepOptions
    from redrive.core.outcome import Place
    from redrive.core.transition import MessageWrite
    from redrive.worker.definition import Step
    from redrive.worker.execution import Execution

__all__ = ["Attempt", "Unfinished", "begin"]

_LOCK = threading.Lock()


class Attempt:
    """What a step's body can learn and say about itself: `step_info()` returns it."""

    __slots__ = (
        "_details",
        "_drafts",
        "_heard",
        "attempt",
        "began",
        "branch",
        "due",
        "execution",
        "has_news",
        "over",
        "place",
        "step",
    )

    def __init__(
        self, execution: Execution, branch: Branch, step: str, place: Place, attempt: int, began: float
    ) -> None:
        self.execution = execution
        self.branch = branch
        self.over = False
        self.has_news = False
        self.due: float | None = None
        self._details: str | None = None
        self._drafts: Drafts | None = None
        self._heard: float | None = None
        self.step = step
        self.place = place
        self.attempt = attempt
        self.began = began

    @property
    def run_id(self) -> str:
        """The run this step belongs to."""
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
        """The same for every try and every replay of this step; give it to outside services."""
        claimed = self.execution.claimed
        root = claimed.root or claimed.public_id
        return flow_key(claimed.tenant, root, self.place.key, self.execution.generation_of(self.place.key))

    def heartbeat(self, details: Any = None) -> None:
        """Show that the step is alive, with details for those who watch. May be called from any thread."""
        self._details = None if details is None else json.dumps(details)[:4000]
        self._heard = self.execution.clock.monotonic()
        self.has_news = True

    def publish(self, topic: str, payload: Any, key: str | None = None) -> Published:
        """Publish a message if this attempt succeeds. May be called from any thread."""
        drafts = self._drafts or self._new_drafts()
        if self.over:
            drafts.close()
        return drafts.add(self.execution, self.place.index, topic, payload, key)

    def _new_drafts(self) -> Drafts:
        with _LOCK:
            if self._drafts is None:
                self._drafts = Drafts()
            return self._drafts

    def messages(self) -> tuple[MessageWrite, ...]:
        """What the attempt published; nothing is added from here on."""
        return () if self._drafts is None else self._drafts.close()

    @property
    def last_sign(self) -> float:
        """When the step last showed that it is alive, on the clock's monotonic scale."""
        return self.began if self._heard is None else self._heard

    def news(self) -> str | None:
        """The latest heartbeat's details. From then on the step has no news until its next heartbeat."""
        self.has_news = False
        details, self._details = self._details, None
        return details


class _TimeLimit:
    """Cancels the attempt's task when the step takes too long or falls silent."""

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
        """Await the work; if this limit cancels it, that comes out as TimeoutError."""
        try:
            return await work
        except asyncio.CancelledError:
            if self._absorbs():
                raise TimeoutError(self._expired) from None
            raise
        finally:
            self._disarm()

    def arm(self) -> None:
        """Watch the time, counted from when the attempt began."""
        timeout, silence = self._limits
        now = self._clock.monotonic()
        left = self._attempt.began + timeout - now
        if left <= 0:
            self._expire(f"did not finish within {words(timeout)}")
            return
        if silence is not None:
            quiet_for = now - self._attempt.last_sign
            if quiet_for >= silence:
                self._expire(f"sent no heartbeat for {words(silence)}")
                return
            left = min(left, silence - quiet_for)
        self._timer = self._clock.call_later(left, self.arm)

    def _expire(self, what: str) -> None:
        self._expired = f"step {self._attempt.step!r} {what}"
        if self._task is not None:
            self._pending = self._task.cancel()

    def _disarm(self) -> None:
        """The body is over. A cancellation that it swallowed must not stay with the workflow's task."""
        if self._timer is not None:
            self._timer.cancel()
        self._absorbs()

    def _absorbs(self) -> bool:
        """True if a cancellation that arrived was this limit's own and nobody else's."""
        if self._task is None or not self._pending:
            return False
        self._pending = False
        return self._task.uncancel() == 0


class Unfinished:
    """A body that has not ended, and what it takes to see it to its end."""

    __slots__ = ("_attempt", "_work")

    def __init__(self, attempt: Attempt, work: Coroutine[Any, Any, Any]) -> None:
        self._attempt = attempt
        self._work = work

    async def finish(self) -> Any:
        """Go on to its end, within its limits. Raises TimeoutError when they pass."""
        token = current.set(self._attempt)
        try:
            return await self._work
        finally:
            self._attempt.over = True
            current.reset(token)


def begin(
    attempt: Attempt, step: Step[Any, Any], call: Callable[[], Any], on_start: Callable[[], None]
) -> Any:
    """Call the body: what it returned, or `Unfinished` if it waits for something.

    `on_start` is called when the body really begins, which in a thread may be later than now. A body that
    is over before it waits for anything costs no timer, and nobody needs to hear that it began.
    """
    if not step.is_async:
        return Unfinished(attempt, _in_thread(attempt, step, call, on_start))
    token = current.set(attempt)
    attempt.due = attempt.began + step.options.timeout
    over = True
    try:
        body = call().__await__()
        waits_for = body.send(None)
        over = False
    except StopIteration as returned:
        return returned.value
    finally:
        attempt.over = over
        current.reset(token)
    return Unfinished(attempt, _on_the_loop(attempt, step, body, waits_for, on_start))


async def _on_the_loop(
    attempt: Attempt, step: Step[Any, Any], body: Any, waits_for: Any, on_start: Callable[[], None]
) -> Any:
    on_start()
    limit = _TimeLimit(attempt, step.options)
    limit.arm()
    return await limit.around(rest_of(body, waits_for))


async def _in_thread(
    attempt: Attempt, step: Step[Any, Any], call: Callable[[], Any], on_start: Callable[[], None]
) -> Any:
    limit = _TimeLimit(attempt, step.options)

    def begins() -> None:
        """A step that waited for a free thread is timed from when it got one."""
        if not attempt.over:
            attempt.began = attempt.execution.clock.monotonic()
            attempt.due = attempt.began + step.options.timeout
            on_start()
            limit.arm()

    return await limit.around(attempt.execution.worker.threads.run_step(call, begins))
