"""Text that PostgreSQL can hold: all of Unicode but NUL, which is written as two other characters.

JSON escapes NUL by itself, so this costs a look at each payload and hardly ever more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["all_stored", "as_given", "as_stored"]

_MARK = "\x1a"  # SUBSTITUTE: the control character made for this
_OUT = {"\0": f"{_MARK}0", _MARK: f"{_MARK}1"}
_BACK = {written: letter for letter, written in _OUT.items()}
_ESCAPES = tuple(json.dumps(letter)[1:-1] for letter in _OUT)
_LETTER = re.compile(f"[\0{_MARK}]")
_WRITTEN = re.compile(f"{_MARK}[01]")


def as_stored(text: Any) -> Any:
    """The text as it is written; what is no text passes."""
    if type(text) is str and ("\0" in text or _MARK in text):
        return _LETTER.sub(lambda found: _OUT[found[0]], text)
    return text


def as_given(row: Sequence[Any], looked_at: Sequence[Any] | None = None) -> Sequence[Any]:
    """The values of a row with their texts as they were given; nearly always the row itself.

    Where there are many rows, only those values are looked at that may need it.
    """
    for value in row if looked_at is None else looked_at:
        if type(value) is str and _MARK in value:
            return [_given(value) for value in row]
    return row


def all_stored(told: str) -> bool:
    """True if nothing in this JSON needs to be written otherwise, which `json.dumps` makes easy to see."""
    return not any(escape in told for escape in _ESCAPES)


def _given(value: Any) -> Any:
    return _WRITTEN.sub(lambda found: _BACK[found[0]], value) if type(value) is str else value
