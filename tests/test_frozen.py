"""Dataclasses that are cheap to define are in everything else what Python's own would be."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import typing
from dataclasses import field
from typing import Any

import pytest
from pydantic import TypeAdapter

from redrive import frozen

MAKERS = {"ours": frozen.dataclass, "python's": dataclasses.dataclass}


def made(make: Any, *, kw_only: bool) -> Any:
    """The same class by one of the two."""

    @make(frozen=True, slots=True, kw_only=kw_only)
    class Parcel:
        to: str
        weight: float = 1.0
        items: list[str] = field(default_factory=list, hash=False)
        note: str = field(default="", compare=False, repr=False)
        price: int = field(default=0, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "price", int(self.weight * 10))

    return Parcel


def told(make: Any, *, kw_only: bool) -> list[Any]:
    """All that a class of one of the two shows of itself."""
    cls = made(make, kw_only=kw_only)
    one, same, other = cls(to="ann", note="x"), cls(to="ann", note="y"), cls(to="ann", weight=2.0)
    return [
        str(inspect.signature(cls)),
        [(each.name, each.type, each.kw_only) for each in dataclasses.fields(cls)],
        cls.__match_args__,
        cls.__slots__,
        typing.get_type_hints(cls.__init__),
        repr(one),
        (one == same, one == other, one == "ann", hash(one) == hash(same), hash(one) == hash(other)),
        dataclasses.asdict(dataclasses.replace(other, to="bob")),
        repr(copy.copy(one)),
        copy.deepcopy(one) == one,
        TypeAdapter(cls).dump_python(TypeAdapter(cls).validate_python({"to": "ann", "weight": "3"})),
        [refusal(lambda: setattr(one, "to", "eve")), refusal(lambda: delattr(one, "to")), refusal(cls)],
        (cls.__dataclass_params__.frozen, cls.__dataclass_params__.eq, cls.__init__.__qualname__),
        refusal(lambda: cls("ann", 1.0)),
    ]


def refusal(attempt: Any) -> str | None:
    try:
        attempt()
    except (AttributeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("kw_only", [False, True])
def test_nothing_but_the_price_is_different(kw_only: bool) -> None:
    ours, pythons = (told(make, kw_only=kw_only) for make in MAKERS.values())
    assert ours == pythons


@frozen.dataclass(frozen=True, slots=True)
class Empty:
    """Nothing."""


@frozen.dataclass(frozen=True, slots=True)
class Single:
    """One value, which need not equal itself."""

    value: Any


@frozen.dataclass(frozen=True, slots=True)
class Own:
    """Says itself what it equals and how it looks."""

    value: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.value.lower() == other.value.lower()

    def __repr__(self) -> str:
        return "own"


def test_few_fields_compare_as_many_do() -> None:
    nan = float("nan")
    assert (Empty() == Empty(), Single(nan) == Single(nan), Single(1) == Single(2)) == (True, True, False)
    assert Single(()) != Empty()
    assert len({Empty(), Empty(), Single(1), Single(1), Single(2)}) == 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(Single([]))


def test_what_a_class_says_itself_holds() -> None:
    assert (Own("A") == Own("a"), Own("a") == Own("b"), repr(Own("a"))) == (True, False, "own")
    assert hash(Own("a")) == hash(Own("a"))


def test_a_record_that_holds_itself_can_be_shown() -> None:
    ring = Single([])
    ring.value.append(ring)
    assert repr(ring) == "Single(value=[...])"


def test_init_is_written_when_somebody_looks_for_it() -> None:
    cls = made(frozen.dataclass, kw_only=True)
    assert not inspect.isfunction(vars(cls)["__init__"])
    assert cls(to="ann").price == 10
    assert inspect.isfunction(vars(cls)["__init__"])
    with pytest.raises(dataclasses.FrozenInstanceError, match="'new'"):
        cls(to="ann").new = 1


def test_what_is_not_frozen_is_left_to_python() -> None:
    make: Any = frozen.dataclass
    with pytest.raises(TypeError, match="frozen and slotted"):
        make(frozen=True, slots=False)
