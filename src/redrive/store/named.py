"""Records as their fields by name, much faster than `dataclasses.asdict`, which copies what is in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any

__all__ = ["named"]


def named(record: Any) -> dict[str, Any]:
    """The fields of a record by name; what is in them stays as it is."""
    kind: Any = type(record)
    names, values = _fields(kind)
    return dict(zip(names, values(record), strict=True))


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(field.name for field in fields(kind))
    return names, attrgetter(*names)
