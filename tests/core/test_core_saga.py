"""Rollback plans: the steps to undo and their order, read from journals alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.journal import EntryRow, compute_generations, generation_of_call
from redrive.core.run_options import StepOptions
from redrive.core.saga import (
    LastAttempt,
    build_undo_input,
    find_child_effects,
    find_passed_pivot,
    find_step_effects,
    find_steps_to_confirm,
    find_unfinished,
    follow_up_key,
    read_ledger,
    sort_effects,
    undone_step_name,
)
from redrive.core.states import EntryKind, StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.reasons import Reason, ReasonCode

S = StepStatus


def row(index: int, key: str, status: StepStatus = S.SUCCESS, **more: Any) -> EntryRow:
    given: dict[str, Any] = {
        "kind": EntryKind.STEP,
        "name": key.rpartition("/")[2].partition("#")[0],
        "attempt": 1,
        "done": index if status is S.SUCCESS else None,
        "first_at": 0,
        "began_at": 0,
        "ended_at": None,
        "wake_at": None,
        "limit_at": None,
        "input": "{}",
        "output": None,
        "failure": None,
        "options": None,
    }
    return EntryRow(index=index, key=key, status=status, **{**given, **more})


def failure(category: Category, stage: Stage = Stage.EXEC, kind: str = "x.Error") -> str:
    failed = Failure.of(category, "no", error_type=kind)
    return FailureReason(
        failure=failed, code=LetterCode.NON_RETRYABLE, reason=Reason(ReasonCode.RUN_ENDING), stage=stage
    ).to_json()


def found(
    *rows: EntryRow, tries: dict[int, LastAttempt] | None = None, **options: StepOptions
) -> list[tuple[int, bool]]:
    return [(each.entry.index, each.uncertain) for each in find_step_effects(rows, tries or {}, options)]


def last(end: AttemptEnd, category: str | None = None, attempt: int = 1) -> dict[int, LastAttempt]:
    return {0: LastAttempt(attempt=attempt, end=end, category=category)}


@given(st.permutations(range(6)))
def test_completed_steps_come_in_reverse_order_of_completion_whatever_order_they_began_in(order: Any) -> None:
    rows = [row(index, f"{index}/a#0", done=done) for index, done in enumerate(order)]
    undone = [order[index] for index, _ in found(*rows)]
    assert undone == [5, 4, 3, 2, 1, 0]


def test_steps_without_an_answer_come_first_in_reverse_order() -> None:
    lost = failure(Category.NETWORK)
    rows = [row(0, "/a#0"), row(1, "/b#0", S.FAILED, failure=lost), row(2, "/c#0"), row(3, "/d#0", S.DLQ, failure=lost)]
    assert found(*rows) == [(3, True), (1, True), (2, False), (0, False)]


def test_every_generation_is_undone_even_one_without_an_answer() -> None:
    lost = failure(Category.NETWORK)
    rows = [
        row(0, "/kept#0"),
        row(1, "/a#0", S.DLQ, failure=lost, superseded=1),
        row(2, "/redrive.new_operation#2", kind=EntryKind.NOTE, output='{"keeps": [0]}', superseded=2),
        row(3, "/a#0", S.SUCCESS, superseded=2),
        row(4, "/a#0", S.SUCCESS),
        row(5, "/kept#0"),
    ]
    assert found(*rows) == [(1, True), (5, False), (4, False)]
    assert compute_generations(rows, 1) == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 0}
    assert [generation_of_call(rows, key, 1) for key in ("/kept#0", "/a#0", "/never#0")] == [0, 1, 1]


@each(
    "status, more, tries, uncertain",
    [
        (S.FAILED, {"failure": failure(Category.TIMEOUT)}, {}, True),
        (S.DLQ, {"failure": failure(Category.NETWORK)}, {}, True),
        (S.DLQ, {"failure": failure(Category.SERVER_ERROR)}, {}, False),
        (S.DLQ, {"failure": failure(Category.VALIDATION)}, {}, False),
        (S.DLQ, {"failure": failure(Category.VALIDATION, Stage.OUTPUT)}, {}, True),
        (S.DLQ, {"failure": failure(Category.INTERNAL, Stage.COMMIT)}, {}, True),
        (S.DLQ, {"failure": failure(Category.UNKNOWN, kind="redrive.MayHaveHappened")}, {}, True),
        (S.RUNNING, {}, {}, True),
        (S.RUNNING, {}, last(AttemptEnd.LOST), True),
        (S.CANCELLED, {}, {}, True),
        (S.CANCELLED, {}, last(AttemptEnd.CANCELLED), True),
        (S.CANCELLED, {}, last(AttemptEnd.FAILED, "validation"), False),
        (S.CANCELLED, {}, last(AttemptEnd.FAILED, "network"), True),
        (S.CANCELLED, {"attempt": 2}, last(AttemptEnd.FAILED, "validation"), True),
        (S.RETRYING, {}, last(AttemptEnd.TIMED_OUT, "timeout"), True),
        (S.RETRYING, {}, last(AttemptEnd.FAILED, "server_error"), False),
        (S.RETRYING, {}, {}, False),
        (S.SKIPPED, {}, {}, False),
        (S.PENDING, {}, {}, False),
    ],
)
def test_a_step_is_uncertain_if_its_last_attempt_ended_without_an_answer(
    status: StepStatus, more: dict[str, Any], tries: dict[int, LastAttempt], uncertain: bool
) -> None:
    entry = row(0, "/a#0", status, **more)
    assert found(entry, tries=tries) == ([(0, True)] if uncertain else [])
    assert found(entry, tries=tries, a=StepOptions(transactional=True)) == []


def test_only_steps_are_undone() -> None:
    kinds = [kind for kind in EntryKind if kind is not EntryKind.STEP]
    assert found(*(row(n, f"/x#{n}", kind=kind) for n, kind in enumerate(kinds))) == []


def test_a_child_counts_as_completed_with_the_last_wait_for_it() -> None:
    start = row(0, "/redrive.start stay#0", kind=EntryKind.START, output='"run-8"')
    other = row(1, "/redrive.start stay#1", kind=EntryKind.START, output='"run-9"')
    step, done = row(2, "/book#0"), '{"mode": "run", "names": ["run-8"]}'
    wait = row(3, "/redrive.result stay#0", kind=EntryKind.WAIT, input=done)
    journal = [start, other, step, wait]
    effects = [*find_step_effects(journal, {}, {}), *find_child_effects(journal, {"run-8", "run-9"})]
    assert [each.entry.index for each in sort_effects(effects, journal)] == [0, 2, 1]
    assert find_child_effects(journal, {"run-9"})[0].entry == other


def test_a_repeated_step_replaces_its_earlier_execution() -> None:
    assert found(row(0, "/a#0", superseded=1), row(5, "/a#0")) == [(5, False)]


def test_a_superseded_step_counts_until_it_is_completed_again() -> None:
    before = row(0, "/a#0", superseded=1)
    assert found(before) == [(0, False)]
    declined = row(5, "/a#0", S.FAILED, failure=failure(Category.VALIDATION))
    assert found(before, declined) == [(0, False)]
    silent = row(5, "/a#0", S.FAILED, failure=failure(Category.TIMEOUT))
    assert found(before, silent) == [(5, True), (0, False)]
    assert found(before, row(5, "/a#0", S.SKIPPED, done=9)) == [(0, False)]


def test_an_uncertain_attempt_that_was_answered_later_is_certain() -> None:
    silent = row(0, "/a#0", S.DLQ, failure=failure(Category.TIMEOUT), superseded=1)
    declined = row(5, "/a#0", S.FAILED, failure=failure(Category.VALIDATION))
    assert found(silent) == [(0, True)]
    assert found(silent, declined) == []


def test_a_pivot_is_passed_if_it_happened_or_may_have() -> None:
    options = {"pay": StepOptions(pivot=True)}
    for entry, passed in (
        (row(0, "/pay#0"), "pay"),
        (row(0, "/pay#0", S.DLQ, failure=failure(Category.NETWORK)), "pay"),
        (row(0, "/pay#0", S.DLQ, failure=failure(Category.VALIDATION)), None),
        (row(0, "/charge#0"), None),
    ):
        assert find_passed_pivot([entry], find_step_effects([entry], {}, options), options) == passed


def test_a_planned_confirmation_is_a_point_of_no_return() -> None:
    entry = row(3, "/hold#0/keep#1", S.PENDING, kind=EntryKind.CONFIRM)
    assert find_passed_pivot([entry], (), {}) == "hold"


def test_confirmations_come_in_order_of_completion_with_recorded_values() -> None:
    options = {"hold": StepOptions(confirm="keep", cancel="drop")}
    rows = [
        row(0, "/hold#0", done=2),
        row(1, "/hold#1", done=1),
        row(2, "/hold#2", S.FAILED),
        row(3, "/hold#3", superseded=1),
        row(4, "/other#0"),
        row(5, "/hold#1/keep#1", kind=EntryKind.CONFIRM),
    ]
    pairs = [(step.index, known and known.index) for step, known in find_steps_to_confirm(rows, options)]
    assert pairs == [(1, 5), (0, None)]


# -- the ledger -------------------------------------------------------------------------------------------


def undo(index: int, of: EntryRow, status: StepStatus = S.PENDING, **more: Any) -> EntryRow:
    return row(index, follow_up_key(of, "undo"), status, kind=EntryKind.UNDO, **more)


def test_a_compensation_is_keyed_by_the_entry_it_undoes() -> None:
    step = row(3, "1.0/charge#2")
    assert follow_up_key(step, "refund") == "1.0/charge#2/refund#3"
    assert undone_step_name("1.0/charge#2/refund#3") == "charge"


def test_the_ledger_keeps_its_order_when_a_compensation_is_done_again() -> None:
    a, b, c = (row(n, f"/{name}#0") for n, name in enumerate("abc"))
    failed = undo(4, b, S.DLQ, superseded=1)
    rows = read_ledger([a, b, c, undo(3, c, S.SUCCESS), failed, undo(5, a), undo(6, b)])
    assert [each.undone.name for each in rows] == ["c", "b", "a"]
    following = find_unfinished(rows)
    assert following is not None
    assert following.entry.index == 6


def test_a_listed_step_is_distinguished_from_one_skipped_by_a_user() -> None:
    silent = row(0, "/a#0", S.DLQ, failure=failure(Category.TIMEOUT))
    sure = row(1, "/b#0")
    listed, skipped, sure_skipped = read_ledger(
        [
            silent,
            sure,
            undo(2, silent, S.SKIPPED, attempt=0),
            undo(3, row(0, "/a#0", S.DLQ), S.SKIPPED, attempt=1),
            undo(4, sure, S.SKIPPED, attempt=1),
        ]
    )
    assert [each.is_listed_only for each in (listed, skipped, sure_skipped)] == [True, False, False]
    assert find_unfinished((listed, skipped, sure_skipped)) is None


@pytest.mark.parametrize("given_", ['{"n":1,"price":1.10}', "{}", '{"deep":{"a":[1]}}'])
@pytest.mark.parametrize("uncertain", [True, False])
def test_a_compensation_is_given_arguments_and_result_word_for_word(given_: str, uncertain: bool) -> None:
    entry = row(0, "/a#0", input=given_, output="1.50")
    result = "null" if uncertain else "1.50"
    text = build_undo_input(entry, declared=False, uncertain=uncertain)
    assert text.endswith(f'"result":{result}}}')
    assert json.loads(text) == {**json.loads(given_), "result": json.loads(result)}
    assert build_undo_input(entry, declared=True, uncertain=uncertain) == f'{{"input":{given_},"result":{result}}}'
