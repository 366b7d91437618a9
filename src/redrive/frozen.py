"""Frozen dataclasses that cost little to define.

Python's own `dataclass` writes six functions for every class and compiles each of them: half of the time that
`from redrive import Redrive` took, for hundreds of classes of which a process makes a few dozen. Here a class
shares what it can, and its `__init__`, the one function that must be its own, is written when somebody first
asks for it. Nothing else is different: fields, `replace`, `match`, copies, signatures.

Classes whose signature the documentation shows use Python's own, which is the one that its generator knows.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[type], Any]:
        """Make a frozen, slotted dataclass, as `dataclasses.dataclass` does with these arguments."""
        if not (frozen and slots):
            raise TypeError("only frozen and slotted dataclasses; `dataclasses.dataclass` makes the others")
        return lambda cls: _made(cls, kw_only)


def _made(cls: type, kw_only: bool) -> Any:
    cls.__doc__ = cls.__doc__ or cls.__name__  # else Python works out the signature, to write it there
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    fields = dataclasses.fields(made)
    compared = _values([each.name for each in fields if each.compare])
    hashed = _values([each.name for each in fields if (each.compare if each.hash is None else each.hash)])
    own = {"__init__": _Init(made), "__eq__": _equals(compared), "__hash__": _hashes(hashed)}
    for name, method in {**own, **_SHARED}.items():
        # What the class says itself holds; Python makes its hash None when it says what it equals.
        if vars(made).get(name) is None:
            setattr(made, name, method)
    for said in ("init", "repr", "eq", "frozen"):
        setattr(made.__dataclass_params__, said, True)
    return made


# -- what each class has of its own --------------------------------------------------------------------


class _Init:
    """Stands where `__init__` will be, until somebody looks for it."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type) -> Any:
        if vars(self._cls)["__init__"] is self:
            self._cls.__init__ = _written(self._cls)  # from now on it is that
        return vars(self._cls)["__init__"].__get__(instance, owner)


def _written(cls: Any) -> Any:
    """The `__init__` that Python writes for a frozen class with these fields."""
    fields = dataclasses.fields(cls)
    alike: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__annotations__": {each.name: each.type for each in fields},
        **{each.name: each for each in fields},
    }
    if hasattr(cls, "__post_init__"):
        alike["__post_init__"] = cls.__post_init__
    whole: Any = dataclasses.dataclass(frozen=True, repr=False, eq=False)(type(cls.__name__, (), alike))
    return whole.__init__


def _values(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """What reads these fields, as a tuple however few they are."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


def _equals(values: Callable[[object], tuple[Any, ...]]) -> Callable[[object, object], bool]:
    def __eq__(self: object, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hashes(values: Callable[[object], tuple[Any, ...]]) -> Callable[[object], int]:
    def __hash__(self: object) -> int:
        return hash(values(self))

    return __hash__


# -- what all classes share ----------------------------------------------------------------------------


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = [f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr]
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _no_setting(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _no_deleting(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _restored(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


_SHARED = {
    "__repr__": _repr,
    "__setattr__": _no_setting,
    "__delattr__": _no_deleting,
    "__getstate__": _state,
    "__setstate__": _restored,
}
