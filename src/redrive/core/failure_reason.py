"""The final failure of a step or run: the error with its stage, its code and the reason.

The journal stores a `FailureReason` for a step that failed for good, and a run stores one for its failure. Dead letters
show it.
"""

from __future__ import annotations

import json
from enum import StrEnum

import msgspec

from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.errors import StepFailed
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import as_dict


class Stage(StrEnum):
    """The stage of a run or step in which it failed.

    input    the input of the run was read
    fetch    what the code needs was loaded: the journal, recorded inputs and results, the code that fits them
    exec     the code of the workflow or step was executed
    output   its result was written as JSON
    commit   the store recorded it
    """

    INPUT = "input"
    FETCH = "fetch"
    EXEC = "exec"
    OUTPUT = "output"
    COMMIT = "commit"


class LetterCode(StrEnum):
    """The code of a dead letter, in the order in which codes are considered."""

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
"""Codes of failures that an edited input is most likely to fix."""

_DEPENDENCY_CATEGORIES = frozenset(
    {Category.NETWORK, Category.SERVER_ERROR, Category.RATE_LIMIT, Category.DEPENDENCY_UNAVAILABLE}
)


def choose_letter_code(failure: Failure, *, exhausted: bool) -> LetterCode:
    """Return the code of a failure that a step or workflow function raised itself."""
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
    """A final failure, as it is stored and shown.

    `cause`: the failure that the run was rolled back for, where a compensation failed. `policy`: the retry policy in
    force when the step failed. `duration`: microseconds that its last attempt took.
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
    duration: int | None = None

    @property
    def sentence(self) -> Reason:
        """The sentence about a run that ended so: how often its step was attempted, and the last error.

        A run that a user cancelled or replayed in part did not fail: its reason says so.
        """
        if self.reason.code in (ReasonCode.RUN_CANCELLED_BY, ReasonCode.STEP_REPLAYED_ALONE):
            return self.reason
        return Reason(ReasonCode.RUN_FAILED_AFTER, n=self.attempts or None, error=self.failure.summary)

    def to_json(self) -> str:
        data = {**as_dict(self), "failure": self.failure.to_json(), "reason": self.reason.to_json()}
        del data["cause"], data["policy"]
        if self.cause is not None:
            data["cause"] = self.cause.to_json()
        if self.policy is not None:
            data["policy"] = self.policy.differs()
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> FailureReason:
        data = json.loads(text)
        data["failure"] = Failure.from_json(data["failure"])
        data["code"], data["stage"] = LetterCode(data["code"]), Stage(data["stage"])
        data["reason"] = Reason.from_json(data["reason"])
        if "cause" in data:
            data["cause"] = cls.from_json(data["cause"])
        if "policy" in data:
            data["policy"] = RetryPolicy.from_stored(data["policy"])
        return cls(**{name: data[name] for name in cls.__struct_fields__ if name in data})


def build_step_failed(ending: FailureReason, *, key: str) -> StepFailed:
    """Return the exception that workflow code sees, both when a step fails and when the run is resumed."""
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
