"""Policies: checked once, normalised, equal when they mean the same, exact through JSON."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.retry import RETRYABLE_CATEGORIES
from redrive.errors import ConfigurationError
from redrive.policy import CATEGORY_ALIASES, Category, Circuit, RetryPolicy, lists_error, qualified_name


class CardDeclined(Exception):
    class Inner(Exception):
        pass


class StampMissing(Exception):
    """An exception with a unique name."""


NAMES = st.sampled_from([*Category, *CATEGORY_ALIASES, "builtins.ValueError", "KeyError", "asyncio.*", CardDeclined])
SECONDS = st.floats(0, 1e6)

POLICIES = st.builds(
    RetryPolicy,
    max_retries=st.none() | st.integers(-1, 50),
    base_delay=SECONDS,
    factor=st.floats(1, 100),
    max_delay=SECONDS,
    jitter=st.floats(0, 1),
    cap=st.sampled_from(["hard", "mean", "clip"]),
    max_elapsed=st.none() | SECONDS,
    retry_on=st.none() | st.lists(NAMES),
    never_retry_on=st.lists(NAMES),
    delays=st.none() | st.lists(SECONDS, min_size=1, max_size=6),
)
CIRCUITS = st.builds(
    Circuit,
    st.none() | st.just("payments"),
    failures=st.integers(1, 100),
    window=st.floats(0.001, 86_400),
    open_for=st.floats(0.001, 86_400),
    probes=st.integers(1, 100),
    on_open=st.sampled_from(["park", "fail"]),
)


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert RetryPolicy().to_json() == {
        "max_retries": 3,
        "base_delay": 5.0,
        "factor": 2.0,
        "max_delay": 300.0,
        "jitter": 0.1,
        "cap": "hard",
        "max_elapsed": None,
        "retry_on": None,
        "never_retry_on": [],
        "delays": None,
    }
    assert Circuit().to_json() == {
        "name": None,
        "failures": 5,
        "window": 60.0,
        "open_for": 60.0,
        "probes": 3,
        "on_open": "park",
    }


def test_policies_that_mean_the_same_are_equal_however_they_were_written() -> None:
    written = RetryPolicy(base_delay="2s", max_delay=timedelta(minutes=2), max_elapsed="1h", delays=["20s", 300])
    plain = RetryPolicy(base_delay=2, max_delay=120.0, max_elapsed=3_600, delays=(20, "5m"))
    assert written == plain
    assert hash(written) == hash(plain)
    assert Circuit("payments", window="1m") == Circuit("payments", window=60)


def test_a_policy_is_frozen_and_keyword_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RetryPolicy().max_retries = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        RetryPolicy(3)  # type: ignore[misc]


def test_one_field_can_be_replaced_and_is_checked_again() -> None:
    changed = dataclasses.replace(RetryPolicy(delays=[1, 2]), base_delay="7s")
    assert (changed.base_delay, changed.delays, changed.max_retries) == (7.0, (1.0, 2.0), 2)
    with pytest.raises(ConfigurationError):
        dataclasses.replace(changed, jitter=2)


def test_a_table_of_delays_says_how_many_retries_unless_told_otherwise() -> None:
    assert RetryPolicy(delays=[20, 300, 1800]).max_retries == 3
    assert RetryPolicy(delays=[20]).max_retries == 1
    assert RetryPolicy(delays=[20], max_retries=9).max_retries == 9
    assert RetryPolicy(max_retries=-1).max_retries == -1
    assert RetryPolicy(max_retries=0).max_retries == 0


def test_error_names_are_categories_and_qualified_names_each_once() -> None:
    policy = RetryPolicy(
        retry_on=[
            "timeout",
            Category.TIMEOUT,
            CardDeclined,
            CardDeclined.Inner,
            ValueError,
            "socket.gaierror",
            "EOFError",
        ],
        never_retry_on=KeyError,
    )
    here = __name__
    assert policy.retry_on == (
        "timeout",
        f"{here}.CardDeclined",
        f"{here}.CardDeclined.Inner",
        "builtins.ValueError",
        "socket.gaierror",
        "EOFError",
    )
    assert all(type(name) is str for name in policy.retry_on)
    assert policy.never_retry_on == ("builtins.KeyError",)
    assert RetryPolicy(retry_on="network").retry_on == ("network",)
    assert RetryPolicy(retry_on=[]).retry_on == ()
    assert qualified_name(CardDeclined) == f"{here}.CardDeclined"


def test_the_names_of_other_systems_stand_for_categories() -> None:
    named = ["transient", "permanent", "timeout", "validation", "authorization", "rate_limit"]
    accounting = RetryPolicy(retry_on=[*named, "external_service", "internal", "unknown"]).retry_on or ()
    assert set(accounting) == set(Category), "the nine names of one system cover every category"
    its_default = RetryPolicy(retry_on=["transient", "timeout", "rate_limit"]).retry_on or ()
    assert set(its_default) == RETRYABLE_CATEGORIES - {Category.UNKNOWN}, "it counts HTTP 5xx as transient"
    assert RetryPolicy(never_retry_on=["rate-limit", "provider_5xx"]).never_retry_on == ("rate_limit", "server_error")


@each(
    "name, hint",
    [
        ("time_out", "did you mean 'timeout'"),
        ("ratelimit", "'rate_limit'"),
        ("transients", "'transient'"),
        ("ValueErorr", "'builtins.ValueError'"),
        ("builtins.ValueErorr", "'builtins.ValueError'"),
        (f"{__name__}.StampMising", f"'{__name__}.StampMissing'"),
        (f"{__name__}.NAMES", "no known exception class"),
        ("no_such_package.errors.Gone", "no known exception class"),
        ("no_such_package.*", "no known exception class"),
        ("email.no_such_module.Gone", "no known exception class"),
        ("zzzzzz", "or a category: timeout, network"),
        ("a..b", "no known exception class"),
        ("a b.c", "no known exception class"),
        (".*", "no known exception class"),
        ("", "no known exception class"),
    ],
)
def test_a_name_that_can_match_nothing_is_refused_with_those_most_like_it(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match="retry_on contains ") as refused:
        RetryPolicy(retry_on=[name])
    assert repr(name) in str(refused.value)
    assert hint in str(refused.value)


def test_a_process_without_the_code_accepts_the_names_of_classes_that_workers_may_have() -> None:
    foreign = ["no_such_package.errors.Gone", "no_such_package.*", "CardExpired", "a.f.<locals>.C"]
    policy = RetryPolicy.from_json({"never_retry_on": foreign})
    assert policy.never_retry_on == tuple(foreign)
    for wrong in ("time_out", "ConectionError", "builtins.ValueErorr", "a..b", ""):
        with pytest.raises(ConfigurationError, match="names no category"):
            RetryPolicy.from_json({"never_retry_on": [wrong]})
    stored = RetryPolicy.from_stored({"retry_on": ["removed.Class"], "never_retry_on": ["time_out"]})
    assert (stored.retry_on, stored.never_retry_on) == (("removed.Class",), ("time_out",))


def test_a_name_is_stored_as_the_class_has_it() -> None:
    assert RetryPolicy(retry_on=["redrive.NonRetryable", "socket.timeout"]).retry_on == (
        "redrive.errors.NonRetryable",
        "builtins.TimeoutError",
    )
    assert RetryPolicy(retry_on="sqlite3.dbapi2.Error").retry_on == ("sqlite3.Error",)


@each(
    "listed, matches",
    [
        ("shop.errors.CardDeclined", True),
        ("CardDeclined", True),
        ("PaymentError", True),
        ("shop.errors.*", True),
        ("shop.*", True),
        ("Card*", True),
        ("*", True),
        ("client_error", True),
        ("Exception", True),
        ("shop.errors", False),
        ("errors.CardDeclined", False),
        ("bank.*", False),
        ("builtins.*", False),
        ("timeout", False),
    ],
)
def test_a_listed_name_matches_the_class_its_bases_and_prefixes_of_them(listed: str, matches: bool) -> None:
    classes = ("shop.errors.CardDeclined", "shop.errors.PaymentError", "builtins.Exception", "builtins.BaseException")
    assert lists_error([listed], "client_error", classes) is matches
    assert not lists_error([listed], "validation", ("shop.timeout", "builtins.Exception")) or listed != "timeout"


@each(
    "wrong, field",
    [
        ({"max_retries": -2}, "max_retries is -2. Give -1 for no limit, or a whole number from 0 on"),
        ({"max_retries": True}, "max_retries is True"),
        ({"max_retries": 2.0}, "max_retries is 2.0"),
        ({"max_retries": "3"}, "max_retries is '3'"),
        ({"base_delay": "soon"}, "base_delay is 'soon'"),
        ({"base_delay": -1}, "base_delay is -1"),
        ({"max_delay": None}, "max_delay is None"),
        ({"max_elapsed": "x"}, "max_elapsed is 'x'"),
        ({"factor": 0.5}, "factor is 0.5. Give a number from 1 to 1000"),
        ({"factor": float("inf")}, "factor is inf"),
        ({"factor": float("nan")}, "factor is nan"),
        ({"factor": "2"}, "factor is '2'"),
        ({"jitter": -0.1}, "jitter is -0.1. Give a number from 0 to 1"),
        ({"jitter": 1.1}, "jitter is 1.1"),
        ({"jitter": True}, "jitter is True"),
        ({"cap": "soft"}, "cap is 'soft'. Give one of 'hard', 'mean', 'clip'"),
        ({"cap": ["hard"]}, "cap is ['hard']"),
        ({"delays": []}, "delays is empty"),
        ({"delays": "20s"}, "delays is '20s'"),
        ({"delays": 20}, "delays is 20"),
        ({"delays": [20, "x"]}, "delays[1] is 'x'"),
        ({"retry_on": 5}, "retry_on is 5"),
        ({"retry_on": [5]}, "retry_on contains 5"),
        ({"never_retry_on": [int]}, "never_retry_on contains <class 'int'>"),
        ({"retry_on": None, "never_retry_on": None}, "never_retry_on is None"),
    ],
)
def test_a_wrong_policy_is_refused_naming_field_value_and_what_is_allowed(wrong: dict[str, Any], field: str) -> None:
    for make in (lambda: RetryPolicy(**wrong), lambda: RetryPolicy.from_json(wrong)):
        with pytest.raises(ConfigurationError) as refused:
            make()
        assert field in str(refused.value)


@each(
    "wrong, field",
    [
        ({"name": ""}, "name is ''"),
        ({"name": 7}, "name is 7"),
        ({"name": "fulfil/charge"}, "name is 'fulfil/charge'. Give a text of 1 to 200 printable characters"),
        ({"name": "pay\x00ments"}, "name is 'pay\\x00ments'"),
        ({"name": "pay\ud800"}, "name is 'pay\\ud800'"),
        ({"name": "x" * 201}, "a circuit's name is 'xxx"),
        ({"failures": 1001}, "failures is 1001. Give a whole number from 1 to 1000"),
        ({"probes": 101}, "probes is 101. Give a whole number from 1 to 100"),
        ({"probes": 10**30}, "Give a whole number from 1 to 100"),
        ({"window": "2d"}, "window is '2d'. Give a duration of at most 1 d"),
        ({"window": float("inf")}, "window"),
        ({"open_for": float("nan")}, "open_for is nan"),
        ({"failures": 0}, "failures is 0. Give a whole number from 1 on"),
        ({"probes": False}, "probes is False"),
        ({"window": 0}, "window is 0. Give a duration longer than 0"),
        ({"open_for": "0s"}, "open_for is '0s'"),
        ({"on_open": "explode"}, "on_open is 'explode'. Give one of 'park', 'fail'"),
    ],
)
def test_a_wrong_circuit_is_refused_naming_field_and_value(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Circuit(**wrong)
    assert field in str(refused.value)


@given(POLICIES)
def test_a_policy_is_the_same_after_a_round_trip_through_json(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


@given(CIRCUITS)
def test_a_circuit_is_the_same_after_a_round_trip_through_json(circuit: Circuit) -> None:
    assert Circuit.from_json(json.loads(json.dumps(circuit.to_json()))) == circuit


def test_fields_left_out_of_json_have_their_defaults() -> None:
    assert RetryPolicy.from_json({"max_retries": 5}) == RetryPolicy(max_retries=5)
    assert Circuit.from_json({"name": "payments"}) == Circuit("payments")


def test_unknown_fields_are_refused_with_the_one_that_was_probably_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"no field 'max_retrys'.*; did you mean 'max_retries'"):
        RetryPolicy.from_json({"max_retrys": 5})
    with pytest.raises(ConfigurationError, match=r"Circuit has no field 'zzz', '7'\. It has name, failures"):
        Circuit.from_json({"zzz": 5, 7: 1})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match="written as an object"):
        RetryPolicy.from_json([1])  # type: ignore[arg-type]
