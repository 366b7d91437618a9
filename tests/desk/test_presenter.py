"""Presentation of rows to users: times as datetimes, secrets masked and decisions as sentences."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.journal import EntryRow
from redrive.core.redact import MASK, Redactor
from redrive.core.retry import RetryDecision
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.desk.models import AttemptRecord
from redrive.desk.presenter import Presenter
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.store.letters import LetterRow
from redrive.store.runs import AttemptRow, RunRow

NOON = datetime(2031, 5, 17, 14, 2, 11, tzinfo=UTC)
AT = int(NOON.timestamp()) * 1_000_000
SHAPER = Presenter(Redactor.parse("badge"))

SECRET = "sk-abcdefghijklmnopqrstuvwxyz"
FAILURE = Failure(
    category=Category.RATE_LIMIT,
    error_type="shop.TooFast",
    message=f"slow down, {SECRET}",
    bases=("shop.TooFast", "builtins.Exception"),
    stack=f"Traceback ...\nshop.TooFast: slow down, {SECRET}",
    status_code=429,
    error_code="429",
    details={"badge": "b-17", "limit": 5},
)
ENDING = FailureReason(
    failure=FAILURE,
    code=LetterCode.EXHAUSTED_RETRIES,
    reason=Reason(
        ReasonCode.STEP_FAILED, step="charge", n=3, category="rate_limit", why=Reason(ReasonCode.TEXT, text=SECRET)
    ),
    stage=Stage.EXEC,
    step="charge",
    step_index=1,
    attempts=3,
    policy=RetryPolicy(max_retries=2),
    duration=1_234_567,
)
OVERRIDE = RunOptions(override=RetryPolicy(max_retries=7)).to_json()
VERDICT = RetryDecision(retry=True, of=5, status_code=429, delay=34.0, jitter=4.0, retry_after=30.0)

RUN = RunRow(
    id=7,
    public_id="run7",
    tenant="acme",
    workflow="fulfil",
    queue="fast",
    priority=5,
    status=RunStatus.DLQ_PENDING,
    fence=3,
    worker=None,
    available_at=AT + 1,
    deadline=AT + 2,
    deaths=1,
    version="v1",
    created_at=AT + 3,
    started_at=AT + 4,
    finished_at=AT + 5,
    correlation_id="c-1",
    parent="run6",
    root="run1",
    replay_of="run5",
    generation=2,
    parked_on="bank",
    diverged_at=None,
    input='{"order": 1, "badge": "b-17"}',
    options=OVERRIDE,
    output='{"password": "x"}',
    failure=ENDING.to_json(),
)
ENTRY = EntryRow(
    index=1,
    key="/charge#0",
    kind=EntryKind.STEP,
    name="charge",
    status=StepStatus.SUCCESS,
    attempt=2,
    done=4,
    first_at=AT,
    began_at=AT + 50,
    ended_at=AT + 60,
    wake_at=None,
    limit_at=None,
    input='{"badge": "b-17"}',
    output='"receipt"',
    failure=None,
    options=None,
    heartbeat='{"done": 3, "badge": "b-17"}',
)
ATTEMPT = AttemptRow(
    index=1,
    attempt=3,
    fence=2,
    end=AttemptEnd.FAILED,
    began_at=AT - 9,
    ended_at=AT - 8,
    category="rate_limit",
    failure=json.dumps(FAILURE.to_json()),
    decision=VERDICT.to_json(),
    next_at=AT,
    worker=4,
)
LETTER = LetterRow(
    id=1,
    public_id="dl-run7",
    tenant="acme",
    run=7,
    run_id="run7",
    workflow="fulfil",
    status=LetterStatus.OPEN,
    code="exhausted_retries",
    stage="exec",
    category="rate_limit",
    reason=ENDING.reason.to_text(),
    failure=ENDING.to_json(),
    fingerprint="0123456789abcdef",
    payload_hash="ffff",
    input='{"order": 1, "badge": "b-17"}',
    options=OVERRIDE,
    step="charge",
    step_index=1,
    attempts=3,
    replay_count=2,
    failed_replays=1,
    owner="ada",
    correlation_id="c-1",
    version="v1",
    created_at=AT,
    failed_at=AT + 1,
    closed_at=AT + 2,
    closed_by="bob",
    resolution="fixed",
    expires_at=AT + 3,
)


def at(micros: int) -> datetime:
    return NOON + timedelta(microseconds=micros)


# -- runs --------------------------------------------------------------------------------------------------


def test_a_run_is_shown_with_its_times_its_state_and_its_failure() -> None:
    assert asdict(SHAPER.run(RUN, letter_id="dl-run7")) == {
        "id": "run7",
        "started_by": None,
        "workflow": "fulfil",
        "tenant": "acme",
        "queue": "fast",
        "priority": 5,
        "status": RunStatus.DLQ_PENDING,
        "version": "v1",
        "pinned": False,
        "correlation_id": "c-1",
        "parent": "run6",
        "replay_of": "run5",
        "created_at": at(3),
        "started_at": at(4),
        "finished_at": at(5),
        "next_at": at(1),
        "deadline": at(2),
        "crashes": 1,
        "parked_on": "bank",
        "input": {"order": 1, "badge": MASK},
        "output": {"password": MASK},
        "error": f"Workflow execution failed after 3 attempts: TooFast: slow down, {MASK}",
        "error_code": "429",
        "note": None,
        "attempts_made": 3,
        "max_retries": 2,
        "retry_policy_override": RetryPolicy(max_retries=7).to_json(),
        "duration_ms": 0,
        "reason": f"step 'charge' failed 3 times (rate_limit): {MASK}",
        "reason_code": "step_failed",
        "reason_params": {
            "step": "charge",
            "n": 3,
            "category": "rate_limit",
            "why": {"code": "text", "params": {"text": MASK}},
        },
        "code": "exhausted_retries",
        "steps": (),
        "letter_id": "dl-run7",
        "handler_for": None,
        "handled_by": (),
        "trace_id": None,
    }


def test_missing_values_of_a_run_are_none() -> None:
    new = replace(
        RUN,
        status=RunStatus.PENDING,
        started_at=None,
        finished_at=None,
        available_at=None,
        deadline=None,
        input=None,
        output=None,
        failure=None,
    )
    shown = SHAPER.run(new)
    assert (shown.started_at, shown.finished_at, shown.next_at, shown.deadline) == (None,) * 4
    assert (shown.input, shown.output, shown.error, shown.code, shown.letter_id) == (None,) * 5


def test_a_run_is_shown_with_its_steps_and_attempts_in_order() -> None:
    first, second = replace(ENTRY, index=0, name="reserve"), ENTRY
    tries = [replace(ATTEMPT, index=index, attempt=number) for number, index in ((1, 1), (1, 0), (2, 1))]
    steps = SHAPER.run(RUN, entries=[first, second], attempts=tries).steps
    assert [(step.index, step.name) for step in steps] == [(0, "reserve"), (1, "charge")]
    assert [[(one.attempt, one.status) for one in step.attempts] for step in steps] == [
        [(1, "FAILED"), (2, "SUCCESS")],
        [(1, "FAILED"), (2, "FAILED"), (2, "SUCCESS")],
    ]


# -- steps -------------------------------------------------------------------------------------------------


def test_a_step_is_shown_with_its_input_and_output() -> None:
    (step,) = SHAPER.steps([ENTRY], [])
    assert (step.index, step.key, step.name, step.kind) == (1, "/charge#0", "charge", EntryKind.STEP)
    assert (step.status, step.attempt, step.superseded) == (StepStatus.SUCCESS, 2, False)
    assert (step.began_at, step.ended_at, step.next_at) == (at(0), at(60), None)
    assert (step.input, step.output, step.error) == ({"badge": MASK}, "receipt", None)
    assert step.heartbeat == {"done": 3, "badge": MASK}


def test_the_successful_attempt_is_listed_last() -> None:
    (step,) = SHAPER.steps([ENTRY], [])
    assert step.attempts == (
        AttemptRecord(
            attempt=2,
            status="SUCCESS",
            began_at=at(50),
            ended_at=at(60),
            category=None,
            error_type=None,
            message=None,
            stack=None,
            next_at=None,
            decision="attempt 2, succeeded",
            reason_code="attempt_succeeded",
            reason_params={"attempt": 2},
            duration_ms=0,
        ),
    )


@pytest.mark.parametrize(
    "entry",
    [
        replace(ENTRY, status=StepStatus.RUNNING),
        replace(ENTRY, status=StepStatus.SKIPPED),
        replace(ENTRY, kind=EntryKind.SLEEP),
        replace(ENTRY, kind=EntryKind.NOTE),
    ],
    ids=["running", "skipped", "sleep", "note"],
)
def test_only_a_successful_step_has_a_successful_attempt(entry: EntryRow) -> None:
    (step,) = SHAPER.steps([entry], [])
    assert step.attempts == ()


def test_a_waiting_step_shows_its_wake_up_time_and_a_failed_step_its_failure() -> None:
    waiting = replace(ENTRY, status=StepStatus.RETRYING, ended_at=None, wake_at=AT + 9)
    failed = replace(ENTRY, status=StepStatus.FAILED, failure=ENDING.to_json(), superseded=2)
    first, second = SHAPER.steps([waiting, failed], [])
    assert (first.next_at, first.ended_at, first.error) == (at(9), None, None)
    assert second.error == f"step 'charge' failed 3 times (rate_limit): {MASK}"
    assert second.superseded


# -- attempts ----------------------------------------------------------------------------------------------


def shown(attempt: AttemptRow) -> AttemptRecord:
    (step,) = SHAPER.steps([replace(ENTRY, status=StepStatus.FAILED)], [attempt])
    (record,) = step.attempts
    return record


def test_a_failed_attempt_is_shown_with_its_decision_as_a_sentence() -> None:
    assert shown(ATTEMPT) == AttemptRecord(
        attempt=3,
        status="FAILED",
        began_at=at(-9),
        ended_at=at(-8),
        category="rate_limit",
        error_type="shop.TooFast",
        message=f"slow down, {MASK}",
        stack=f"Traceback ...\nshop.TooFast: slow down, {MASK}",
        next_at=NOON,
        decision="attempt 3 of 5, HTTP 429, rate limited, Retry-After 30 s + 4 s jitter, next at 14:02:11",
        reason_code="retry_scheduled",
        reason_params={
            "attempt": 3,
            "of": 5,
            "status_code": 429,
            "cause": {"code": "rate_limited", "params": {}},
            "delay": None,
            "retry_after": 30.0,
            "jitter": 4.0,
            "next_at": f"{NOON:%Y-%m-%dT%H:%M:%SZ}",
        },
        error_code="429",
        max_retries=4,
        duration_ms=0,
    )


def test_the_last_attempt_explains_why_it_was_the_last() -> None:
    verdict = RetryDecision(retry=False, exhausted=True, of=3, why=Reason(ReasonCode.RETRIES_EXHAUSTED))
    last = replace(ATTEMPT, decision=verdict.to_json(), next_at=None)
    assert shown(last).decision == "attempt 3 of 3, rate limited, not retried: retries are exhausted"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (AttemptEnd.LOST, "attempt 3: the worker crashed; the attempt is repeated under the same number"),
        (AttemptEnd.RELEASED, "attempt 3: the worker stopped; the attempt is repeated under the same number"),
        (AttemptEnd.CANCELLED, "attempt 3: cancelled"),
        (AttemptEnd.TIMED_OUT, "attempt 3: timed out"),
    ],
)
def test_an_interrupted_attempt_explains_what_happens_next(end: AttemptEnd, words: str) -> None:
    cut = replace(ATTEMPT, end=end, category=None, failure=None, decision=None, next_at=None)
    record = shown(cut)
    assert (record.status, record.decision) == (end.value, words)
    assert (record.category, record.error_type, record.message, record.stack) == (None,) * 4


# -- dead letters ------------------------------------------------------------------------------------------


def test_a_dead_letter_is_shown_whole_with_its_secrets_masked() -> None:
    steps = SHAPER.steps([ENTRY], [ATTEMPT])
    letter = SHAPER.letter(LETTER, steps=steps)
    assert letter.steps == steps
    assert {name: value for name, value in asdict(letter).items() if name != "steps"} == {
        "id": "dl-run7",
        "run_id": "run7",
        "workflow": "fulfil",
        "tenant": "acme",
        "status": LetterStatus.OPEN,
        "code": "exhausted_retries",
        "stage": "exec",
        "category": "rate_limit",
        "reason": f"step 'charge' failed 3 times (rate_limit): {MASK}",
        "reason_code": "step_failed",
        "reason_params": {
            "step": "charge",
            "n": 3,
            "category": "rate_limit",
            "why": {"code": "text", "params": {"text": MASK}},
        },
        "resolution_code": None,
        "error_type": "shop.TooFast",
        "message": f"slow down, {MASK}",
        "stack": f"Traceback ...\nshop.TooFast: slow down, {MASK}",
        "details": {"badge": MASK, "limit": 5},
        "step": "charge",
        "step_index": 1,
        "policy": RetryPolicy(max_retries=2).to_json(),
        "error_code": "429",
        "max_retries": 2,
        "retry_policy_override": RetryPolicy(max_retries=7).to_json(),
        "duration_ms": 1234,
        "attempts": 3,
        "replay_count": 2,
        "failed_replays": 1,
        "fingerprint": "0123456789abcdef",
        "payload_hash": "ffff",
        "input": {"order": 1, "badge": MASK},
        "config": json.loads(OVERRIDE),
        "owner": "ada",
        "correlation_id": "c-1",
        "version": "v1",
        "created_at": at(0),
        "failed_at": at(1),
        "closed_at": at(2),
        "closed_by": "bob",
        "resolution": "fixed",
        "expires_at": at(3),
        "escalated_to": None,
        "escalated_at": None,
        "tags": (),
        "purged": False,
        "handler_for": None,
        "handled_by": (),
        "trace_id": None,
        "replays": (),
        "history": (),
    }


def test_an_open_letter_has_no_closing_time() -> None:
    assert SHAPER.letter(replace(LETTER, closed_at=None)).closed_at is None


# -- payloads and times ------------------------------------------------------------------------------------


def test_a_payload_that_is_not_json_is_shown_as_text() -> None:
    assert SHAPER.run(replace(RUN, input=f"{{broken {SECRET}")).input == f"{{broken {MASK}"
    assert SHAPER.letter(replace(LETTER, input="")).input == ""


@settings(deadline=None)
@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 (strategies want it so)
@example(datetime.max.replace(tzinfo=UTC))
def test_times_are_exact_to_the_microsecond_up_to_the_last_year(moment: datetime) -> None:
    micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert SHAPER.run(replace(RUN, deadline=micros)).deadline == moment


def test_a_caller_without_the_permission_gets_no_stacks() -> None:
    presenter = Presenter(Redactor(), stacks=False)
    shown = presenter.letter(LETTER, steps=presenter.steps([ENTRY], [ATTEMPT]))
    assert (shown.stack, [each.stack for each in shown.steps[0].attempts]) == ("", [None, None])
    assert shown.steps[0].attempts[0].message


def test_a_step_shows_the_retry_policy_of_its_last_decision_or_of_its_run_and_code() -> None:
    coded = replace(ENTRY, options=StepOptions(retry=RetryPolicy(max_retries=4)).to_json())
    for attempts, options, expected in (([ATTEMPT], OVERRIDE, 4), ([], OVERRIDE, 7), ([], RunOptions().to_json(), 4)):
        (step,) = SHAPER.steps([coded], attempts, options)
        assert step.max_retries == expected
    (plain,) = SHAPER.steps([replace(ENTRY, options=None)], [ATTEMPT], OVERRIDE)
    assert plain.retry_policy_override == RetryPolicy(max_retries=7).to_json(), "steps without options store none"
    (step,) = SHAPER.steps([coded], [ATTEMPT], OVERRIDE)
    assert (step.error_code, step.retry_policy_override) == ("429", RetryPolicy(max_retries=7).to_json())
    assert {str(each.retry_policy_override) for each in step.attempts} == {str(step.retry_policy_override)}
    (note,) = SHAPER.steps([replace(ENTRY, kind=EntryKind.NOTE)], [], OVERRIDE)
    assert (note.max_retries, note.retry_policy_override) == (None, None)
