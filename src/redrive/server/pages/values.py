"""Values as they are written on a page."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

__all__ = ["Field", "fields", "iso", "pretty", "utc", "whole"]

Field = tuple[str, str]

_FLAT = 40  # fields that a table shows


def pretty(value: Any) -> str:
    """JSON for people to read."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def fields(value: Any) -> list[Field] | None:
    """The fields of a flat object, for a table; None where a table would not do."""
    if not isinstance(value, dict) or not 0 < len(value) <= _FLAT:
        return None
    if any(isinstance(each, dict | list) or "\n" in str(each) for each in value.values()):
        return None
    return [(name, each if isinstance(each, str) else json.dumps(each)) for name, each in value.items()]


def utc(when: datetime) -> str:
    """A moment, exactly."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def iso(when: datetime) -> str:
    """A moment for programs."""
    return f"{when.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def whole(number: int) -> str:
    """A number with its thousands apart, by a space that does not break."""
    return f"{number:,}".replace(",", "\u202f")
