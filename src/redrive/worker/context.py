"""The engine as workflow and step code sees it. `redrive` exports all of these, except `log_context`."""

from __future__ import annotations

import asyncio
import uuid as uuid_module
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol

from redrive.clock import SystemClock
from redrive.duration import Duration, parse_duration, to_datetime
from redrive.errors import MisusedStep
from redrive.observability.logs import describe_run
from redrive.worker.attempt import Attempt, MessageId
from redrive.worker.branches import Branch, current_scope
from redrive.worker.execution import Execution


class StepInfo(Protocol):
    """What a step can learn and say about itself while it runs."""

    @property
    def step(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def idempotency_key(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def correlation_id(self) -> str: ...
    def heartbeat(self, details: Any = None) -> None: ...
    def publish(self, topic: str, payload: Any, key: str | None = None) -> MessageId: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What workflow or step code can learn about its run."""

    run_id: str
    workflow: str
    tenant: str
    correlation_id: str
    version: str


def step_info() -> StepInfo:
    """The attempt this code runs in: its number, its idempotency key, and `heartbeat()`."""
    here = current_scope.get()
    if isinstance(here, Attempt):
        return here
    raise MisusedStep("step_info() is for the body of a step that an engine runs")


def run_info() -> RunInfo:
    """The run this code belongs to, in workflow code and in steps."""
    here = current_scope.get()
    if not isinstance(here, Branch | Attempt):
        raise MisusedStep("run_info() is for code that an engine runs")
    execution: Execution = here.execution
    return RunInfo(
        run_id=execution.claimed.public_id,
        workflow=execution.claimed.workflow,
        tenant=execution.claimed.tenant,
        correlation_id=execution.correlation_id,
        version=execution.worker.version,
    )


def sleep(duration: Duration) -> Awaitable[None]:
    """Wait durably: the run costs nothing meanwhile and goes on after a crash or a deploy.

    In a `def` workflow the call itself blocks. Outside a run it is an ordinary sleep.
    """
    wait = parse_duration(duration, "sleep")
    branch = _current_branch("redrive.sleep")
    if branch is None:
        return asyncio.sleep(wait)
    call: Any = branch.execution.requests.sleep(branch, wait)
    blocked: Awaitable[None] = branch.execution.call_from_thread(call) if branch.threaded else call
    return blocked


def publish(topic: str, payload: Any, key: str | None = None) -> MessageId:
    """Publish a message to every sink that wants its topic; returns the message's id.

    In workflow code it is recorded: a resumed run does not publish it again. In a step it is committed with
    the step's success, and dropped if the attempt fails. Messages with equal keys arrive in order. Awaiting
    the call is allowed and changes nothing.
    """
    here = current_scope.get()
    if isinstance(here, Attempt):
        return here.publish(topic, payload, key)
    if isinstance(here, Branch):
        return MessageId(here.execution.requests.publish(here, topic, payload, key))
    raise MisusedStep(
        "redrive.publish() is for workflows and steps that an engine runs: a message is committed with what "
        "it announces. In a thread of a step's own, call publish() of what step_info() returned in the step"
    )


def now() -> datetime:
    """The current time (UTC), recorded: a resumed run sees the same."""
    branch = _current_branch("redrive.now")
    if branch is None:
        return to_datetime(SystemClock().now())
    execution = branch.execution
    micros: int = execution.requests.record(branch, "redrive.now", execution.worker.store.now)
    return to_datetime(micros)


def uuid() -> uuid_module.UUID:
    """A random UUID, recorded: a resumed run gets the same."""
    branch = _current_branch("redrive.uuid")
    if branch is None:
        return uuid_module.uuid4()
    requests = branch.execution.requests
    return uuid_module.UUID(requests.record(branch, "redrive.uuid", lambda: str(uuid_module.uuid4())))


def random() -> float:
    """A random number in [0, 1), recorded: a resumed run gets the same."""
    branch = _current_branch("redrive.random")
    if branch is None:
        return SystemClock().draw()
    return float(branch.execution.requests.record(branch, "redrive.random", branch.execution.clock.draw))


class timeout:
    """Limit a block of workflow code, durably: raises TimeoutError inside when the time is up.

    The limit counts from when the block was first entered, over crashes and deploys. A step in flight
    is cancelled.
    """

    def __init__(self, duration: Duration) -> None:
        self._seconds = parse_duration(duration, "timeout")
        self._limit: Any = None
        self._plain: asyncio.Timeout | None = None

    async def __aenter__(self) -> None:
        branch = _current_branch("redrive.timeout")
        if branch is None:
            self._plain = asyncio.timeout(self._seconds)
            await self._plain.__aenter__()
        else:
            self._limit = branch.execution.requests.limit(branch, self._seconds)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._plain is not None:
            await self._plain.__aexit__(kind, error, trace)
            return
        if self._limit.leave(kind):
            raise TimeoutError(f"the time limit of {self._seconds:g} s passed") from error


def _current_branch(what: str) -> Branch | None:
    """Return the branch that calls; None outside a run."""
    here = current_scope.get()
    if isinstance(here, Attempt):
        raise MisusedStep(
            f"{what} is for workflow code, and step {here.step!r} called it; "
            "a step is repeated as a whole and needs no record of what it does inside"
        )
    return here if isinstance(here, Branch) else None


def log_context() -> dict[str, Any]:
    """Return the run, step and attempt that the caller belongs to, as far as there are any."""
    here = current_scope.get()
    execution = getattr(here, "execution", None)
    if execution is None:
        return {}
    about = describe_run(execution.view)
    return {**about, "step": here.step, "attempt": here.attempt} if isinstance(here, Attempt) else about
