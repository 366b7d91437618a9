"""A started run, as its starter holds it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redrive.app.results import Ending
from redrive.core.ending import Ending as Failed
from redrive.core.states import RunStatus
from redrive.desk.shapes import Run
from redrive.duration import Duration, seconds
from redrive.errors import ConfigurationError, MisusedStep, NotFound, RunCancelled, RunFailed, RunPartial
from redrive.store.encryption.keyring import Unreadable
from redrive.worker.branches import Branch, current

if TYPE_CHECKING:
    from redrive.app.app import Redrive
    from redrive.core.payload import Signature

__all__ = ["RunHandle"]

R = TypeVar("R")

_NEW_FOR = 0.002  # seconds


class RunHandle(Generic[R]):
    """One run: its id, and what can be asked of it."""

    def __init__(self, app: Redrive, run_id: str, signature: Signature | None, *, new: bool = False) -> None:
        self._app = app
        self._signature = signature
        self._started = app.runtime.clock.monotonic() if new else None
        self.id = run_id

    async def status(self) -> RunStatus:
        """Where the run stands now."""
        row = await self._app.runtime.store.run(self.id)
        if row is None:
            raise NotFound(f"there is no run {self.id!r}")
        return row.status

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the run's result. Raises RunFailed if it ends without one, TimeoutError if that takes
        too long; the run goes on."""
        if isinstance(current.get(), Branch):
            raise MisusedStep(
                "handle.result() was called in workflow code, where waiting is not recorded and would hold a "
                "worker; wait for the run where it was started from outside, or let it start what comes next"
            )
        if timeout is None:
            return self._value(await self._ending())
        limit = seconds(timeout, "timeout")
        try:
            async with asyncio.timeout(limit):
                ending = await self._ending()
        except TimeoutError:
            raise TimeoutError(f"run {self.id} has not ended within {limit:g} s; it goes on") from None
        return self._value(ending)

    def _ending(self) -> Awaitable[Ending]:
        return self._app.runtime.results.wait(self.id, new=self._is_new)

    async def cancel(self, *, by: str = "unknown", reason: str = "") -> Run:
        """Cancel the run for good."""
        return await self._app.runs.cancel(self.id, by=by, reason=reason)

    async def describe(self) -> Run:
        """Everything about the run: its steps and every attempt, with decisions in words."""
        return await self._app.runs.get(self.id)

    @property
    def _is_new(self) -> bool:
        """True for a moment after the start: so soon no run has ended."""
        started = self._started
        return started is not None and self._app.runtime.clock.monotonic() - started < _NEW_FOR

    def _value(self, ending: Ending) -> R:
        if ending.status is not RunStatus.SUCCESS:
            raise _run_failed(ending)
        text = _readable(ending, ending.output or "null")
        value: Any = json.loads(text) if self._signature is None else self._signature.decode_result(text)
        return value  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<run {self.id}>"


def _readable(ending: Ending, text: str) -> str:
    """What the store holds, unless it is sealed with a key that this process does not have."""
    if isinstance(text, Unreadable):
        raise ConfigurationError(
            f"run {ending.run_id} ended as {ending.status}, but how cannot be read: {text.why}"
        )
    return text


def _what_happened(ending: Ending, failed: Failed) -> str:
    message, reason = failed.failure.message, str(failed.reason)
    if not (message and reason.endswith(message)):
        reason = f"{reason}: {message}"
    return f"run {ending.run_id} ended as {ending.status}: {reason}"


def _run_failed(ending: Ending) -> RunFailed:
    kind = {RunStatus.PARTIAL: RunPartial, RunStatus.CANCELLED: RunCancelled}.get(ending.status, RunFailed)
    if ending.failure is None:
        return kind(
            f"run {ending.run_id} ended as {ending.status}", run_id=ending.run_id, status=ending.status
        )
    failed = Failed.from_json(_readable(ending, ending.failure))
    return kind(
        _what_happened(ending, failed),
        run_id=ending.run_id,
        status=ending.status.value,
        step=failed.step,
        category=failed.failure.category.value,
        error_type=failed.failure.error_type,
        code=failed.code.value,
        details=failed.failure.details,
    )
