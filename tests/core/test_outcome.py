"""Outcomes: everything that can happen, as values that cannot change afterwards."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from redrive.core import outcomes as module
from redrive.core.outcomes import OpenStep, Outcome, Place, RunView, Undoing
from redrive.core.states import EntryKind

OUTCOMES = typing.get_args(Outcome)
RECORDS = [
    one
    for one in vars(module).values()
    if dataclasses.is_dataclass(one) and one.__module__ == module.__name__
]


def test_every_record_about_a_run_is_an_outcome_and_nothing_else_is() -> None:
    about_a_run = {one for one in RECORDS if "run" in {field.name for field in dataclasses.fields(one)}}
    assert set(OUTCOMES) == about_a_run
    assert set(RECORDS) - about_a_run == {RunView, Place, OpenStep, Undoing}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_cannot_change(record: type) -> None:
    assert record.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert "__slots__" in vars(record)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.__name__)
def test_an_outcome_is_written_with_the_names_of_its_fields(outcome: type) -> None:
    with pytest.raises(TypeError, match="positional"):
        outcome(object())


def test_everything_the_module_is_for_is_exported() -> None:
    assert set(module.__all__) == {
        *(record.__name__ for record in RECORDS),
        "Outcome",
        "Wait",
    }


def test_an_open_step_is_one_that_executes_unless_it_is_said_to_wait() -> None:
    assert OpenStep(place=Place(0, "/a#0", EntryKind.STEP, "a"), attempt=1).executing
