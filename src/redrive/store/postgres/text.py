"""Text that PostgreSQL can hold: all of Unicode but NUL, which is written as two other characters.

JSON escapes NUL by itself, so this costs a look at each payload and hardly ever more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["as_given", "as_stored"]

_MARK = "\x1a"  # SUBSTITUTE: the control character made for this
_OUT = {"\0": f"{_MARK}0", _MARK: f"{_MARK}1"}
_BACK = {written: letter for letter, written in _OUT.items()}
_LETTER = re.compile(f"[\0{_MARK}]")
_WRITTEN = re.compile(f"{_MARK}[01]")


def as_stored(text: Any) -> Any:
    """The text as it is written; what is no text passes."""
    if type(text) is str and ("\0" in text or _MARK in text):
        return _LETTER.sub(lambda found: _OUT[found[0]], text)
    return text


def as_given(row: Iterable[Any]) -> list[Any]:
    """The values of a row with their texts as they were given."""
    return [
        _WRITTEN.sub(lambda found: _BACK[found[0]], value) if type(value) is str and _MARK in value else value
        for value in row
    ]
