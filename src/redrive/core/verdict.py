"""Whether a failed attempt is tried again, when, and why: the decision that explains itself.

attempt 3 of 5, HTTP 429, rate limited, Retry-After 30 s + 4 s jitter, next at 14:02:11
"""

from __future__ import annotations

import json

from redrive.core.backoff import Delay, backoff
from redrive.core.classify import RETRYABLE, Category
from redrive.core.failure import Failure
from redrive.core.options import StepOptions
from redrive.core.quick import quick
from redrive.duration import moment, words
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy

__all__ = ["Verdict", "explain", "judge"]

_CATEGORY_WORDS = {
    Category.TIMEOUT: "timed out",
    Category.NETWORK: "network error",
    Category.RATE_LIMIT: "rate limited",
    Category.SERVER_ERROR: "server error",
    Category.DEPENDENCY_UNAVAILABLE: "dependency unavailable",
    Category.VALIDATION: "invalid data",
    Category.AUTHORIZATION: "not authorised",
    Category.NOT_FOUND: "not found",
    Category.CLIENT_ERROR: "refused by the other side",
    Category.MISSING_CONFIG: "configuration missing",
    Category.INTERNAL: "error in the code",
    Category.UNKNOWN: "unclassified error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision on one failed attempt. `why` says in words why it is not tried again."""

    retry: bool
    exhausted: bool = False
    of: int | None = None
    why: str = ""
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
                "why": self.why,
                "status_code": self.status_code,
                "delay": self.delay,
                "jitter": self.jitter,
                "retry_after": self.retry_after,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        data = json.loads(text)  # newer code may have written more
        return _Verdict(**{name: data[name] for name in cls.__slots__})


_Verdict = quick(Verdict)


def judge(
    failure: Failure, policy: RetryPolicy, step: StepOptions, *, attempt: int, first_ago: float, draw: float
) -> Verdict:
    """Decide whether to try again after failed attempt number `attempt` (the first is 1)."""
    of = None if policy.max_retries < 0 else policy.max_retries + 1
    refusal = _refusal(failure, policy, step)
    if refusal:
        return Verdict(retry=False, of=of, why=refusal, status_code=failure.status_code)
    if of is not None and attempt >= of:
        why = "retries are exhausted" if of > 1 else "the policy allows no retry"
        return Verdict(retry=False, exhausted=of > 1, of=of, why=why, status_code=failure.status_code)
    delay = backoff(policy, attempt, draw, failure.retry_after)
    if policy.max_elapsed is not None and first_ago + delay.seconds > policy.max_elapsed:
        why = f"another try would pass the limit of {words(policy.max_elapsed)} since the first"
        return Verdict(retry=False, exhausted=True, of=of, why=why, status_code=failure.status_code)
    return _again(delay, of, failure)


def _again(delay: Delay, of: int | None, failure: Failure) -> Verdict:
    return _Verdict(
        retry=True,
        of=of,
        status_code=failure.status_code,
        delay=delay.seconds,
        jitter=delay.jitter,
        retry_after=delay.retry_after,
    )


def _refusal(failure: Failure, policy: RetryPolicy, step: StepOptions) -> str:
    """Why this failure is never tried again; empty if it may be."""
    if step.at_most_once:
        return "the step runs at most once"
    if failure.retryable is False:
        return "it was raised as NonRetryable"
    names = {failure.category.value, failure.error_type, *failure.bases}
    if names.intersection(policy.never_retry_on):
        return "the policy names it in never_retry_on"
    if failure.retryable:
        return ""
    if policy.retry_on is not None:
        return "" if names.intersection(policy.retry_on) else "the policy's retry_on does not name it"
    if failure.category not in RETRYABLE:
        return f"failures of category {failure.category.value} are not retried"
    return ""


def explain(verdict: Verdict, *, attempt: int, category: Category, next_at: int | None) -> str:
    """The decision in words; `next_at` is the time the store fixed for the next attempt."""
    parts = [f"attempt {attempt} of {verdict.of}" if verdict.of else f"attempt {attempt}"]
    if verdict.status_code is not None:
        parts.append(f"HTTP {verdict.status_code}")
    parts.append(_CATEGORY_WORDS[category])
    if verdict.retry:
        parts.append(_delay_words(verdict))
        if next_at is not None:
            parts.append(f"next at {moment(next_at):%H:%M:%S}")
    else:
        parts.append(f"not retried: {verdict.why}")
    return ", ".join(parts)


def _delay_words(verdict: Verdict) -> str:
    if verdict.retry_after is None:
        return f"waiting {words(verdict.delay)}"
    said = f"Retry-After {words(verdict.retry_after)}"
    later = verdict.delay - verdict.retry_after
    return f"{said} + {words(later)} jitter" if later > 0 else said
