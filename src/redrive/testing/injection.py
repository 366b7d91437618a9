"""Making steps fail on purpose.

    with faults(step="charge", fail=[TimeoutError, Http(429, retry_after=30), Crash]):
        run = await e.run(fulfil, order)

The first call of `charge` times out, the second is told to come back in 30 seconds, during the third
the worker dies; from the fourth on, the real function is called.

    TimeoutError, ValueError("no")     the step raises it: a class, or an instance of your own
    Http(503)                          the step raises what an HTTP client would
    Crash                              the worker is killed, as by SIGKILL, and another takes over
    Hang                               the step does not come back until its timeout cancels it
    Ok (or None)                       this call goes through
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

from redrive.app import Redrive
from redrive.errors import ConfigurationError, RunDetached
from redrive.testing.clock import VirtualClock
from redrive.worker.attempt import Attempt

# -- Making steps fail on purpose ------------------------------------------------------------------------


class Crash(BaseException):
    """The worker dies here, as if it were killed: nothing is given back, nothing more is recorded.

    It is a BaseException so that no `except Exception` on the way survives its own death.
    """


class Hang:
    """The call does not come back. The step's timeout ends it, when time is moved that far."""


class Ok:
    """The call goes through."""


class Http(Exception):
    """What an HTTP client raises for a bad answer: it is classified by its status and headers.

    `retry_after` becomes the `Retry-After` header: seconds, or the text of a date.
    """

    def __init__(
        self,
        status: int,
        retry_after: float | str | None = None,
        body: str = "",
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(f"HTTP {status}{': ' if body else ''}{body}")
        self.status_code = status
        self.body = body
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)


StepFault: TypeAlias = "type[BaseException] | BaseException | type[Hang] | type[Ok] | Hang | Ok | None"
"""What may stand in `fail=[...]`."""

_MESSAGE: Final = "injected by redrive.testing.injection"
_active_contexts: list[faults] = []


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """The fault that one call meets. `after`: the real function is called first, and its result lost."""

    fault: StepFault
    after: bool

    @property
    def kills(self) -> bool:
        """True if the worker dies."""
        return isinstance(self.fault, Crash) or self.fault is Crash

    @property
    def error(self) -> BaseException | None:
        """The exception to raise; None if the call hangs or the worker dies."""
        if self.kills or self.fault is Hang or isinstance(self.fault, Hang):
            return None
        return self.fault if isinstance(self.fault, BaseException) else _make_error(self.fault)


class faults:
    """Make the calls of one step fail, one fault for each call; afterwards the real function is called.

    `step` and `workflow` are names or the registered functions themselves; without `workflow` the step
    is meant wherever it is called. `at="after"` calls the real function first and loses its result: the
    payment was made, but the answer never came. Contexts may be nested; the innermost is asked first.

    A fault that never happened proves nothing, so leaving the context with faults unused raises an
    AssertionError that names them, unless `strict=False`.
    """

    def __init__(
        self,
        step: Any,
        fail: Iterable[StepFault],
        *,
        workflow: Any = None,
        at: Literal["before", "after"] | None = None,
        strict: bool = True,
    ) -> None:
        if at not in (None, "before", "after"):
            raise ConfigurationError(f'at is "before" or "after" the real function, not {at!r}')
        self.step = registered_name(step, "step")
        self.workflow = None if workflow is None else registered_name(workflow, "workflow")
        self.left: list[StepFault] = [_check_fault(fault) for fault in fail]
        self.fired: list[StepFault] = []
        self.calls = 0
        self._after = at == "after"
        self._strict = strict

    def __enter__(self) -> faults:
        _active_contexts.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active_contexts.remove(self)
        if kind is None and self._strict and self.left:
            raise AssertionError(self._describe_unused())

    def take(self, step: str, workflow: str) -> InjectedFault | None:
        """The fault for a call that begins now, if it is meant."""
        if step != self.step or self.workflow not in (None, workflow):
            return None
        self.calls += 1
        if not self.left:
            return None
        fault = self.left.pop(0)
        self.fired.append(fault)
        return InjectedFault(fault, self._after)

    def _describe_unused(self) -> str:
        names = ", ".join(_fault_name(fault) for fault in self.left)
        total = len(self.left) + len(self.fired)
        where = f"step {self.step!r}" + (f" of workflow {self.workflow!r}" if self.workflow else "")
        times = {0: "was never called", 1: "was called once"}.get(self.calls, f"was called {self.calls} times")
        return (
            f"{len(self.left)} of {total} faults never happened: {names}. Meanwhile {where} {times}; "
            "let time pass (e.advance) until it is called again, or take the faults out"
        )


def next_fault(step: str, workflow: str) -> InjectedFault | None:
    """What the call of a step that begins now meets; None lets it through."""
    for context in reversed(_active_contexts):
        found = context.take(step, workflow)
        if found is not None:
            through = found.fault is None or found.fault is Ok or isinstance(found.fault, Ok)
            return None if through else found
    return None


def registered_name(thing: Any, kind: str) -> str:
    """The name of a registered step or workflow, given by name or as the function itself."""
    name = thing if isinstance(thing, str) else getattr(thing, "name", None)
    if not isinstance(name, str):
        raise ConfigurationError(f"{thing!r} is no {kind}: give its name, or the decorated function")
    return name


def _check_fault(fault: StepFault) -> StepFault:
    if fault is None or fault in (Hang, Ok) or isinstance(fault, Hang | Ok | BaseException):
        return fault
    if isinstance(fault, type) and issubclass(fault, BaseException):
        if fault is not Crash:
            _make_error(fault)
        return fault
    raise ConfigurationError(
        f"{fault!r} is no fault: give an exception class or instance, Http(...), Crash, Hang or Ok"
    )


def _make_error(kind: Any) -> BaseException:
    try:
        error: BaseException = kind(_MESSAGE)
    except TypeError:
        raise ConfigurationError(
            f"{kind.__name__} cannot be made from a message alone; give an instance of it instead"
        ) from None
    return error


def _fault_name(fault: StepFault) -> str:
    return fault.__name__ if isinstance(fault, type) else repr(fault)


# -- What stands around the body of every step in a test: it counts calls and lets faults strike ---------


CallCounts = Counter[tuple[str, str, str]]
"""How often bodies were really called, by run, step and journal key."""

FaultSource = Callable[[str, str], InjectedFault | None]
"""What the call of a step of a workflow meets that begins now, by their names."""


class StepBodies:
    """The bodies of the steps that one worker executes.

    `killed` is True once a fault was the death of the worker.
    """

    def __init__(self, app: Redrive, clock: VirtualClock, calls: CallCounts, faults: FaultSource) -> None:
        self._begun: dict[Attempt, asyncio.Task[Any] | None] = {}
        self._stopped: set[Attempt] = set()
        self.killed = False
        self._steps = app.registered_steps
        self._clock = clock
        self._calls = calls
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()

    def around(self, attempt: Attempt, call: Callable[[], Any]) -> Callable[[], Any]:
        """The body, with the fault that this call meets."""
        self._begun[attempt] = asyncio.current_task()
        fault = self._faults(attempt.step, attempt.execution.claimed.workflow)
        if self._steps[attempt.step].is_async:
            return functools.partial(self._call, attempt, fault, call)
        return functools.partial(self._call_in_thread, attempt, fault, call)

    def executing(self) -> set[Attempt]:
        """The attempts whose bodies are under way, without those that hang or sleep on the test's clock."""
        for attempt in [attempt for attempt in self._begun if attempt.over or attempt.execution.dead]:
            del self._begun[attempt]
        return {
            attempt
            for attempt, task in self._begun.items()
            if attempt not in self._stopped and not (task is not None and self._clock.waits(task))
        }

    def release(self) -> None:
        """The worker is gone: let go of threads that hang."""
        self._over.set()

    async def _call(self, attempt: Attempt, fault: InjectedFault | None, call: Callable[[], Any]) -> Any:
        if fault is not None and not fault.after:
            await self._apply_fault(attempt, fault)
        self._count_call(attempt)
        value = await call()
        if fault is not None:
            await self._apply_fault(attempt, fault)
        return value

    async def _apply_fault(self, attempt: Attempt, fault: InjectedFault) -> None:
        if fault.error is not None:
            raise fault.error
        if fault.after and not fault.kills and self._steps[attempt.step].options.transactional:
            raise ConfigurationError(
                f"step {attempt.step!r} is transactional: were it to hang after its statements, nobody could "
                'use the store in memory; use at="before"'
            )
        self._stop_attempt(attempt, fault)
        await self._loop.create_future()

    def _call_in_thread(self, attempt: Attempt, fault: InjectedFault | None, call: Callable[[], Any]) -> Any:
        if fault is not None and not fault.after:
            self._apply_fault_in_thread(attempt, fault)
        self._count_call(attempt)
        value = call()
        if fault is not None:
            self._apply_fault_in_thread(attempt, fault)
        return value

    def _apply_fault_in_thread(self, attempt: Attempt, fault: InjectedFault) -> None:
        """A thread cannot be ended: one that hangs does so until its worker is gone."""
        if fault.error is not None:
            raise fault.error
        self._loop.call_soon_threadsafe(self._stop_attempt, attempt, fault)
        self._over.wait()
        raise RunDetached

    def _stop_attempt(self, attempt: Attempt, fault: InjectedFault) -> None:
        if not attempt.over and not attempt.execution.dead:
            self._stopped.add(attempt)
            self.killed = self.killed or fault.kills

    def _count_call(self, attempt: Attempt) -> None:
        self._calls[attempt.run_id, attempt.step, attempt.place.key] += 1
