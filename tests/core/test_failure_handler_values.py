"""Failure handlers as values: the transitions that start them, their ids and their events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.classify import Category
from redrive.core.decide import decide
from redrive.core.failure import Failure
from redrive.core.failure_handlers import INPUT_NOTE_KEY, add_handler_runs, encode_event
from redrive.core.failure_reason import FailureReason, LetterCode
from redrive.core.keys_and_ids import handler_run_id
from redrive.core.outcomes import (
    CancelRequested,
    CodeDiverged,
    CodeWait,
    DeadlinePassed,
    LetterClosed,
    Outcome,
    RunReleased,
    RunView,
    StepReplayEnded,
    WorkerLost,
    WorkflowFailed,
    WorkflowReturned,
)
from redrive.core.run_options import DEFAULT_RETRY, FailureHandler, OnFailure, RunOptions
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import RunWrite, Transition
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace

NOW = 1_900_000_000_000_000
OWN = FailureHandler(workflow="page", parameter="event", options=RunOptions(index=("event.run_id",)).to_json())
ALL = FailureHandler(workflow="count", parameter="e", options=RunOptions().to_json(), timeout=7)
RULES = OnFailure(handlers=(OWN, ALL), limit=1 << 20)
RUN = RunView(
    id=1,
    public_id="r1",
    tenant="acme",
    workflow="pay",
    fence=3,
    input='{"amount":40}',
    options=RunOptions(on_failure=RULES, max_crashes=2),
    started_at=NOW - 5,
    queue="emails",
)
ENDING = FailureReason(
    failure=Failure.of(Category.TIMEOUT, "silent", error_type="builtins.TimeoutError"),
    code=LetterCode.EXHAUSTED_RETRIES,
    reason=Reason(ReasonCode.RUN_ENDING),
    step="charge",
    attempts=4,
)

FAILS: list[Outcome] = [
    WorkflowFailed(run=RUN, ending=ENDING),
    DeadlinePassed(run=RUN),
    WorkerLost(run=RUN, deaths=2, executing=True),
    CodeDiverged(run=RUN, difference=Reason(ReasonCode.JOURNAL_NOTHING), wait=CodeWait.NO_MORE),
]
OTHERS: list[Outcome] = [
    WorkflowReturned(run=RUN, output="1"),
    StepReplayEnded(run=RUN, step="charge"),
    RunReleased(run=RUN),
    WorkerLost(run=RUN, deaths=1, executing=True),
    CodeDiverged(run=RUN, difference=Reason(ReasonCode.JOURNAL_NOTHING), wait=CodeWait.FOR_CODE),
    CancelRequested(run=RUN, by="ann"),
    *(
        LetterClosed(run=RUN, letter="dl-r1", status=status, ended=RunStatus.DLQ_PENDING, by="ann")
        for status in (LetterStatus.RESOLVED, LetterStatus.IGNORED, LetterStatus.EXPIRED)
    ),
]


def decided(outcome: Outcome) -> Transition:
    return decide(outcome, DEFAULT_RETRY, 0.5, NOW)


def about(outcome: Outcome, **changes: Any) -> Outcome:
    return replace(outcome, run=replace(RUN, **changes))


@pytest.mark.parametrize("outcome", FAILS, ids=lambda outcome: type(outcome).__name__)
def test_every_failure_starts_both_handlers_in_its_transition(outcome: Outcome) -> None:
    transition = decided(outcome)
    assert transition.letter is not None
    assert [run.workflow for run in transition.starts] == ["page", "count"]
    assert {(run.tenant, run.parent, run.handler_for) for run in transition.starts} == {("acme", "r1", "r1")}
    assert [run.timeout for run in transition.starts] == [None, 7]
    assert [set(json.loads(run.input)) for run in transition.starts] == [{"event"}, {"e"}]
    assert [run.index for run in transition.starts] == [(("event.run_id", "r1"),), ()]


@pytest.mark.parametrize("outcome", FAILS, ids=lambda outcome: type(outcome).__name__)
def test_a_failure_without_a_letter_starts_both_handlers_too(outcome: Outcome) -> None:
    transition = decided(about(outcome, options=replace(RUN.options, dead_letter=False)))
    assert transition.letter is None
    assert len(transition.starts) == 2


@each("outcome", OTHERS)
def test_other_transitions_start_no_handler(outcome: Outcome) -> None:
    assert decided(outcome).starts == ()


@pytest.mark.parametrize("outcome", FAILS, ids=lambda outcome: type(outcome).__name__)
def test_handler_runs_and_runs_without_handlers_start_none(outcome: Outcome) -> None:
    assert decided(about(outcome, handler_for="r0")).starts == ()
    assert decided(about(outcome, options=RunOptions(max_crashes=2))).starts == ()


def test_a_rolled_back_run_starts_handlers_when_the_rollback_is_done() -> None:
    failed = RunWrite(status=RunStatus.COMPENSATED, failure=ENDING.to_json())
    underway = RunWrite(status=RunStatus.COMPENSATING, failure=ENDING.to_json())
    plain = Transition(run=1, tenant="acme", fence=3)
    assert len(add_handler_runs(replace(plain, change=failed), RUN, NOW).starts) == 2
    assert add_handler_runs(replace(plain, change=underway), RUN, NOW).starts == ()


def test_the_correlation_id_is_the_runs_or_its_own_id() -> None:
    assert {run.correlation_id for run in decided(FAILS[0]).starts} == {"r1"}
    assert {run.correlation_id for run in decided(about(FAILS[0], correlation_id="c")).starts} == {"c"}


def test_handler_ids_depend_on_the_failure() -> None:
    def ids(outcome: Outcome) -> set[str]:
        return {run.public_id for run in decided(outcome).starts}

    first = ids(FAILS[0])
    assert len(first) == 2
    assert ids(FAILS[0]) == first
    assert ids(about(FAILS[0], fence=4)).isdisjoint(first)
    assert ids(about(FAILS[0], public_id="r2")).isdisjoint(first)


@given(st.text(), st.integers(0, 10**9), st.text(min_size=1), st.text(), st.integers(0, 10**9), st.text())
def test_handler_ids_have_the_usual_form_and_differ_between_failures(
    run: str, fence: int, name: str, other_run: str, other_fence: int, other_name: str
) -> None:
    one = handler_run_id(run, fence, name, NOW)
    assert len(one) == 26
    assert set(one) <= set("0123456789abcdefghjkmnpqrstvwxyz")
    same = (run, fence, name) == (other_run, other_fence, other_name)
    assert (handler_run_id(other_run, other_fence, other_name, NOW) == one) is same
    assert handler_run_id(run, fence, name, NOW + 1000) > one


def test_the_event_has_all_fields() -> None:
    assert json.loads(encode_event(RUN, ENDING, replace(RULES, base_url="https://d"), NOW)) == {
        "run_id": "r1",
        "workflow": "pay",
        "tenant": "acme",
        "step": "charge",
        "error": "TimeoutError: silent",
        "category": "timeout",
        "code": "exhausted_retries",
        "input": {"amount": 40},
        "attempts": 4,
        "started_at": "2030-03-17T17:46:39.999995+00:00",
        "failed_at": "2030-03-17T17:46:40+00:00",
        "url": "https://d/app/runs/r1",
        "queue": "emails",
    }
    assert [new.queue for new in decided(FAILS[0]).starts] == ["emails", "emails"]


@given(st.integers(0, 3000), st.sampled_from(["x", "é", "😀"]))
def test_an_event_is_never_larger_than_an_input_may_be(length: int, letter: str) -> None:
    run = replace(RUN, input=json.dumps({"text": letter * length}, ensure_ascii=False))
    rules = replace(RULES, limit=2000)
    text = encode_event(run, ENDING, rules, NOW)
    assert len(text.encode()) <= 2000
    carried = json.loads(text)["input"]
    assert carried == json.loads(run.input) or list(carried) == [INPUT_NOTE_KEY]


def test_an_input_that_fits_is_carried() -> None:
    run = replace(RUN, input=json.dumps({"text": "x" * 1000}))
    assert json.loads(encode_event(run, ENDING, replace(RULES, limit=2000), NOW))["input"] == json.loads(run.input)


@pytest.mark.parametrize("text", ["{", "", "enc1:abc", "[" * 100_000])
def test_an_input_that_cannot_be_read_is_named_instead(text: str) -> None:
    event = json.loads(encode_event(replace(RUN, input=text), ENDING, RULES, NOW))
    assert "r1" in event["input"][INPUT_NOTE_KEY]
