"""Values without a schema: scalars written directly, and whatever `Any` may hold as plain JSON."""

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

from pydantic import BaseModel
from pydantic_core import from_json, to_json, to_jsonable_python

MAX_DEPTH = 200
"""Levels of nesting that can be read back: the JSON parser's own limit."""

Writer = Callable[[Any], str | None]
"""Writes a scalar, or gives None if it needs the careful way."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_INT_LIMIT = 1 << 4096  # far below the 4,300 digits that Python and the parser refuse
_INFINITY = float("inf")


def _write_str(value: str) -> str | None:
    return encode_basestring(value) if value.isascii() or not has_lone_surrogates(value) else None


def _write_int(value: int) -> str | None:
    return repr(value) if -_INT_LIMIT < value < _INT_LIMIT else None


def _write_float(value: float) -> str | None:
    return repr(value) if -_INFINITY < value < _INFINITY else None


SCALAR_WRITERS: Mapping[type, Writer] = {
    type(None): lambda _: "null",
    bool: lambda value: "true" if value else "false",
    int: _write_int,
    float: _write_float,
    str: _write_str,
}


def decline_write(value: Any) -> None:
    """The writer for types that have no short way."""


def write_any(value: Any) -> str | None:
    """Plain JSON for any value, proved to be readable."""
    try:
        text = dump_json(value)
        load_json(text)
    except Exception:  # the longer way explains it
        return None
    return text


def _write_text_keyed(value: dict[Any, Any]) -> str | None:
    return write_any(value) if all(type(key) is str for key in value) else None


def find_writers(hint: Any) -> tuple[Mapping[type, Writer], Writer]:
    """Short ways to write values of exactly these types under this hint, and of all other types."""
    if hint is Any:
        return SCALAR_WRITERS, write_any
    union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    short: dict[type, Writer] = {}
    for member in typing.get_args(hint) if union else (hint,):
        container = next((write for known, write in _CONTAINERS if known == member), None)
        if container is not None:
            short[typing.get_origin(member) or member] = container
        elif isinstance(member, type) and member in SCALAR_WRITERS:
            short[member] = SCALAR_WRITERS[member]
        else:  # a string may be one of several members then
            return {}, decline_write
    return short, decline_write


def dump_json(value: Any) -> str:
    """Compact JSON for a value of any kind. Raises ValueError, TypeError or RecursionError if it has none."""
    try:
        text = _encode(value)
    except TypeError:  # perhaps only a key that JSON lacks
        text = _encode(_simplify_tree(value))
    return text if text.isascii() else _escape_surrogates(text)


def dump_typed(tree: Any) -> str:
    """Compact JSON for what a schema already took apart: the way that minds lone surrogates."""
    return _escape_surrogates(_encode(_simplify_tree(tree, inf_nan=True)))


def to_plain_json(value: Any) -> Any:
    """The plain JSON value that `any_text` would be read back as."""
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
    """The same JSON text with every lone surrogate as an escape, so that it is valid UTF-8."""
    if not has_lone_surrogates(text):
        return text
    if has_surrogate_pair(text):
        raise ValueError("two surrogates would become one character")
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def has_lone_surrogates(text: str) -> bool:
    """True if the text is not valid Unicode."""
    return _SURROGATE.search(text) is not None


def has_surrogate_pair(text: str) -> bool:
    """True if two surrogates follow each other that JSON would read as one character."""
    return _SURROGATE_PAIR.search(text) is not None


def sort_set(values: Any) -> list[Any]:
    """The members in an order that does not depend on hash seeds."""
    return sorted(values, key=dump_json)


def _simplify_object(value: Any) -> Any:
    """One step from an object that JSON lacks towards one that it has."""
    if isinstance(value, set | frozenset):
        return sort_set(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(round_trip=True, warnings=False)
    if isinstance(value, Iterator):  # pydantic would read it to its end
        raise ValueError("an iterator is no data")
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


# What JSONEncoder.encode makes anew for every call. No markers: the recursion limit ends a circle.
_encode_chunks = c_make_encoder(None, _simplify_object, encode_basestring, None, ":", ",", False, False, False)


def _encode(value: Any) -> str:
    return "".join(_encode_chunks(value, 0))


# Pairs, as a hint need not be hashable.
_CONTAINERS: tuple[tuple[Any, Writer], ...] = (
    (dict, write_any),
    (dict[str, Any], _write_text_keyed),
    (list, write_any),
    (list[Any], write_any),
)
