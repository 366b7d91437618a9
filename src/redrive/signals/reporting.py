"""Log lines about decisions: every failed try with what follows, every dead letter, every run taken over.

Nothing is written about what succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from redrive.core.classify import Category
from redrive.core.ending import Ending
from redrive.core.outcome import Began, Ended, Lost, Noted, Outcome, Raised, Returned, RunView, Slept, Woke
from redrive.core.redact import Redactor
from redrive.core.states import FINAL, RunStatus, StepStatus
from redrive.core.tracing import trace_id
from redrive.core.transition import Answer, AttemptWrite, LetterWrite, Transition
from redrive.core.verdict import Verdict, explain
from redrive.reasons import Reason

__all__ = ["Reporter", "about_run"]

log = logging.getLogger("redrive.runs")

_QUIET = frozenset({Returned, Began, Noted, Slept, Woke, Ended})


def about_run(run: RunView) -> dict[str, Any]:
    """What every line about a run says of it."""
    return {
        "correlation_id": run.correlation_id or run.public_id,
        "trace_id": trace_id(run.options.trace),
        "run_id": run.public_id,
        "workflow": run.workflow,
        "tenant": run.tenant,
    }


class Reporter:
    """Writes down what was decided when something failed. Texts of errors are redacted."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def settled(
        self,
        outcomes: Sequence[Outcome],
        transitions: Sequence[Transition],
        answers: Sequence[Answer],
        seconds: float,
    ) -> None:
        """Write a line where something other than success was applied."""
        for number, outcome in enumerate(outcomes):
            if type(outcome) not in _QUIET and answers[number].kept:
                self._tell(outcome, transitions[number], answers[number].now)

    def _tell(self, outcome: Outcome, transition: Transition, now: int) -> None:
        if isinstance(outcome, Raised):
            self._tried(outcome, transition, now)
        elif isinstance(outcome, Lost):
            self._lost(outcome)
        if transition.letter is not None:
            self._buried(outcome.run, transition.letter)
        elif transition.change is not None and transition.change.status in FINAL:
            self._ended(outcome.run, transition.change.status, transition.change.failure)

    def _tried(self, outcome: Raised, transition: Transition, now: int) -> None:
        failure, again = outcome.failure, transition.entries[0].status is StepStatus.RETRYING
        error = self._redactor.text(f"{failure.short_type}: {failure.message}")
        decision = _decision(transition.attempts, outcome, now)
        log.warning(
            "step %r of run %s failed%s: %s (%s)",
            outcome.place.name,
            outcome.run.public_id,
            "" if again else " for good",
            error,
            decision,
            extra={
                "redrive": {
                    **about_run(outcome.run),
                    "step": outcome.place.name,
                    "attempt": outcome.attempt,
                    "decision": decision,
                    "error": error,
                    "category": failure.category.value,
                }
            },
        )

    def _lost(self, outcome: Lost) -> None:
        cut_short = [each for each in outcome.open if each.executing]
        names = ", ".join(repr(each.place.name) for each in cut_short)
        log.warning(
            "recovering stale run %s: its worker is gone%s",
            outcome.run.public_id,
            f", and {names} did not complete" if names else "",
            extra={"redrive": {**about_run(outcome.run), "decision": "any worker may take it up"}},
        )

    def _buried(self, run: RunView, letter: LetterWrite) -> None:
        """The structured error record: enough to find everything else."""
        reason = Reason.from_text(letter.reason)
        error = self._redactor.text(str(reason))
        log.error(
            "workflow execution failed after %d attempts: %s",
            letter.attempts,
            error,
            extra={
                "redrive": {
                    **about_run(run),
                    "step": letter.step,
                    "attempts_made": letter.attempts,
                    "decision": "a dead letter waits for a person",
                    "error": error,
                    "category": letter.category,
                    "code": letter.code,
                    "stage": letter.stage,
                    "letter_id": letter.public_id,
                    "reason_code": reason.code,
                }
            },
        )

    def _ended(self, run: RunView, status: RunStatus, failure: str | None) -> None:
        """A run that ended without success and without a letter."""
        if status is RunStatus.SUCCESS:
            return
        error = None if failure is None else self._redactor.text(str(Ending.from_json(failure).reason))
        log.log(
            # What a person wanted needs nobody's attention.
            logging.INFO if status is RunStatus.CANCELLED else logging.WARNING,
            "run %s ended as %s%s",
            run.public_id,
            status.value,
            f": {error}" if error else "",
            extra={"redrive": {**about_run(run), "decision": status.value, "error": error}},
        )


def _decision(attempts: Sequence[AttemptWrite], outcome: Raised, now: int) -> str:
    """What was decided on the failed try, in the words that people see everywhere."""
    written = next((each for each in attempts if each.index == outcome.place.index), None)
    if written is None or written.decision is None:
        return f"attempt {outcome.attempt}"
    next_at = None if written.next_in is None else now + written.next_in
    category = Category(written.category or Category.UNKNOWN)
    verdict = Verdict.from_json(written.decision)
    return str(explain(verdict, attempt=written.attempt, category=category, next_at=next_at))
