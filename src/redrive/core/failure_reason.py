"""Why something ended badly: the failure with its stage, its code and the reason.

An `Ending` is what the journal keeps of a step that failed for good, what a run keeps of its failure
and what a dead letter shows.
"""

from __future__ import annotations

import json
from enum import StrEnum

import msgspec

from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.errors import StepFailed
from redrive.policy import RetryPolicy
from redrive.reasons import Reason


class Stage(StrEnum):
    """Where in the life of a run or step it went wrong."""

    INPUT = "input"
    FETCH = "fetch"
    EXEC = "exec"
    OUTPUT = "output"
    COMMIT = "commit"


class LetterCode(StrEnum):
    """Why a dead letter was written, in the order in which the reasons are considered."""

    COMPENSATION_FAILED = "compensation_failed"
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    PARSE_ERROR = "parse_error"
    VALIDATION_FAILED = "validation_failed"
    POLICY_VIOLATION = "policy_violation"
    TIMEOUT = "timeout"
    EXHAUSTED_RETRIES = "exhausted_retries"
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    NON_RETRYABLE = "non_retryable"


FIXABLE_BY_EDIT = frozenset({LetterCode.VALIDATION_FAILED, LetterCode.PARSE_ERROR, LetterCode.NON_RETRYABLE})
"""Reasons for which to correct the input is the first thing to try."""

_DEPENDENCY_CATEGORIES = frozenset(
    {Category.NETWORK, Category.SERVER_ERROR, Category.RATE_LIMIT, Category.DEPENDENCY_UNAVAILABLE}
)


def choose_letter_code(failure: Failure, *, exhausted: bool) -> LetterCode:
    """The code of a step's or body's own failure; endings with a cause of their own name theirs."""
    if failure.category is Category.VALIDATION:
        return LetterCode.VALIDATION_FAILED
    if exhausted:
        return LetterCode.EXHAUSTED_RETRIES
    if failure.category is Category.TIMEOUT:
        return LetterCode.TIMEOUT
    if failure.category in _DEPENDENCY_CATEGORIES:
        return LetterCode.DEPENDENCY_UNAVAILABLE
    return LetterCode.NON_RETRYABLE


class FailureReason(msgspec.Struct, frozen=True, kw_only=True):
    """A failure for good, as it is stored and shown.

    `cause`: why the run was being rolled back, where it is a compensation that failed. `policy`: the one in
    force when it was decided that a step is not tried again.
    """

    failure: Failure
    code: LetterCode
    reason: Reason
    stage: Stage = Stage.EXEC
    step: str | None = None
    step_index: int | None = None
    attempts: int = 0
    cause: FailureReason | None = None
    policy: RetryPolicy | None = None

    def to_json(self) -> str:
        return json.dumps(
            {
                "failure": self.failure.to_json(),
                "code": self.code,
                "reason": self.reason.to_json(),
                "stage": self.stage,
                "step": self.step,
                "step_index": self.step_index,
                "attempts": self.attempts,
                **({} if self.cause is None else {"cause": self.cause.to_json()}),
                **({} if self.policy is None else {"policy": self.policy.differs()}),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> FailureReason:
        data = json.loads(text)
        return cls(
            failure=Failure.from_json(data["failure"]),
            code=LetterCode(data["code"]),
            reason=Reason.from_json(data["reason"]),
            stage=Stage(data["stage"]),
            step=data["step"],
            step_index=data["step_index"],
            attempts=data["attempts"],
            cause=cls.from_json(data["cause"]) if "cause" in data else None,
            policy=RetryPolicy.from_stored(data["policy"]) if "policy" in data else None,
        )


def build_step_failed(ending: FailureReason, *, key: str) -> StepFailed:
    """The exception workflow code sees, the same live and resumed."""
    failure = ending.failure
    return StepFailed(
        step=ending.step or "",
        category=failure.category.value,
        error_type=failure.error_type,
        message=failure.message,
        details=failure.details,
        bases=failure.bases,
        key=key,
    )
