"""Records made quickly are the same records."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from redrive.core.outcomes import Place, Returned
from redrive.core.quick import in_order, quick
from redrive.core.transitions import EntryWrite, Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    weight: int
    label: str = "none"
    fragile: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


QuickParcel, QuickPoint = quick(Parcel), quick(Point)
ParcelInOrder = in_order(Parcel)


def test_what_is_made_is_the_record_itself() -> None:
    slowly, quickly = Parcel(weight=2, label="vase"), QuickParcel(weight=2, label="vase")
    assert type(quickly) is Parcel
    assert quickly == slowly
    assert hash(quickly) == hash(slowly)
    assert repr(quickly) == repr(slowly)


def test_what_is_left_out_has_its_default() -> None:
    assert QuickParcel(weight=1) == Parcel(weight=1, label="none", fragile=False)


def test_it_cannot_change_afterwards() -> None:
    parcel = QuickParcel(weight=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        parcel.weight = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del parcel.label
    assert parcel == Parcel(weight=1)


def test_it_can_be_replaced_like_any_other() -> None:
    assert dataclasses.replace(QuickParcel(weight=1), fragile=True) == Parcel(weight=1, fragile=True)


def test_fields_are_given_as_the_record_wants_them() -> None:
    assert QuickPoint(1, 2) == Point(1, 2)
    with pytest.raises(TypeError, match="positional"):
        QuickParcel(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="weight"):
        QuickParcel()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="colour"):
        QuickParcel(weight=1, colour="red")  # type: ignore[call-arg]


def test_making_one_changes_nothing_about_the_class() -> None:
    QuickParcel(weight=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Parcel(weight=1).weight = 2  # type: ignore[misc]
    assert [field.name for field in dataclasses.fields(Parcel)] == ["weight", "label", "fragile"]


@pytest.mark.parametrize("record", [Place, Returned, EntryWrite, Transition])
def test_the_records_made_quickly_need_nothing_that_would_be_left_out(record: type) -> None:
    assert not hasattr(record, "__post_init__")
    assert all(
        field.default_factory is dataclasses.MISSING and field.init for field in dataclasses.fields(record)
    )


def test_a_row_is_taken_in_the_order_of_the_fields() -> None:
    made = ParcelInOrder(2, "vase")
    assert type(made) is Parcel
    assert made == Parcel(weight=2, label="vase", fragile=False)
    with pytest.raises(TypeError):
        ParcelInOrder(1, "a", True, "too much")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.weight = 3  # type: ignore[misc]
