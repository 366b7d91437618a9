"""Whether a failed attempt is tried again, when, and why: the decision that explains itself.

attempt 3 of 5, HTTP 429, rate limited, Retry-After 30 s + 4 s jitter, next at 14:02:11
"""

from __future__ import annotations

import json

import msgspec

from redrive.core.classify import RETRYABLE_CATEGORIES, Category
from redrive.core.failure import Failure
from redrive.core.run_options import StepOptions
from redrive.duration import to_datetime
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode

# -- How long to wait before the next attempt ------------------------------------------------------------


_HUGE = 1e300  # beyond every cap, yet finite: infinity times a jitter of 0 would be no number


class Delay(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A wait in seconds and how it came about: `seconds` is `base` plus `jitter`, which is signed."""

    seconds: float
    base: float
    jitter: float
    retry_after: float | None = None


def compute_backoff(policy: RetryPolicy, attempt: int, draw: float, retry_after: float | None = None) -> Delay:
    """The wait after failed attempt `attempt` (the first is 1), for a `draw` in [0, 1)."""
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {attempt}")
    if retry_after is not None:
        return _build_delay(retry_after, retry_after + draw * policy.jitter * retry_after, retry_after)
    wanted, limit = _uncapped_delay(policy, attempt)
    base = min(limit, wanted)
    spread = _apply_jitter(wanted if policy.cap == "clip" else base, policy.jitter, draw)
    return _build_delay(base, spread if policy.cap == "mean" else min(limit, spread))


def _build_delay(base: float, total: float, retry_after: float | None = None) -> Delay:
    return Delay(seconds=total, base=base, jitter=total - base, retry_after=retry_after)


def _uncapped_delay(policy: RetryPolicy, attempt: int) -> tuple[float, float]:
    """The delay before cap and jitter, and the longest one allowed."""
    if policy.delays is not None:
        return policy.delays[min(attempt, len(policy.delays)) - 1], max(policy.delays)
    return min(policy.base_delay * _grow(policy.factor, attempt - 1), _HUGE), policy.max_delay


def _grow(factor: float, times: int) -> float:
    try:
        return min(factor ** min(times, 10**18), _HUGE)  # a greater int need not fit into a float
    except OverflowError:
        return _HUGE


def _apply_jitter(value: float, jitter: float, draw: float) -> float:
    return value * (1 - jitter) + value * jitter * 2 * draw


# -- Whether a failed attempt is tried again, when, and why: the decision that explains itself -----------


_CATEGORY_REASONS = {
    Category.TIMEOUT: Reason(ReasonCode.TIMED_OUT),
    Category.NETWORK: Reason(ReasonCode.NETWORK_ERROR),
    Category.RATE_LIMIT: Reason(ReasonCode.RATE_LIMITED),
    Category.SERVER_ERROR: Reason(ReasonCode.SERVER_ERROR),
    Category.DEPENDENCY_UNAVAILABLE: Reason(ReasonCode.DEPENDENCY_UNAVAILABLE),
    Category.VALIDATION: Reason(ReasonCode.INVALID_DATA),
    Category.AUTHORIZATION: Reason(ReasonCode.NOT_AUTHORISED),
    Category.NOT_FOUND: Reason(ReasonCode.NOT_FOUND),
    Category.CLIENT_ERROR: Reason(ReasonCode.CLIENT_ERROR),
    Category.MISSING_CONFIG: Reason(ReasonCode.CONFIGURATION_MISSING),
    Category.INTERNAL: Reason(ReasonCode.INTERNAL_ERROR),
    Category.UNKNOWN: Reason(ReasonCode.UNCLASSIFIED_ERROR),
}


class RetryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one failed attempt. `why` is the reason for which it is not tried again."""

    retry: bool
    exhausted: bool = False
    of: int | None = None
    why: Reason | None = None
    status_code: int | None = None
    delay: float = 0.0
    jitter: float = 0.0
    retry_after: float | None = None

    def to_json(self) -> str:
        return json.dumps(
            {
                "retry": self.retry,
                "exhausted": self.exhausted,
                "of": self.of,
                "why": None if self.why is None else self.why.to_json(),
                "status_code": self.status_code,
                "delay": self.delay,
                "jitter": self.jitter,
                "retry_after": self.retry_after,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> RetryDecision:
        data = json.loads(text)  # newer code may have written more
        why = data["why"]
        data["why"] = None if why is None else Reason.from_json(why)
        return RetryDecision(**{name: data[name] for name in cls.__struct_fields__})


def decide_retry(
    failure: Failure, policy: RetryPolicy, step: StepOptions, *, attempt: int, first_ago: float, draw: float
) -> RetryDecision:
    """Decide whether to try again after failed attempt number `attempt` (the first is 1)."""
    of = None if policy.max_retries < 0 else policy.max_retries + 1
    refusal = _find_refusal(failure, policy, step)
    if refusal is not None:
        return RetryDecision(retry=False, of=of, why=refusal, status_code=failure.status_code)
    if of is not None and attempt >= of:
        why = Reason(ReasonCode.RETRIES_EXHAUSTED if of > 1 else ReasonCode.NO_RETRY_ALLOWED)
        return RetryDecision(retry=False, exhausted=of > 1, of=of, why=why, status_code=failure.status_code)
    delay = compute_backoff(policy, attempt, draw, failure.retry_after)
    if policy.max_elapsed is not None and first_ago + delay.seconds > policy.max_elapsed:
        why = Reason(ReasonCode.RETRY_TIME_EXCEEDED, limit=policy.max_elapsed)
        return RetryDecision(retry=False, exhausted=True, of=of, why=why, status_code=failure.status_code)
    return _build_retry(delay, of, failure)


def _build_retry(delay: Delay, of: int | None, failure: Failure) -> RetryDecision:
    return RetryDecision(
        retry=True,
        of=of,
        status_code=failure.status_code,
        delay=delay.seconds,
        jitter=delay.jitter,
        retry_after=delay.retry_after,
    )


def _find_refusal(failure: Failure, policy: RetryPolicy, step: StepOptions) -> Reason | None:
    """Return why this failure is never tried again; None if it may be."""
    if step.at_most_once:
        return Reason(ReasonCode.STEP_AT_MOST_ONCE)
    if failure.retryable is False:
        return Reason(ReasonCode.RAISED_NON_RETRYABLE)
    names = {failure.category.value, failure.error_type, *failure.bases}
    if names.intersection(policy.never_retry_on):
        return Reason(ReasonCode.IN_NEVER_RETRY_ON)
    if failure.retryable:
        return None
    if policy.retry_on is not None:
        return None if names.intersection(policy.retry_on) else Reason(ReasonCode.NOT_IN_RETRY_ON)
    if failure.category not in RETRYABLE_CATEGORIES:
        return Reason(ReasonCode.CATEGORY_NOT_RETRIED, category=failure.category.value)
    return None


def explain_decision(verdict: RetryDecision, *, attempt: int, category: Category, next_at: int | None) -> Reason:
    """Return the decision as a reason; `next_at` is the time the store fixed for the next attempt."""
    if not verdict.retry:
        return Reason(
            ReasonCode.NOT_RETRIED,
            attempt=attempt,
            of=verdict.of,
            status_code=verdict.status_code,
            cause=_CATEGORY_REASONS[category],
            why=verdict.why,
        )
    asked = verdict.retry_after
    jitter = None if asked is None or verdict.delay <= asked else verdict.delay - asked
    return Reason(
        ReasonCode.RETRY_SCHEDULED,
        attempt=attempt,
        of=verdict.of,
        status_code=verdict.status_code,
        cause=_CATEGORY_REASONS[category],
        delay=verdict.delay if asked is None else None,
        retry_after=asked,
        jitter=jitter,
        next_at=None if next_at is None else f"{to_datetime(next_at):%Y-%m-%dT%H:%M:%SZ}",
    )
