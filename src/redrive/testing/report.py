"""A run that came to its end under a test's eyes."""

from __future__ import annotations

from typing import Any

from redrive.core.states import RunStatus
from redrive.desk.shapes import DeadLetter, Run, StepRecord
from redrive.errors import RunFailed
from redrive.frozen import dataclass

__all__ = ["RunReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """How a run went: what it returned or why it failed, every step with every attempt, its dead letter.

    `described` is what `handle.describe()` shows; the rest is what tests ask for most.
    """

    described: Run
    letter: DeadLetter | None
    error: RunFailed | None
    value: Any

    @property
    def id(self) -> str:
        """The run's id."""
        return self.described.id

    @property
    def status(self) -> RunStatus:
        """How it ended: compare with "SUCCESS", "DLQ_PENDING" and so on."""
        return self.described.status

    @property
    def result(self) -> Any:
        """What the workflow returned. Raises the RunFailed that `handle.result()` raises."""
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The journal: steps, sleeps and time limits in the order they began, with all their attempts."""
        return self.described.steps

    def step(self, name: str) -> StepRecord:
        """The first entry of that name."""
        for step in self.steps:
            if step.name == name:
                return step
        names = ", ".join(dict.fromkeys(step.name for step in self.steps)) or "none"
        raise LookupError(f"run {self.id} has no step {name!r}; it has: {names}")
