"""Helpers for records, which treat Structs and dataclasses alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from redrive.core.transitions import EntryWrite
from redrive.record_fields import as_dict, field_names, is_record, replace
from redrive.store.filters import RunFilter


class Struct(msgspec.Struct, frozen=True):
    to: str
    items: list[Any]
    note: Unknown = ""  # type: ignore[name-defined]  # noqa: F821 - as a name imported for type checkers


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    to: str
    items: list[Any]
    note: str = ""


@pytest.mark.parametrize("kind", [Struct, Plain])
def test_both_kinds_are_read_and_replaced_alike(kind: type[Any]) -> None:
    items = [Plain("bob", [])]
    record = kind("ann", items)
    assert field_names(kind) == field_names(record) == ("to", "items", "note")
    assert as_dict(record) == {"to": "ann", "items": items, "note": ""}
    assert as_dict(record)["items"] is items
    changed = replace(record, to="eve")
    assert (type(changed), changed.to, changed.items) == (kind, "eve", items)
    assert record.to == "ann"
    with pytest.raises(TypeError, match="colour"):
        replace(record, colour="red")
    with pytest.raises(AttributeError):
        record.to = "eve"


def test_instances_are_records_and_classes_are_not() -> None:
    assert is_record(Struct("ann", []))
    assert is_record(Plain("ann", []))
    assert not any(map(is_record, (Struct, Plain, {}, "ann", None)))


def test_a_replaced_filter_is_checked_again() -> None:
    with pytest.raises(Exception, match="NUL"):
        replace(RunFilter(workflow="w"), workflow="a\0b")


def test_records_without_cycles_are_not_tracked_by_the_collector() -> None:
    assert EntryWrite.__struct_config__.gc is False
