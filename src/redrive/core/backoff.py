"""How long to wait before the next attempt.

    d = base_delay * factor ** (attempt - 1)        or the attempt's place in the table of delays
    spread(x) is uniform over [x * (1 - jitter), x * (1 + jitter)]

    cap="hard"  min(max_delay, spread(min(max_delay, d)))     never longer than max_delay
    cap="mean"  spread(min(max_delay, d))                     max_delay on average
    cap="clip"  min(max_delay, spread(d))                     spread first, then cut

A table of delays says itself how long a wait may be, so `max_delay` does not apply to it: its values
are spread like any other, and its longest value takes the place of `max_delay` in the formulas above.

A delay that was asked for (`RetryAfter`, an HTTP `Retry-After`) replaces all that. It is only ever
spread to later, and no cap cuts it, because coming back too early is what it forbids.
"""

from __future__ import annotations

from redrive.core.quick import quick
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy

__all__ = ["Delay", "backoff"]

_HUGE = 1e300  # beyond every cap, yet finite: infinity times a jitter of 0 would be no number


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """A wait in seconds and how it came about: `seconds` is `base` plus `jitter`, which is signed."""

    seconds: float
    base: float
    jitter: float
    retry_after: float | None = None


_Delay = quick(Delay)


def backoff(policy: RetryPolicy, attempt: int, draw: float, retry_after: float | None = None) -> Delay:
    """The wait after failed attempt `attempt` (the first is 1), for a `draw` in [0, 1)."""
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {attempt}")
    if retry_after is not None:
        return _delay(retry_after, retry_after + draw * policy.jitter * retry_after, retry_after)
    wanted, limit = _wanted(policy, attempt)
    base = min(limit, wanted)
    spread = _spread(wanted if policy.cap == "clip" else base, policy.jitter, draw)
    return _delay(base, spread if policy.cap == "mean" else min(limit, spread))


def _delay(base: float, total: float, retry_after: float | None = None) -> Delay:
    return _Delay(seconds=total, base=base, jitter=total - base, retry_after=retry_after)


def _wanted(policy: RetryPolicy, attempt: int) -> tuple[float, float]:
    """The delay before cap and jitter, and the longest one allowed."""
    if policy.delays is not None:
        return policy.delays[min(attempt, len(policy.delays)) - 1], max(policy.delays)
    return min(policy.base_delay * _growth(policy.factor, attempt - 1), _HUGE), policy.max_delay


def _growth(factor: float, times: int) -> float:
    try:
        return min(factor ** min(times, 10**18), _HUGE)  # a greater int need not fit into a float
    except OverflowError:
        return _HUGE


def _spread(value: float, jitter: float, draw: float) -> float:
    return value * (1 - jitter) + value * jitter * 2 * draw
