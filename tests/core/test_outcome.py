"""Outcomes: everything that can happen to a run, as immutable values."""

from __future__ import annotations

import typing

import msgspec
import pytest
from cases import each

from redrive.core import outcomes as module
from redrive.core.outcomes import EntryRef, OpenEntry, Outcome, PlannedFollowUp, RunView
from redrive.core.states import EntryKind

OUTCOMES = typing.get_args(Outcome)
RECORDS = [
    one
    for one in vars(module).values()
    if isinstance(one, type) and issubclass(one, msgspec.Struct) and one.__module__ == module.__name__
    if not one.__name__.startswith("_")
]


def test_every_record_about_a_run_is_an_outcome_and_nothing_else_is() -> None:
    about_a_run = {one for one in RECORDS if "run" in one.__struct_fields__}
    assert set(OUTCOMES) == about_a_run
    assert set(RECORDS) - about_a_run == {RunView, EntryRef, OpenEntry, PlannedFollowUp}


@each("record", RECORDS)
def test_a_record_cannot_change(record: type) -> None:
    assert record.__struct_config__.frozen  # type: ignore[attr-defined]
    assert not hasattr(record, "__dict__") or "__dict__" not in vars(record)


@each("outcome", OUTCOMES)
def test_an_outcome_is_written_with_the_names_of_its_fields(outcome: type) -> None:
    with pytest.raises(TypeError, match="positional"):
        outcome(object())


def test_an_open_step_counts_as_executing_by_default() -> None:
    assert OpenEntry(place=EntryRef(0, "/a#0", EntryKind.STEP, "a"), attempt=1).executing
