"""Values without a schema: fast writers for scalars, and plain JSON for values of any type and for records."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]  # typeshed lacks it
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic_core import from_json, to_json, to_jsonable_python

MAX_DEPTH = 200
"""Levels of nesting that can be read back; the JSON parser has this limit."""

Writer = Callable[[Any], str | None]
"""Writes a value, or returns None if it needs the codec of its schema."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_INT_LIMIT = 1 << 4096  # far below the 4,300 digits that Python and the parser refuse
_INFINITY = float("inf")


SCALAR_WRITERS: Mapping[type, Writer] = {
    type(None): lambda _: "null",
    bool: lambda value: "true" if value else "false",
    int: lambda value: repr(value) if -_INT_LIMIT < value < _INT_LIMIT else None,
    float: lambda value: repr(value) if -_INFINITY < value < _INFINITY else None,
    str: lambda value: encode_basestring(value) if value.isascii() or not has_lone_surrogates(value) else None,
}


def decline_write(value: Any) -> None:
    """Return None for a value whose type has no fast writer."""


def write_any(value: Any) -> str | None:
    """Write plain JSON that can be read back, or return None."""
    try:
        text = dump_json(value)
        load_json(text)
    except Exception:  # the codec of the schema explains the problem
        return None
    return text


def find_writers(hint: Any) -> tuple[Mapping[type, Writer], Writer]:
    """Return the fast writers for a hint: by exact type, and one for all other types."""
    if hint is Any:
        return SCALAR_WRITERS, write_any
    union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    by_type: dict[type, Writer] = {}
    for member in typing.get_args(hint) if union else (hint,):
        container = next((write for known, write in _CONTAINERS if known == member), None)
        if container is not None:
            by_type[typing.get_origin(member) or member] = container
        elif isinstance(member, type) and member in SCALAR_WRITERS:
            by_type[member] = SCALAR_WRITERS[member]
        else:  # a string may then belong to several members of the union
            return {}, decline_write
    return by_type, decline_write


def dump_json(value: Any) -> str:
    """Return compact JSON for any value. Raises ValueError, TypeError or RecursionError if it has none."""
    try:
        text = _encode(value)
    except TypeError:  # perhaps a key that is not a string
        text = _encode(_simplify_tree(value))
    return text if text.isascii() else _escape_surrogates(text)


def dump_typed(tree: Any) -> str:
    """Return compact JSON for the plain tree that a schema made of a value; lone surrogates become escapes."""
    return _escape_surrogates(_encode(_simplify_tree(tree, inf_nan=True)))


def to_plain_json(value: Any) -> Any:
    """Return the plain JSON value that is read back for a value of any type."""
    kind = type(value)
    if kind in SCALAR_WRITERS and (kind is not float or -_INFINITY < value < _INFINITY):
        return value
    return load_json(dump_json(value))


def load_json(text: str) -> Any:
    """Parse JSON, lone surrogates included. Raises ValueError or RecursionError."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        if r"\u" not in text:
            raise
        return json.loads(text)


def _escape_surrogates(text: str) -> str:
    """Write every lone surrogate of a JSON text as an escape, so that the text is valid UTF-8."""
    if not has_lone_surrogates(text):
        return text
    if has_surrogate_pair(text):
        raise ValueError("two surrogates would become one character")
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def has_lone_surrogates(text: str) -> bool:
    """Return True if the text is not valid Unicode."""
    return _SURROGATE.search(text) is not None


def has_surrogate_pair(text: str) -> bool:
    """Return True if JSON would read two neighbouring surrogates as one character."""
    return _SURROGATE_PAIR.search(text) is not None


def sort_set(values: Any) -> list[Any]:
    """Sort the members in an order that does not depend on hash seeds."""
    return sorted(values, key=dump_json)


def _simplify_object(value: Any) -> Any:
    """Convert an object that JSON does not have one level towards one that it has."""
    if isinstance(value, set | frozenset):
        return sort_set(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(round_trip=True, warnings=False)
    if isinstance(value, Iterator):  # pydantic would consume it
        raise ValueError("an iterator cannot be stored")
    return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")


def _simplify_tree(value: Any, depth: int = 0, *, inf_nan: bool = False) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {_text_key(key): _simplify_tree(item, depth + 1, inf_nan=inf_nan) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_simplify_tree(item, depth + 1, inf_nan=inf_nan) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return json.dumps(value) if inf_nan and not math.isfinite(value) else value
    return _simplify_tree(_simplify_object(value), depth + 1, inf_nan=inf_nan)


def _text_key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    written: dict[str, None] = from_json(to_json({key: None}, bytes_mode="base64"))
    return next(iter(written))


# JSONEncoder.encode would make this encoder again for every call. Without markers the recursion limit ends a cycle.
_encode_chunks = c_make_encoder(None, _simplify_object, encode_basestring, None, ":", ",", False, False, False)


def _encode(value: Any) -> str:
    return "".join(_encode_chunks(value, 0))


# Pairs instead of a dict, because a hint need not be hashable.
_CONTAINERS: tuple[tuple[Any, Writer], ...] = (
    (dict, write_any),
    (dict[str, Any], lambda value: write_any(value) if all(type(key) is str for key in value) else None),
    (list, write_any),
    (list[Any], write_any),
)


def to_json_text(value: object) -> str:
    """Write plain values as JSON: eight times as fast as `json`, for what is written with every failure."""
    return _ENCODER.encode(value).decode()


def _write_subclass(value: object) -> str:
    if isinstance(value, str):  # of a class of the user's
        return str.__str__(value)
    raise TypeError(f"{type(value).__qualname__} is not plain JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_write_subclass)
