"""The log lines about decisions on runs: failed attempts, dead letters, lost workers and ends of runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from redrive.core.classify import Category
from redrive.core.failure_reason import FailureReason
from redrive.core.outcomes import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    Outcome,
    RunView,
    SleepEnded,
    SleepStarted,
    ValueRecorded,
    WorkerLost,
    WorkflowReturned,
)
from redrive.core.redact import Redactor
from redrive.core.retry import RetryDecision, explain_decision
from redrive.core.run_options import trace_id
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus, StepStatus
from redrive.core.transitions import AttemptWrite, LetterWrite, Transition, TransitionResult

log = logging.getLogger("redrive.runs")


def describe_run(run: RunView) -> dict[str, Any]:
    """Return the fields that every line about a run has."""
    return {
        "correlation_id": run.correlation_id or run.public_id,
        "trace_id": trace_id(run.options.trace),
        "run_id": run.public_id,
        "workflow": run.workflow,
        "tenant": run.tenant,
    }


class DecisionLog:
    """Writer of the log lines about failures and ends of runs. Error texts are redacted."""

    ignored: frozenset[type] = frozenset(
        {AttemptSucceeded, AttemptStarted, ValueRecorded, SleepStarted, SleepEnded, WorkflowReturned}
    )

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def on_settled(
        self,
        outcomes: Sequence[Outcome],
        transitions: Sequence[Transition],
        answers: Sequence[TransitionResult],
        seconds: float,
    ) -> None:
        """Write a line for each outcome that is not a success and was applied."""
        for outcome, transition, answer in zip(outcomes, transitions, answers, strict=True):
            if type(outcome) in self.ignored or not answer.kept:
                continue
            if isinstance(outcome, AttemptFailed):
                self._log_failed_attempt(outcome, transition, answer.now)
            elif isinstance(outcome, WorkerLost):
                self._log_lost_run(outcome)
            if transition.letter is not None:
                self._log_dead_letter(outcome.run, transition.letter)
            elif transition.change is not None and transition.change.status in FINAL_RUN_STATUSES:
                self._log_ended_run(outcome.run, transition.change.status, transition.change.failure)

    def _log_failed_attempt(self, outcome: AttemptFailed, transition: Transition, now: int) -> None:
        failure, again = outcome.failure, transition.entries[0].status is StepStatus.RETRYING
        error = self._redactor.text(failure.readable_text)
        decision = _explain_decision(transition.attempts, outcome, now)
        log.warning(
            "step %r of run %s failed%s: %s (%s)",
            outcome.place.name,
            outcome.run.public_id,
            "" if again else " for good",
            error,
            decision,
            extra={
                "redrive": {
                    **describe_run(outcome.run),
                    "step": outcome.place.name,
                    "attempt": outcome.attempt,
                    "decision": decision,
                    "error": error,
                    "category": failure.category.value,
                }
            },
        )

    def _log_lost_run(self, outcome: WorkerLost) -> None:
        cut_short = [each for each in outcome.open if each.executing]
        names = ", ".join(repr(each.place.name) for each in cut_short)
        log.warning(
            "recovering stale run %s: its worker%s is gone%s",
            outcome.run.public_id,
            f" {outcome.worker}" if outcome.worker else "",
            f", and {names} did not complete" if names else "",
            extra={"redrive": {**describe_run(outcome.run), "decision": "any worker may claim it"}},
        )

    def _log_dead_letter(self, run: RunView, letter: LetterWrite) -> None:
        ending = FailureReason.from_json(letter.failure)
        log.error(
            "%s",  # the same sentence as `error` of the run
            ending.sentence.map_text(self._redactor.text),
            extra={
                "redrive": {
                    **describe_run(run),
                    "job_id": run.public_id,  # the name that other queues use
                    "step": letter.step,
                    "attempts_made": letter.attempts,
                    "decision": "dead letter written",
                    "error": self._redactor.text(ending.failure.summary),
                    "category": letter.category,
                    "code": letter.code,
                    "stage": letter.stage,
                    "letter_id": letter.public_id,
                    "reason_code": ending.reason.code,
                }
            },
        )

    def _log_ended_run(self, run: RunView, status: RunStatus, failure: str | None) -> None:
        if status is RunStatus.SUCCESS:
            return
        sentence = None if failure is None else FailureReason.from_json(failure).sentence
        error = None if sentence is None else str(sentence.map_text(self._redactor.text))
        log.log(
            # A user asked for the cancellation, so it is not a warning.
            logging.INFO if status is RunStatus.CANCELLED else logging.WARNING,
            "run %s ended as %s%s",
            run.public_id,
            status.value,
            f": {error}" if error else "",
            extra={"redrive": {**describe_run(run), "decision": status.value, "error": error}},
        )


def _explain_decision(attempts: Sequence[AttemptWrite], outcome: AttemptFailed, now: int) -> str:
    """Return the sentence about the decision that the dashboard and the command line show too."""
    written = next((each for each in attempts if each.index == outcome.place.index), None)
    if written is None or written.decision is None:
        return f"attempt {outcome.attempt}"
    next_at = None if written.next_in is None else now + written.next_in
    category = Category(written.category or Category.UNKNOWN)
    verdict = RetryDecision.from_json(written.decision)
    return str(explain_decision(verdict, attempt=written.attempt, category=category, next_at=next_at))
