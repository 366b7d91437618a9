"""One try of one step: calling the body, within its time, in a thread if it is a plain `def`."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redrive.clock import Clock, Timer
from redrive.core.keys import flow_key
from redrive.duration import words
from redrive.worker.branch import Branch, current

if TYPE_CHECKING:
    from redrive.core.outcome import Place
    from redrive.worker.definition import Step
    from redrive.worker.execution import Execution

__all__ = ["Attempt", "perform"]


class Attempt:
    """What a step's body can learn and say about itself: `step_info()` returns it."""

    __slots__ = (
        "_details",
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
        return flow_key(claimed.tenant, root, self.place.key, claimed.generation)

    def heartbeat(self, details: Any = None) -> None:
        """Show that the step is alive, with details for those who watch. May be called from any thread."""
        self._details = None if details is None else json.dumps(details)[:4000]
        self._heard = self.execution.clock.monotonic()
        self.has_news = True

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

    __slots__ = ("_attempt", "_clock", "_limits", "_pending", "_task", "_timer", "expired")

    def __init__(self, clock: Clock, attempt: Attempt, timeout: float, silence: float | None) -> None:
        self._clock = clock
        self._attempt = attempt
        self._limits = (timeout, silence)
        self._task = asyncio.current_task()
        self._timer: Timer | None = None
        self._pending = False
        self.expired = ""

    def arm(self) -> None:
        timeout, silence = self._limits
        self._attempt.due = self._attempt.began + timeout
        self._timer = self._clock.call_later(
            timeout if silence is None else min(timeout, silence), self._check
        )

    def _check(self) -> None:
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
        self._timer = self._clock.call_later(left, self._check)

    def _expire(self, what: str) -> None:
        self.expired = f"step {self._attempt.step!r} {what}"
        if self._task is not None:
            self._pending = self._task.cancel()

    def disarm(self) -> None:
        """The body is over. A cancellation that it swallowed must not stay with the workflow's task."""
        if self._timer is not None:
            self._timer.cancel()
        self.absorbs()

    def absorbs(self) -> bool:
        """True if a cancellation that arrived was this limit's own and nobody else's."""
        if self._task is None or not self._pending:
            return False
        self._pending = False
        return self._task.uncancel() == 0


async def perform(
    attempt: Attempt, step: Step[Any, Any], call: Callable[[], Any], on_start: Callable[[], None]
) -> Any:
    """Call the body within its limits. Raises TimeoutError when they pass.

    `on_start` is called when the body really begins, which in a thread may be later than now.
    """
    worker, options = attempt.execution.worker, step.options
    limit = _TimeLimit(worker.clock, attempt, options.timeout, options.heartbeat_timeout)
    token = current.set(attempt)
    try:
        if step.is_async:
            on_start()
            limit.arm()
            return await call()
        began = functools.partial(_thread_began, attempt, limit, on_start)
        return await worker.threads.run_step(call, began)
    except asyncio.CancelledError:
        if limit.absorbs():
            raise TimeoutError(limit.expired) from None
        raise
    finally:
        attempt.over = True
        limit.disarm()
        current.reset(token)


def _thread_began(attempt: Attempt, limit: _TimeLimit, on_start: Callable[[], None]) -> None:
    """A step that waited for a free thread is timed from when it got one."""
    if not attempt.over:
        attempt.began = attempt.execution.clock.monotonic()
        on_start()
        limit.arm()
