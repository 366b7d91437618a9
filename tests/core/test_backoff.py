"""Delays between attempts: the three caps, tables, Retry-After."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.retry import Delay, compute_backoff
from redrive.policy import RetryPolicy

DRAWS = st.floats(0, 1, exclude_max=True)
ATTEMPTS = st.integers(1, 100) | st.integers(1, 10**400)
CAPS = st.sampled_from(["hard", "mean", "clip"])
SECONDS = st.floats(0, 1e9)
TABLES = st.none() | st.lists(SECONDS, min_size=1, max_size=5)


@st.composite
def policies(draw: st.DrawFn, cap: str | None = None) -> RetryPolicy:
    return RetryPolicy(
        base_delay=draw(SECONDS),
        factor=draw(st.floats(1, 1_000)),
        max_delay=draw(SECONDS),
        jitter=draw(st.floats(0, 1)),
        cap=cap or draw(CAPS),
        delays=draw(TABLES),
    )


def limit(policy: RetryPolicy) -> float:
    return policy.max_delay if policy.delays is None else max(policy.delays)


def test_delays_grow_by_the_factor_from_the_base_delay_on() -> None:
    policy = RetryPolicy(base_delay="5s", factor=2, jitter=0)
    assert [compute_backoff(policy, attempt, 0.3).seconds for attempt in range(1, 9)] == [
        *(5, 10, 20, 40, 80, 160),
        *(300, 300),
    ]


@pytest.mark.parametrize(
    ("cap", "low", "middle", "high"),
    [("hard", 90.0, 120.0, 120.0), ("mean", 90.0, 120.0, 150.0), ("clip", 96.0, 120.0, 120.0)],
)
def test_each_cap_mode_limits_the_jitter_differently(cap: str, low: float, middle: float, high: float) -> None:
    policy = RetryPolicy(base_delay=2, factor=2, max_delay=120, jitter=0.25, cap=cap)  # type: ignore[arg-type]
    seventh = [compute_backoff(policy, 7, draw).seconds for draw in (0.0, 0.5, 1 - 2**-53)]  # 2 * 2**6 = 128
    assert seventh == pytest.approx([low, middle, high])


def test_the_delay_explains_itself() -> None:
    policy = RetryPolicy(base_delay=10, jitter=0.5, max_delay=100)
    assert compute_backoff(policy, 1, 0.0) == Delay(seconds=5.0, base=10.0, jitter=-5.0)
    assert compute_backoff(policy, 1, 0.75) == Delay(seconds=12.5, base=10.0, jitter=2.5)
    assert compute_backoff(policy, 1, 0.5, 30) == Delay(seconds=37.5, base=30, jitter=7.5, retry_after=30)


@given(policies("hard") | policies("clip"), ATTEMPTS, DRAWS)
def test_jitter_never_passes_a_hard_or_clipping_maximum(policy: RetryPolicy, attempt: int, draw: float) -> None:
    assert 0 <= compute_backoff(policy, attempt, draw).seconds <= limit(policy)


@given(policies(), ATTEMPTS, DRAWS)
def test_every_delay_is_finite_and_within_the_spread_of_the_capped_value(
    policy: RetryPolicy, attempt: int, draw: float
) -> None:
    delay = compute_backoff(policy, attempt, draw)
    assert math.isfinite(delay.seconds)
    assert 0 <= delay.base <= limit(policy)
    assert delay.base * (1 - policy.jitter) - 1e-6 <= delay.seconds * (1 + 1e-9)
    assert delay.seconds <= delay.base * (1 + policy.jitter) * (1 + 1e-9)
    assert delay.base + delay.jitter == pytest.approx(delay.seconds, abs=1e-9 * max(1.0, delay.base))


@given(st.integers(1, 60), DRAWS, st.floats(0, 1), CAPS)
def test_the_formulas_are_exactly_those_promised(attempt: int, draw: float, jitter: float, cap: str) -> None:
    policy = RetryPolicy(base_delay=2, factor=2, max_delay=120, jitter=jitter, cap=cap)  # type: ignore[arg-type]
    d = 2.0 * 2.0 ** (attempt - 1)

    def spread(x: float) -> float:
        return x * (1 - jitter) + draw * (x * (1 + jitter) - x * (1 - jitter))

    meant = {"hard": min(120, spread(min(120, d))), "mean": spread(min(120, d)), "clip": min(120, spread(d))}
    assert compute_backoff(policy, attempt, draw).seconds == pytest.approx(meant[cap])


def test_without_jitter_the_draw_does_not_matter() -> None:
    policy = RetryPolicy(jitter=0)
    assert {compute_backoff(policy, 2, draw).seconds for draw in (0, 0.3, 0.99)} == {10}


@pytest.mark.parametrize("attempt", [10**3, 10**6, 10**400], ids=["thousand", "million", "10**400"])
def test_absurdly_many_attempts_end_at_the_maximum(attempt: int) -> None:
    assert compute_backoff(RetryPolicy(max_retries=-1, jitter=0), attempt, 0.5).seconds == 300
    assert compute_backoff(RetryPolicy(max_retries=-1, jitter=1, cap="clip"), attempt, 0.5).seconds == 300
    assert compute_backoff(RetryPolicy(max_retries=-1, base_delay=0), attempt, 0.5).seconds == 0
    assert compute_backoff(RetryPolicy(max_retries=-1, factor=1, jitter=0), attempt, 0.5).seconds == 5


def test_a_table_is_followed_and_its_last_value_repeats() -> None:
    policy = RetryPolicy(delays=[20, 1800, 300], max_retries=5, jitter=0)
    assert [compute_backoff(policy, attempt, 0.9).seconds for attempt in range(1, 6)] == [20, 1800, 300, 300, 300]


def test_a_table_is_capped_by_its_longest_value_not_by_max_delay() -> None:
    table = {"delays": [20, 1800], "jitter": 0.5, "max_delay": 60}
    almost = 1 - 2**-53
    hard = RetryPolicy(**table, cap="hard")
    assert compute_backoff(hard, 1, almost).seconds == pytest.approx(30)
    assert compute_backoff(hard, 2, almost).seconds == 1800
    assert compute_backoff(hard, 2, 0).seconds == 900
    assert compute_backoff(RetryPolicy(**table, cap="mean"), 2, almost).seconds == pytest.approx(2700)
    assert compute_backoff(RetryPolicy(**table, cap="clip"), 2, almost).seconds == 1800


@given(policies(), ATTEMPTS, DRAWS, SECONDS)
def test_jitter_only_lengthens_a_requested_delay(policy: RetryPolicy, attempt: int, draw: float, asked: float) -> None:
    delay = compute_backoff(policy, attempt, draw, asked)
    assert asked <= delay.seconds <= asked * (1 + policy.jitter) * (1 + 1e-9)
    assert delay.seconds == asked + draw * policy.jitter * asked
    assert (delay.base, delay.retry_after) == (asked, asked)


def test_no_cap_shortens_a_requested_delay() -> None:
    assert compute_backoff(RetryPolicy(max_delay="10s", jitter=0), 1, 0.5, 3_600).seconds == 3_600


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_are_counted_from_one(attempt: int) -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        compute_backoff(RetryPolicy(), attempt, 0.5)
