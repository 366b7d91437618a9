"""Failure reasons: a letter has the first code that fits; a failure is the same stored, live and resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage, build_step_failed, choose_letter_code
from redrive.reasons import Reason, ReasonCode

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FAILURES = st.builds(
    Failure,
    category=st.sampled_from(Category),
    error_type=TEXT,
    message=TEXT,
    bases=st.lists(TEXT, max_size=3).map(tuple),
    stack=TEXT,
    frame=st.none() | TEXT,
    status_code=st.none() | st.integers(100, 599),
    retry_after=st.none() | st.floats(0, 86_400),
    retryable=st.none() | st.booleans(),
    details=st.dictionaries(TEXT, JSON_VALUES, max_size=3),
)
ENDINGS = st.builds(
    FailureReason,
    failure=FAILURES,
    code=st.sampled_from(LetterCode),
    reason=st.builds(Reason, st.sampled_from(ReasonCode), step=TEXT, n=st.integers(), why=st.builds(Reason, TEXT)),
    stage=st.sampled_from(Stage),
    step=st.none() | TEXT,
    step_index=st.none() | st.integers(0, 10_000),
    attempts=st.integers(0, 100),
)


def test_codes_and_stages_are_the_promised_ones_in_the_promised_order() -> None:
    assert [code.value for code in LetterCode] == [
        "compensation_failed",
        "infrastructure_failure",
        "parse_error",
        "validation_failed",
        "policy_violation",
        "timeout",
        "exhausted_retries",
        "dependency_unavailable",
        "non_retryable",
    ]
    assert [stage.value for stage in Stage] == ["input", "fetch", "exec", "output", "commit"]


# The codes that a step's own failure can get, in the order of consideration. A deadline comes before
# exhausted retries but belongs to the run, not to a step; a step's timeout comes after them.
ORDER: list[tuple[LetterCode, Callable[[Category, bool], bool]]] = [
    (LetterCode.VALIDATION_FAILED, lambda category, exhausted: category is Category.VALIDATION),
    (LetterCode.EXHAUSTED_RETRIES, lambda category, exhausted: exhausted),
    (LetterCode.TIMEOUT, lambda category, exhausted: category is Category.TIMEOUT),
    (
        LetterCode.DEPENDENCY_UNAVAILABLE,
        lambda category, exhausted: (
            category.value in ("network", "server_error", "rate_limit", "dependency_unavailable")
        ),
    ),
    (LetterCode.NON_RETRYABLE, lambda category, exhausted: True),
]


@pytest.mark.parametrize("exhausted", [False, True], ids=["not retried", "exhausted"])
@pytest.mark.parametrize("category", Category)
def test_the_code_of_a_failure_is_the_first_that_fits(category: Category, exhausted: bool) -> None:
    first = next(code for code, fits in ORDER if fits(category, exhausted))
    assert choose_letter_code(Failure.of(category, "x"), exhausted=exhausted) is first


@pytest.mark.parametrize(
    ("category", "exhausted", "code"),
    [
        (Category.TIMEOUT, True, "exhausted_retries"),
        (Category.TIMEOUT, False, "timeout"),
        (Category.VALIDATION, True, "validation_failed"),
        (Category.RATE_LIMIT, False, "dependency_unavailable"),
        (Category.SERVER_ERROR, True, "exhausted_retries"),
        (Category.AUTHORIZATION, False, "non_retryable"),
        (Category.UNKNOWN, False, "non_retryable"),
    ],
)
def test_codes_of_common_failures(category: Category, exhausted: bool, code: str) -> None:
    assert choose_letter_code(Failure.of(category, "x"), exhausted=exhausted) == code


@settings(deadline=None)
@given(ENDINGS)
def test_an_ending_is_the_same_after_a_round_trip_through_json(ending: FailureReason) -> None:
    assert FailureReason.from_json(ending.to_json()) == ending


def test_an_ending_that_newer_code_wrote_can_be_read() -> None:
    ending = FailureReason(
        failure=Failure.of(Category.UNKNOWN, "x"), code=LetterCode.TIMEOUT, reason=Reason(ReasonCode.DEADLINE_PASSED)
    )
    assert FailureReason.from_json(ending.to_json().replace("{", '{"tomorrow": 1, ', 1)) == ending


def test_workflow_code_sees_the_error_of_a_step_by_name_never_the_object() -> None:
    failure = Failure(
        category=Category.CLIENT_ERROR,
        error_type="shop.CardDeclined",
        message="card declined",
        bases=("shop.CardDeclined", "shop.PaymentDeclined", "builtins.Exception"),
        details={"card": "x-1"},
    )
    ending = FailureReason(
        failure=failure,
        code=LetterCode.NON_RETRYABLE,
        reason=Reason(ReasonCode.RUN_ENDING),
        step="charge",
        step_index=2,
    )
    live = build_step_failed(ending, key="/charge#0")
    resumed = build_step_failed(FailureReason.from_json(ending.to_json()), key="/charge#0")
    for error in (live, resumed):
        assert (error.step, error.category, error.error_type) == ("charge", "client_error", "shop.CardDeclined")
        assert (error.message, error.details, error.key) == ("card declined", {"card": "x-1"}, "/charge#0")
        assert error.is_a("shop.CardDeclined")
        assert error.is_a("shop.PaymentDeclined")
        assert error.is_a(Exception)
        assert not error.is_a(ValueError)
    assert str(live) == str(resumed)
