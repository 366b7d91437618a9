"""Values as they are written on a page."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from redrive.frozen import dataclass
from redrive.server.pages.leaves import leaves

__all__ = ["MOST", "Field", "Begun", "beginning", "fields", "iso", "pretty", "utc", "whole"]

Field = tuple[str, str]

MOST = 20_000
"""Characters of a payload that a page shows."""

_SHORT = 200  # of a list that stands in one cell


def pretty(value: Any) -> str:
    """JSON for people to read."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class Begun:
    """JSON for people to read, or its beginning where `cut`."""

    text: str
    cut: bool


def beginning(value: Any) -> Begun:
    """A payload as a page shows it. Of a large one no more is written than is shown."""
    parts: list[str] = []
    left = MOST
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=str).iterencode(value):
        parts.append(part[:left])
        left -= len(part)
        if left < 0:
            return Begun("".join(parts), cut=True)
    return Begun("".join(parts), cut=False)


def fields(value: Any) -> list[Field] | None:
    """The plain values of an object, for a table; None where a table would not do."""
    found = leaves(value)
    if found is None or any(leaf.kind == "json" and len(leaf.text) > _SHORT for leaf in found):
        return None
    return [(leaf.label, "null" if leaf.value is None else leaf.text) for leaf in found]


def utc(when: datetime) -> str:
    """A moment, exactly."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def iso(when: datetime) -> str:
    """A moment for programs."""
    return f"{when.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def whole(number: int) -> str:
    """A number with its thousands apart, by a space that does not break."""
    return f"{number:,}".replace(",", "\u202f")
