"""Snapshots of options, and the choice among several retry policies."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.run_options import (
    DEFAULT_RETRY,
    FailureHandler,
    OnFailure,
    RunOptions,
    StepLimits,
    StepOptions,
    StoredPolicies,
    add_origin,
    add_trace,
    find_policy,
    split_origin,
    split_trace,
)
from redrive.policy import RetryPolicy
from redrive.settle.settler import parse_run_options

POLICIES = st.builds(
    RetryPolicy,
    max_retries=st.integers(-1, 50),
    base_delay=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
    cap=st.sampled_from(["hard", "mean", "clip"]),
    max_elapsed=st.none() | st.floats(0, 1e6),
    retry_on=st.none() | st.lists(st.sampled_from(["timeout", "network", "builtins.OSError"])),
    never_retry_on=st.lists(st.sampled_from(["unknown", "builtins.ValueError"])),
    delays=st.none() | st.lists(st.floats(0, 1e6), min_size=1, max_size=4),
)

# -- policy in force ---------------------------------------------------------------------------------------

ORDER = [
    "run override",
    "stored for the step of this workflow, for the tenant",
    "stored for the step of this workflow, for all tenants",
    "stored for the step in any workflow, for the tenant",
    "stored for the step in any workflow, for all tenants",
    "stored for the workflow, for the tenant",
    "stored for the workflow, for all tenants",
    "code on the step",
    "code on the workflow",
    "stored default of the tenant",
    "stored default of all tenants",
]
"""Places of policies, from the most specific to the most general; the built-in default comes last."""

STORED = dict(
    zip(
        [*ORDER[1:7], *ORDER[9:]],
        [
            ("acme", "fulfil", "charge"),
            ("", "fulfil", "charge"),
            ("acme", "", "charge"),
            ("", "", "charge"),
            ("acme", "fulfil", ""),
            ("", "fulfil", ""),
            ("acme", "", ""),
            ("", "", ""),
        ],
        strict=True,
    )
)
POLICY = {place: RetryPolicy(max_retries=number) for number, place in enumerate(ORDER, start=10)}


def found(places: list[str], *, noise: StoredPolicies | None = None) -> RetryPolicy:
    """Return the policy in force for step `charge` of workflow `fulfil` of tenant `acme`."""

    def given(place: str) -> RetryPolicy | None:
        return POLICY[place] if place in places else None

    stored = {STORED[place]: POLICY[place] for place in places if place in STORED}
    return find_policy(
        {**(noise or {}), **stored},
        run=RunOptions(override=given("run override"), retry=given("code on the workflow")),
        step=StepOptions(retry=given("code on the step")),
        tenant="acme",
        workflow="fulfil",
        name="charge",
    )


@each("place", ORDER)
def test_a_policy_is_in_force_without_a_more_specific_one(place: str) -> None:
    assert found(ORDER[ORDER.index(place) :]) == POLICY[place]


def test_the_more_specific_of_two_policies_is_in_force() -> None:
    for first, second in combinations(ORDER, 2):
        assert found([first, second]) == POLICY[first], (first, second)


def test_without_any_policy_the_default_is_in_force() -> None:
    assert found([]) == DEFAULT_RETRY == RetryPolicy()


def test_policies_of_other_tenants_and_workflows_do_not_matter() -> None:
    other = RetryPolicy(max_retries=99)
    noise = {
        ("zoo", "fulfil", "charge"): other,
        ("acme", "refund", "charge"): other,
        ("acme", "fulfil", "ship"): other,
        ("zoo", "fulfil", ""): other,
        ("acme", "refund", ""): other,
        ("", "", "ship"): other,
        ("zoo", "", ""): other,
    }
    assert found([], noise=noise) == DEFAULT_RETRY
    assert found(["code on the step"], noise=noise) == POLICY["code on the step"]


def test_a_run_between_its_steps_has_the_policy_of_its_workflow() -> None:
    whole = {("", "fulfil", ""): POLICY["run override"], ("", "", ""): POLICY["code on the step"]}
    facts = {"step": StepOptions(), "tenant": "acme", "workflow": "fulfil", "name": ""}
    assert find_policy(whole, run=RunOptions(), **facts) == POLICY["run override"]  # type: ignore[arg-type]
    code = RunOptions(retry=POLICY["code on the workflow"])
    default = {("acme", "", ""): POLICY["run override"]}
    assert find_policy(default, run=code, **facts) == code.retry  # type: ignore[arg-type]
    assert find_policy(default, run=RunOptions(), **facts) == POLICY["run override"]  # type: ignore[arg-type]


HANDLERS = st.builds(FailureHandler, timeout=st.none() | st.integers(1, 10**12))
RULES = st.builds(OnFailure, handlers=st.lists(HANDLERS, max_size=2).map(tuple), queue=st.none() | st.just("bells"))


# -- snapshots ---------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.builds(
        RunOptions,
        override=st.none() | POLICIES,
        retry=st.none() | POLICIES,
        dead_letter=st.booleans(),
        limits=st.none()
        | st.builds(StepLimits, timeout=st.none() | st.floats(0.001, 1e9), default_timeout=st.just(5.0)),
        max_crashes=st.integers(1, 100),
        letter_keeps=st.integers(0, 10**15),
        on_failure=st.none() | RULES,
    )
)
def test_the_options_of_a_run_are_the_same_after_a_round_trip_through_json(options: RunOptions) -> None:
    assert RunOptions.from_json(options.to_json()) == options


@settings(deadline=None)
@given(
    st.builds(
        StepOptions,
        retry=st.none() | POLICIES,
        timeout=st.floats(0.001, 1e9),
        heartbeat_timeout=st.none() | st.floats(0.001, 1e9),
        at_most_once=st.booleans(),
        transactional=st.booleans(),
        effect=st.none() | st.text(),
    )
)
def test_the_options_of_a_step_are_the_same_after_a_round_trip_through_json(options: StepOptions) -> None:
    assert StepOptions.from_json(options.to_json()) == options


def test_the_defaults_are_the_documented_ones() -> None:
    assert json.loads(RunOptions().to_json()) == {
        "override": None,
        "retry": None,
        "dead_letter": True,
        "max_crashes": 3,
        "letter_keeps": 30 * 86_400 * 1_000_000,
    }
    assert json.loads(StepOptions().to_json()) == {
        "retry": None,
        "timeout": 600.0,
        "heartbeat_timeout": None,
        "at_most_once": False,
        "transactional": False,
        "effect": None,
    }


@pytest.mark.parametrize("options", [RunOptions(), StepOptions()], ids=["run", "step"])
def test_options_that_newer_code_wrote_can_be_read(options: RunOptions | StepOptions) -> None:
    text = json.dumps({**json.loads(options.to_json()), "tomorrow": 1})
    assert type(options).from_json(text) == options


@pytest.mark.parametrize(
    ("timeout", "heartbeat_timeout", "limit"), [(600.0, None, 600.0), (600.0, 5.0, 5.0), (3.0, 5.0, 3.0)]
)
def test_an_attempt_may_be_ended_when_the_first_of_its_limits_has_passed(
    timeout: float, heartbeat_timeout: float | None, limit: float
) -> None:
    assert StepOptions(timeout=timeout, heartbeat_timeout=heartbeat_timeout).limit == limit


def test_the_origin_of_a_run_is_cut_off_before_its_options_are_parsed() -> None:
    text = RunOptions(rollback=True).to_json()
    origin = ("bull:orders", 'a "quoted", {id}')
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    marked = add_origin(add_trace(text, trace), origin)
    assert split_origin(split_trace(marked)[1]) == (origin, text)
    assert split_origin(text) == (None, text)
    read = parse_run_options(marked)
    assert (read.origin, read.trace, read.rollback) == (origin, trace, True)
    assert parse_run_options(add_origin(text, origin)).origin == origin
    assert parse_run_options(read.to_json()) == read
