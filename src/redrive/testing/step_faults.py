"""Faults of steps: injected errors, delays and crashes of steps in a test.

    with faults(step="charge", fail=[TimeoutError, Http(429, retry_after=30), Crash]):
        run = await e.run(fulfil, order)

The first call of `charge` times out, the second gets the status 429 with a `Retry-After` of 30 seconds, and the worker
dies during the third. From the fourth call on, the real function is called.

    TimeoutError, ValueError("no")     the step raises this exception: a class, or an instance
    Http(503)                          the step raises an error like that of an HTTP client
    Crash                              the worker is killed, as by SIGKILL, and another takes over
    Hang                               the step does not return until its timeout cancels it
    Ok (or None)                       the real function is called
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias

from redrive.app import Redrive
from redrive.errors import ConfigurationError, RunDetached
from redrive.testing.virtual_clock import VirtualClock
from redrive.worker.attempt import Attempt
from redrive.worker.definitions import Step


@contextmanager
def stand_in(step: Step[Any, Any], fake: Callable[..., Any]) -> Iterator[None]:
    """Let this function execute a remote step, in the process of the test and in virtual time.

    It gets the arguments of the step, and may be `async def`. Timeouts, retries and circuits work as for other steps.
    """
    if not isinstance(step, Step) or step.options.remote is None:
        raise ConfigurationError(f"stand_in takes a step with remote=, not {step!r}: use faults for other steps")
    before = step.fn, step.is_async, step.options.remote
    step.fn, step.is_async = fake, inspect.iscoroutinefunction(fake)
    step.set_options(remote=None)
    try:
        yield
    finally:
        step.fn, step.is_async, remote = before
        step.set_options(remote=remote)


class Crash(BaseException):
    """The death of the worker, as by SIGKILL: it gives nothing back and records nothing more.

    A BaseException, so that `except Exception` in the code under test does not stop it.
    """


class Hang:
    """A call that does not return. The timeout of the step ends it, when time is moved that far."""


class Ok:
    """A call without a fault."""


class Http(Exception):
    """An error of an HTTP client, classified by its status and headers.

    `retry_after` becomes the `Retry-After` header: seconds, or a date.
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
"""A value in `fail=[...]`."""

_MESSAGE: Final = "injected by redrive.testing.step_faults"
_active_contexts: list[faults] = []


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """The fault at one call. `after`: the real function is called first, and its result is lost."""

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
    """Makes the calls of one step fail, one fault for each call; afterwards the real function is called.

    - `step`, `workflow`: names, or the decorated functions. Without `workflow`, calls from all workflows fail.
    - `fail`: the faults, in the order of the calls.
    - `at`: "after" calls the real function first and loses its result: the payment was made, but no reply came.
    - `strict`: raise an AssertionError if the context ends with unused faults, because the test did not test them.

    Contexts can be nested; the innermost one with a fault for the step is used.
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
        self.left: list[StepFault] = list(fail)
        for fault in self.left:
            if fault in (None, Hang, Ok, Crash) or isinstance(fault, Hang | Ok | BaseException):
                continue
            if not isinstance(fault, type) or not issubclass(fault, BaseException):
                raise ConfigurationError(
                    f"{fault!r} is not a fault: give an exception class or instance, Http(...), Crash, Hang or Ok"
                )
            _make_error(fault)
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
            unused = ", ".join(fault.__name__ if isinstance(fault, type) else repr(fault) for fault in self.left)
            where = f"step {self.step!r}" + (f" of workflow {self.workflow!r}" if self.workflow else "")
            times = {0: "was never called", 1: "was called once"}.get(self.calls, f"was called {self.calls} times")
            raise AssertionError(
                f"{len(self.left)} of {len(self.left) + len(self.fired)} faults never happened: {unused}. Meanwhile "
                f"{where} {times}; let time pass (e.advance) until it is called again, or take the faults out"
            )

    def take(self, step: str, workflow: str) -> InjectedFault | None:
        """Return the fault for a call that begins now, or None."""
        if step != self.step or self.workflow not in (None, workflow):
            return None
        self.calls += 1
        if not self.left:
            return None
        fault = self.left.pop(0)
        self.fired.append(fault)
        return InjectedFault(fault, self._after)


def next_fault(step: str, workflow: str) -> InjectedFault | None:
    """Return the fault for the call of a step that begins now, or None."""
    for context in reversed(_active_contexts):
        found = context.take(step, workflow)
        if found is not None:
            return None if found.fault in (None, Ok) or isinstance(found.fault, Ok) else found
    return None


def registered_name(thing: Any, kind: str) -> str:
    """Return the name of a step or workflow, given by name or as the decorated function."""
    name = thing if isinstance(thing, str) else getattr(thing, "name", None)
    if not isinstance(name, str):
        raise ConfigurationError(f"{thing!r} is not a {kind}: give its name, or the decorated function")
    return name


def _make_error(kind: Any) -> BaseException:
    try:
        error: BaseException = kind(_MESSAGE)
    except TypeError:
        raise ConfigurationError(
            f"{kind.__name__} cannot be made from a message alone; give an instance of it instead"
        ) from None
    return error


CallCounts = Counter[tuple[str, str, str]]
"""Numbers of calls of step bodies, by run, step and journal key."""

FaultSource = Callable[[str, str], InjectedFault | None]
"""Returns the fault for a call that begins now, by the names of the step and the workflow."""


class StepBodies:
    """Wrappers around the bodies of all steps that one worker executes: they count calls and apply faults.

    `killed` is True after a fault killed the worker.
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

    def wrap(self, attempt: Attempt, call: Callable[[], Any]) -> Callable[[], Any]:
        """Return the body with the fault for this call."""
        self._begun[attempt] = asyncio.current_task()
        fault = self._faults(attempt.step, attempt.execution.claimed.workflow)
        if self._steps[attempt.step].is_async:
            return functools.partial(self._call, attempt, fault, call)
        return functools.partial(self._call_in_thread, attempt, fault, call)

    def list_executing(self) -> set[Attempt]:
        """Return the attempts whose bodies are under way, without those that hang or sleep on the virtual clock."""
        for attempt in [attempt for attempt in self._begun if attempt.over or attempt.execution.dead]:
            del self._begun[attempt]
        return {
            attempt
            for attempt, task in self._begun.items()
            if attempt not in self._stopped and not (task is not None and self._clock.waits(task))
        }

    def release_threads(self) -> None:
        """End threads that hang on purpose, after the worker has ended."""
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
                f"step {attempt.step!r} is transactional: if it hangs after its statements, its transaction blocks the "
                'store in memory; use at="before"'
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
        if fault.error is not None:
            raise fault.error
        self._loop.call_soon_threadsafe(self._stop_attempt, attempt, fault)
        self._over.wait()  # a thread cannot be cancelled, so it hangs until its worker has ended
        raise RunDetached

    def _stop_attempt(self, attempt: Attempt, fault: InjectedFault) -> None:
        if not attempt.over and not attempt.execution.dead:
            self._stopped.add(attempt)
            self.killed = self.killed or fault.kills

    def _count_call(self, attempt: Attempt) -> None:
        self._calls[attempt.run_id, attempt.step, attempt.place.key] += 1
