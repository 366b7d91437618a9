"""Verdicts on failed attempts: whether to retry, when, and the explanation."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.retry import RETRYABLE_CATEGORIES, RetryDecision, decide_retry, explain_decision
from redrive.core.run_options import StepOptions
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace

STEP = StepOptions()
FOREVER = RetryPolicy(max_retries=-1, jitter=0)
DOWN = Failure(
    category=Category.SERVER_ERROR,
    error_type="shop.BankDown",
    message="down",
    bases=("shop.BankDown", "shop.Outage", "builtins.Exception"),
)


def judged(
    failure: Failure = DOWN,
    policy: RetryPolicy = FOREVER,
    step: StepOptions = STEP,
    *,
    attempt: int = 1,
    first_ago: float = 0.0,
    draw: float = 0.5,
) -> RetryDecision:
    return decide_retry(failure, policy, step, attempt=attempt, first_ago=first_ago, draw=draw)


# -- categories ----------------------------------------------------------------------------------------------


def test_the_categories_retried_by_default_are_the_documented_ones() -> None:
    assert {category.value for category in RETRYABLE_CATEGORIES} == {
        "timeout",
        "network",
        "rate_limit",
        "server_error",
        "dependency_unavailable",
        "unknown",
    }


@each("category", Category)
def test_a_failure_is_retried_by_its_category(category: Category) -> None:
    verdict = judged(replace(DOWN, category=category))
    assert verdict.retry == (category in RETRYABLE_CATEGORIES)
    refusal = Reason(ReasonCode.CATEGORY_NOT_RETRIED, category=category.value)
    assert verdict.why == (None if verdict.retry else refusal)
    assert not verdict.exhausted


@pytest.mark.parametrize("name", ["server_error", "provider_5xx", "shop.BankDown", "shop.Outage", "Outage", "shop.*"])
def test_a_policy_names_failures_by_category_by_class_and_by_base_class(name: str) -> None:
    assert judged(policy=RetryPolicy.from_json({"retry_on": [name]})).retry
    refused = judged(policy=RetryPolicy.from_json({"never_retry_on": [name]}))
    assert (refused.retry, refused.why) == (False, Reason(ReasonCode.IN_NEVER_RETRY_ON))


def test_retry_on_takes_the_place_of_the_default_categories() -> None:
    picky = RetryPolicy(retry_on=["validation"])
    assert judged(replace(DOWN, category=Category.VALIDATION), picky).retry
    refused = judged(DOWN, picky)
    assert (refused.retry, refused.why) == (False, Reason(ReasonCode.NOT_IN_RETRY_ON))
    assert not judged(DOWN, RetryPolicy(retry_on=[])).retry


def test_never_retry_on_takes_precedence_over_everything_that_allows_a_retry() -> None:
    policy = RetryPolicy.from_json({"retry_on": ["shop.BankDown"], "never_retry_on": ["shop.Outage"]})
    assert not judged(policy=policy).retry
    assert not judged(replace(DOWN, retryable=True), policy).retry


def test_the_decision_of_the_error_takes_precedence_over_categories_and_retry_on() -> None:
    asked = replace(DOWN, category=Category.VALIDATION, retryable=True, retry_after=30.0)
    assert judged(asked, RetryPolicy(retry_on=[])).retry
    final = judged(replace(DOWN, retryable=False), RetryPolicy(retry_on=["server_error"]))
    assert (final.retry, final.why) == (False, Reason(ReasonCode.RAISED_NON_RETRYABLE))


def test_a_step_that_runs_at_most_once_is_never_tried_again() -> None:
    refused = judged(replace(DOWN, retryable=True), step=StepOptions(at_most_once=True))
    assert (refused.retry, refused.why) == (False, Reason(ReasonCode.STEP_AT_MOST_ONCE))


# -- number of retries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempt", "retry"), [(1, True), (3, True), (4, False), (9, False)])
def test_retries_run_out(attempt: int, retry: bool) -> None:
    verdict = judged(policy=RetryPolicy(max_retries=3), attempt=attempt)
    assert (verdict.retry, verdict.exhausted, verdict.of) == (retry, not retry, 4)
    assert verdict.why == (None if retry else Reason(ReasonCode.RETRIES_EXHAUSTED))


def test_retries_that_were_never_allowed_are_not_exhausted() -> None:
    verdict = judged(policy=RetryPolicy(max_retries=0))
    assert (verdict.retry, verdict.exhausted, verdict.of) == (False, False, 1)
    assert verdict.why == Reason(ReasonCode.NO_RETRY_ALLOWED)


def test_a_policy_without_end_has_no_last_attempt() -> None:
    verdict = judged(attempt=10**6)
    assert (verdict.retry, verdict.of) == (True, None)


@pytest.mark.parametrize(("first_ago", "retry"), [(0.0, True), (55.0, True), (55.001, False), (500.0, False)])
def test_no_attempt_begins_after_max_elapsed_since_the_first(first_ago: float, retry: bool) -> None:
    policy = RetryPolicy(max_retries=-1, base_delay=5, max_elapsed=60, jitter=0)
    verdict = judged(policy=policy, first_ago=first_ago)
    assert (verdict.retry, verdict.exhausted) == (retry, not retry)
    assert verdict.why == (None if retry else Reason(ReasonCode.RETRY_TIME_EXCEEDED, limit=60.0))


def test_a_failure_that_is_never_retried_says_so_even_on_its_last_attempt() -> None:
    verdict = judged(replace(DOWN, category=Category.INTERNAL), RetryPolicy(max_retries=3), attempt=4)
    assert (verdict.exhausted, verdict.why) == (False, Reason(ReasonCode.CATEGORY_NOT_RETRIED, category="internal"))


def test_a_verdict_keeps_the_calculation_of_its_delay() -> None:
    policy = RetryPolicy(base_delay=10, jitter=0.5, max_delay=100)
    limited = replace(DOWN, status_code=503)
    assert judged(limited, policy, draw=0.75) == RetryDecision(
        retry=True, of=4, status_code=503, delay=12.5, jitter=2.5
    )
    asked = replace(limited, retry_after=30.0)
    assert judged(asked, policy, draw=0.5) == RetryDecision(
        retry=True, of=4, status_code=503, delay=37.5, jitter=7.5, retry_after=30.0
    )


# -- explanations --------------------------------------------------------------------------------------------

AT = int(datetime(2031, 5, 17, 14, 2, 11, tzinfo=UTC).timestamp()) * 1_000_000
RETRY = RetryDecision(retry=True, of=5, delay=5.0)


@pytest.mark.parametrize(
    ("verdict", "attempt", "category", "words"),
    [
        (
            RetryDecision(retry=True, of=5, status_code=429, delay=34.0, jitter=4.0, retry_after=30.0),
            3,
            "rate_limit",
            "attempt 3 of 5, HTTP 429, rate limited, Retry-After 30 s + 4 s jitter, next at 14:02:11",
        ),
        (
            RetryDecision(retry=True, of=5, status_code=429, delay=30.0, retry_after=30.0),
            1,
            "rate_limit",
            "attempt 1 of 5, HTTP 429, rate limited, Retry-After 30 s, next at 14:02:11",
        ),
        (
            RetryDecision(retry=True, of=4, delay=10.5, jitter=0.5),
            2,
            "network",
            "attempt 2 of 4, network error, waiting 10 s, next at 14:02:11",
        ),
        (
            RetryDecision(retry=True, status_code=503, delay=0.25),
            17,
            "server_error",
            "attempt 17, HTTP 503, server error, waiting 250 ms, next at 14:02:11",
        ),
        (
            RetryDecision(retry=False, exhausted=True, of=4, why=Reason(ReasonCode.RETRIES_EXHAUSTED)),
            4,
            "timeout",
            "attempt 4 of 4, timed out, not retried: retries are exhausted",
        ),
        (
            RetryDecision(retry=False, of=4, status_code=422, why=Reason(ReasonCode.RAISED_NON_RETRYABLE)),
            1,
            "validation",
            "attempt 1 of 4, HTTP 422, invalid data, not retried: the error was raised as NonRetryable",
        ),
    ],
)
def test_a_decision_explains_itself(verdict: RetryDecision, attempt: int, category: str, words: str) -> None:
    next_at = AT if verdict.retry else None
    assert str(explain_decision(verdict, attempt=attempt, category=Category(category), next_at=next_at)) == words


def test_unknown_facts_are_left_out() -> None:
    words = str(explain_decision(RETRY, attempt=1, category=Category.UNKNOWN, next_at=None))
    assert words == "attempt 1 of 5, unclassified error, waiting 5 s"


def test_the_time_of_the_next_attempt_is_shown_in_whole_seconds_of_utc() -> None:
    words = str(explain_decision(RETRY, attempt=1, category=Category.UNKNOWN, next_at=AT + 999_999))
    assert words.endswith("next at 14:02:11")


def test_every_category_has_a_distinct_description() -> None:
    told = {str(explain_decision(RETRY, attempt=1, category=category, next_at=None)) for category in Category}
    assert len(told) == len(Category)


@settings(deadline=None)
@given(st.floats(0, 86_400), st.floats(0, 1, exclude_max=True), st.floats(0, 1))
def test_jitter_is_mentioned_exactly_when_there_is_some(asked: float, draw: float, jitter: float) -> None:
    verdict = judged(replace(DOWN, retry_after=asked), RetryPolicy(jitter=jitter, max_elapsed=None), draw=draw)
    words = str(explain_decision(verdict, attempt=1, category=Category.SERVER_ERROR, next_at=None))
    assert words.startswith("attempt 1 of 4, server error, Retry-After ")
    assert words.endswith(" jitter") == (verdict.delay > asked)


# -- stored --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.builds(
        RetryDecision,
        retry=st.booleans(),
        exhausted=st.booleans(),
        of=st.none() | st.integers(1, 99),
        why=st.none() | st.builds(Reason, st.sampled_from(ReasonCode), text=st.text(), n=st.integers()),
        status_code=st.none() | st.integers(100, 599),
        delay=st.floats(0, 1e9),
        jitter=st.floats(-1e9, 1e9),
        retry_after=st.none() | st.floats(0, 86_400),
    )
)
def test_a_verdict_is_the_same_after_a_round_trip_through_json(verdict: RetryDecision) -> None:
    assert RetryDecision.from_json(verdict.to_json()) == verdict


def test_a_verdict_that_newer_code_wrote_can_be_read() -> None:
    text = json.dumps({**json.loads(RETRY.to_json()), "tomorrow": 1})
    assert RetryDecision.from_json(text) == RETRY
