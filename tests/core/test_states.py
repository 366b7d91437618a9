"""The tables of legal moves: complete, as promised, and equal to the page that draws them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import pytest
from cases import each

from redrive.core.states import (
    DELIVERY_MOVES,
    FINAL_RUN_STATUSES,
    LETTER_MOVES,
    RUN_MOVES,
    STEP_MOVES,
    DeliveryStatus,
    EntryKind,
    LetterStatus,
    RunStatus,
    StepStatus,
    is_legal_move,
)

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "states.md"

TABLES: dict[str, tuple[type[StrEnum], Mapping[StrEnum, frozenset[StrEnum]]]] = {
    "Runs": (RunStatus, RUN_MOVES),  # type: ignore[dict-item]
    "Steps": (StepStatus, STEP_MOVES),  # type: ignore[dict-item]
    "Dead letters": (LetterStatus, LETTER_MOVES),  # type: ignore[dict-item]
    "Deliveries": (DeliveryStatus, DELIVERY_MOVES),  # type: ignore[dict-item]
}


def moves(table: Mapping[StrEnum, frozenset[StrEnum]]) -> set[tuple[str, str]]:
    return {(str(old), str(new)) for old, allowed in table.items() for new in allowed}


@pytest.mark.parametrize("kind", TABLES)
def test_every_state_is_in_its_table_and_moves_only_to_other_states_of_its_kind(kind: str) -> None:
    states, table = TABLES[kind]
    assert set(table) == set(states)
    for old, allowed in table.items():
        assert {type(new) for new in allowed} <= {states}
        assert old not in allowed


@pytest.mark.parametrize("kind", TABLES)
def test_every_state_can_be_reached_from_the_first(kind: str) -> None:
    states, table = TABLES[kind]
    first = next(iter(states))
    reached = {first}
    while (more := {new for old in reached for new in table[old]} | reached) != reached:
        reached = more
    assert reached == set(states)


@each(
    "walk",
    [
        "PENDING RUNNING SUCCESS",
        "PENDING RUNNING FAILED",
        "PENDING RUNNING SLEEPING RUNNING DLQ_PENDING PENDING RUNNING PARTIAL PENDING",
        "PENDING RUNNING TIMED_OUT PENDING",
        "PENDING RUNNING CANCELLED",
        "RUNNING COMPENSATING COMPENSATED",
        "RUNNING COMPENSATING DLQ_PENDING COMPENSATING",
        "RUNNING COMPENSATING TIMED_OUT",
        "RUNNING COMPENSATING CANCELLED",
        "RUNNING PENDING COMPENSATING",
        "SLEEPING PENDING RUNNING",
        "DLQ_PENDING FAILED",
    ],
)
def test_the_promised_state_sequences_of_a_run_are_legal(walk: str) -> None:
    for old, new in pairwise(RunStatus(word) for word in walk.split()):
        assert is_legal_move(old, new), f"{old} to {new}"


@each(
    "move",
    [
        ("SUCCESS", "PENDING"),
        ("CANCELLED", "PENDING"),
        ("COMPENSATED", "PENDING"),
        ("TIMED_OUT", "FAILED"),  # closing the letter of a run that timed out leaves it timed out
        ("PENDING", "DLQ_PENDING"),  # a run without a worker for it is reported, never dead-lettered
        ("SLEEPING", "DLQ_PENDING"),
        ("DLQ_PENDING", "SUCCESS"),
        ("COMPENSATING", "PENDING"),
        ("SUCCESS", "DLQ_PENDING"),
    ],
)
def test_forbidden_moves_of_a_run_are_illegal(move: tuple[str, str]) -> None:
    assert not is_legal_move(RunStatus(move[0]), RunStatus(move[1]))


def test_a_finished_step_never_changes_its_state() -> None:
    for end in (StepStatus.SUCCESS, StepStatus.SKIPPED, StepStatus.CANCELLED):
        assert STEP_MOVES[end] == frozenset()


def test_a_failed_step_only_ever_becomes_the_one_its_run_failed_with() -> None:
    assert STEP_MOVES[StepStatus.FAILED] == {StepStatus.DLQ}
    assert [old for old in StepStatus if StepStatus.DLQ in STEP_MOVES[old]] == [StepStatus.FAILED]


def test_a_closed_letter_can_only_be_reopened_and_an_expired_one_never() -> None:
    for closed in (LetterStatus.RESOLVED, LetterStatus.IGNORED):
        assert LETTER_MOVES[closed] == {LetterStatus.OPEN}
    assert LETTER_MOVES[LetterStatus.EXPIRED] == frozenset()


def test_final_states_leave_no_work_for_a_worker() -> None:
    assert set(RunStatus) - FINAL_RUN_STATUSES == {
        RunStatus.PENDING,
        RunStatus.RUNNING,
        RunStatus.SLEEPING,
        RunStatus.COMPENSATING,
    }
    for ended in FINAL_RUN_STATUSES:
        assert RunStatus.RUNNING not in RUN_MOVES[ended]


@pytest.mark.parametrize("kind", TABLES)
def test_is_legal_move_agrees_with_the_table_for_every_pair(kind: str) -> None:
    states, table = TABLES[kind]
    for old in states:
        for new in states:
            assert is_legal_move(old, new) == (new is old or new in table[old])


def test_states_of_different_kinds_are_never_mixed_up_although_their_words_are_equal() -> None:
    assert RunStatus.RUNNING == StepStatus.RUNNING  # type: ignore[comparison-overlap]
    with pytest.raises(TypeError, match="not statuses of the same kind"):
        is_legal_move(RunStatus.PENDING, StepStatus.RUNNING)
    with pytest.raises(TypeError, match="not statuses of the same kind"):
        is_legal_move(EntryKind.STEP, EntryKind.SLEEP)


def test_a_state_is_written_by_its_own_name() -> None:
    for states in (RunStatus, StepStatus, LetterStatus):
        for state in states:
            assert state.value == state.name


# -- the page --------------------------------------------------------------------------------------------


def section(title: str) -> str:
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None, f"{PAGE.name} has no section {title!r}"
    return found[1]


@pytest.mark.parametrize("kind", TABLES)
def test_the_page_lists_exactly_the_legal_moves_each_once(kind: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*) \|$", section(kind), re.M)
    assert len(rows) == len({(old, new) for old, new, _ in rows})
    assert {(old, new) for old, new, _ in rows} == moves(TABLES[kind][1])
    assert all(reason.endswith(".") for _, _, reason in rows)


@pytest.mark.parametrize("kind", TABLES)
def test_the_page_draws_exactly_the_legal_moves_each_once(kind: str) -> None:
    arrows = re.findall(r"^    (\w+) --> (\w+)$", section(kind), re.M)
    assert len(arrows) == len(set(arrows))
    assert set(arrows) == moves(TABLES[kind][1])
