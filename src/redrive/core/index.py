"""Fields of an input to search by: what is declared, and the texts that are kept of it.

    @app.workflow(index=["order_id", "customer.email"])

A field is a parameter's name and, behind dots, the names inside its value. A text, number or truth value is
kept; of a list each of these is; anything else, and what is not there, cannot be searched for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from redrive.errors import InputError

__all__ = ["MOST_FIELDS", "index_text", "index_values", "parts", "reached"]

MOST_FIELDS = 16
_MOST_VALUES = 100  # of one field; a longer list is searched by its beginning
_COVERED = "det1:"  # what the sealed store makes of a value; a filter is made more than once on its way
_LONGEST = 200  # an index of a database holds no long texts, and not every sign: of those a hash is kept


def parts(field: str) -> list[str]:
    """The names that lead to a field."""
    return field.split(".")


def index_values(text: str, fields: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What is kept of an input: pairs of field and value, each once. Nothing of one that cannot be read."""
    if not fields:
        return ()
    try:
        data = json.loads(text)
    except ValueError:
        return ()
    found = ((field, value) for field in fields for value in _texts(reached(data, field)))
    return tuple(dict.fromkeys(found))


def index_text(value: Any) -> str:
    """A value as it is kept and looked for."""
    if not isinstance(value, str | int | float):
        raise InputError(f"fields to search by hold texts, numbers and truth values, not {value!r:.60}")
    text = value if isinstance(value, str) else json.dumps(value)
    if (len(text) <= _LONGEST and text.isprintable()) or text.startswith(_COVERED):
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def reached(data: Any, field: str) -> Any:
    """The value of a field in an input; None if it is not there."""
    for name in parts(field):
        if not isinstance(data, dict):
            return None
        data = data.get(name)
    return data


def _texts(value: Any) -> Iterator[str]:
    values = value[:_MOST_VALUES] if isinstance(value, list) else [value]
    return (index_text(each) for each in values if isinstance(each, str | int | float))
