"""The decision whether a failed attempt is retried, when, and why, together with its explanation.

attempt 3 of 5, HTTP 429, rate limited, Retry-After 30 s + 4 s jitter, next at 14:02:11
"""

from __future__ import annotations

import msgspec

from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.payload.plain_json import to_json_text
from redrive.core.run_options import StepOptions
from redrive.policy import RetryPolicy, lists_error
from redrive.reasons import Reason, ReasonCode
from redrive.reasons.reason import CATEGORY_CODES
from redrive.record_fields import as_dict
from redrive.time_values import to_datetime

RETRYABLE_CATEGORIES = frozenset({
    Category.TIMEOUT, Category.NETWORK, Category.RATE_LIMIT, Category.SERVER_ERROR, Category.DEPENDENCY_UNAVAILABLE,
    Category.UNKNOWN,
})  # fmt: skip
"""The categories that are retried unless a policy says otherwise."""

_CAUSES = {category: Reason(CATEGORY_CODES[category]) for category in Category}
_HUGE = 1e300  # above every cap, yet finite: infinity times a jitter of 0 is not a number


class Delay(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A wait in seconds, as the sum of `base` and `jitter`; the jitter may be negative."""

    seconds: float
    base: float
    jitter: float
    retry_after: float | None = None


def compute_backoff(policy: RetryPolicy, attempt: int, draw: float, retry_after: float | None = None) -> Delay:
    """Return the wait after failed attempt number `attempt` (the first is 1), for a `draw` in [0, 1)."""
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {attempt}")
    if retry_after is not None:
        # The other side named the least wait, so jitter only adds to it.
        base, total = retry_after, retry_after + draw * policy.jitter * retry_after
        return Delay(seconds=total, base=base, jitter=total - base, retry_after=retry_after)
    if policy.delays is not None:
        uncapped, cap = policy.delays[min(attempt, len(policy.delays)) - 1], max(policy.delays)
    else:
        try:
            growth = min(policy.factor ** min(attempt - 1, 10**18), _HUGE)  # a larger int may not fit into a float
        except OverflowError:
            growth = _HUGE
        uncapped, cap = min(policy.base_delay * growth, _HUGE), policy.max_delay
    base = min(cap, uncapped)
    # "hard" caps the delay before and after the jitter, "mean" only before it, "clip" only after it.
    middle = uncapped if policy.cap == "clip" else base
    total = middle * (1 - policy.jitter) + middle * policy.jitter * 2 * draw
    if policy.cap != "mean":
        total = min(cap, total)
    return Delay(seconds=total, base=base, jitter=total - base)


class RetryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about a failed attempt. `of`: the number of attempts allowed. `why`: the reason not to retry."""

    retry: bool
    exhausted: bool = False
    of: int | None = None
    why: Reason | None = None
    status_code: int | None = None
    delay: float = 0.0
    jitter: float = 0.0
    retry_after: float | None = None

    @property
    def max_retries(self) -> int:
        """The largest number of retries, negative for no limit."""
        return -1 if self.of is None else self.of - 1

    def to_json(self) -> str:
        return to_json_text({**as_dict(self), "why": None if self.why is None else self.why.to_json()})

    @classmethod
    def from_json(cls, text: str) -> RetryDecision:
        return _DECODER.decode(text)


# A newer version of this code may have stored more fields, which are ignored.
_DECODER = msgspec.json.Decoder(RetryDecision, dec_hook=lambda _, why: Reason.from_json(why))


def decide_retry(
    failure: Failure, policy: RetryPolicy, step: StepOptions, *, attempt: int, first_ago: float, draw: float
) -> RetryDecision:
    """Decide whether to retry after failed attempt number `attempt` (the first is 1)."""
    of, status = None if policy.max_retries < 0 else policy.max_retries + 1, failure.status_code
    refusal = _find_refusal(failure, policy, step)
    if refusal is not None:
        return RetryDecision(retry=False, of=of, why=refusal, status_code=status)
    if of is not None and attempt >= of:
        why = Reason(ReasonCode.RETRIES_EXHAUSTED if of > 1 else ReasonCode.NO_RETRY_ALLOWED)
        return RetryDecision(retry=False, exhausted=of > 1, of=of, why=why, status_code=status)
    delay = compute_backoff(policy, attempt, draw, failure.retry_after)
    if policy.max_elapsed is not None and first_ago + delay.seconds > policy.max_elapsed:
        why = Reason(ReasonCode.RETRY_TIME_EXCEEDED, limit=policy.max_elapsed)
        return RetryDecision(retry=False, exhausted=True, of=of, why=why, status_code=status)
    return RetryDecision(
        retry=True, of=of, status_code=status, delay=delay.seconds, jitter=delay.jitter, retry_after=delay.retry_after
    )


def _find_refusal(failure: Failure, policy: RetryPolicy, step: StepOptions) -> Reason | None:
    """Return the reason why this failure is never retried; None if it may be."""
    if step.at_most_once:
        return Reason(ReasonCode.STEP_AT_MOST_ONCE)
    if failure.retryable is False:
        return Reason(ReasonCode.RAISED_NON_RETRYABLE)
    category, classes = failure.category.value, (failure.error_type, *failure.bases)
    if lists_error(policy.never_retry_on, category, classes):
        return Reason(ReasonCode.IN_NEVER_RETRY_ON)
    if failure.retryable:
        return None
    if policy.retry_on is not None:
        listed = lists_error(policy.retry_on, category, classes)
        return None if listed else Reason(ReasonCode.NOT_IN_RETRY_ON)
    if failure.category not in RETRYABLE_CATEGORIES:
        return Reason(ReasonCode.CATEGORY_NOT_RETRIED, category=failure.category.value)
    return None


def explain_decision(decision: RetryDecision, *, attempt: int, category: Category, next_at: int | None) -> Reason:
    """Return a decision as a reason. `next_at` is the time that the store set for the next attempt."""
    cause, of, status_code = _CAUSES[category], decision.of, decision.status_code
    if not decision.retry:
        return Reason(
            ReasonCode.NOT_RETRIED, attempt=attempt, of=of, status_code=status_code, cause=cause, why=decision.why
        )
    delay, requested = decision.delay, decision.retry_after
    return Reason(
        ReasonCode.RETRY_SCHEDULED,
        attempt=attempt,
        of=of,
        status_code=status_code,
        cause=cause,
        delay=delay if requested is None else None,
        retry_after=requested,
        jitter=None if requested is None or delay <= requested else delay - requested,
        next_at=None if next_at is None else f"{to_datetime(next_at).isoformat()[:19]}Z",
    )
