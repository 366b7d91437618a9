"""What a JSON Schema asks of one value by itself, and how to say it; `schema` walks the rest."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeGuard

from redrive.core.redact import JSON
from redrive.reasons import Reason, ReasonCode

__all__ = ["expected", "faults", "finds", "is_of", "matches", "phrase"]

_KINDS = {
    "object": Reason(ReasonCode.KIND_OBJECT),
    "array": Reason(ReasonCode.KIND_LIST),
    "string": Reason(ReasonCode.KIND_TEXT),
    "integer": Reason(ReasonCode.KIND_INTEGER),
    "number": Reason(ReasonCode.KIND_NUMBER),
    "boolean": Reason(ReasonCode.KIND_BOOLEAN),
    "null": Reason(ReasonCode.KIND_NULL),
}
_BOUNDS: tuple[tuple[str, ReasonCode, Callable[[Any, Any], bool]], ...] = (
    ("minimum", ReasonCode.EXPECTED_AT_LEAST, operator.ge),
    ("maximum", ReasonCode.EXPECTED_AT_MOST, operator.le),
    ("exclusiveMinimum", ReasonCode.EXPECTED_ABOVE, operator.gt),
    ("exclusiveMaximum", ReasonCode.EXPECTED_BELOW, operator.lt),
)
_SIZES = {
    "Items": (ReasonCode.TOO_FEW_ITEMS, ReasonCode.TOO_MANY_ITEMS),
    "Properties": (ReasonCode.TOO_FEW_FIELDS, ReasonCode.TOO_MANY_FIELDS),
    "Length": (ReasonCode.TEXT_TOO_SHORT, ReasonCode.TEXT_TOO_LONG),
}
_NOT_FINITE = ("Infinity", "-Infinity", "NaN")
_BYTES = ("binary", "base64", "base64url")
_SHOWN_OPTIONS = 10


def is_of(value: JSON, schema: dict[str, Any]) -> bool:
    """True if the value is of a kind that the schema names, or if it names none."""
    kinds = schema.get("type")
    if isinstance(kinds, list) and kinds:
        return any(_is(value, kind) for kind in kinds)
    return _is(value, kinds)


def faults(value: JSON, schema: dict[str, Any]) -> Iterator[Reason]:
    """What is wrong with a value of the right kind, apart from what is inside it."""
    yield from _options_fault(value, schema)
    match value:
        case bool() | None:
            return
        case int() | float():
            yield from _number_faults(value, schema)
        case str():
            yield from _text_faults(value, schema)
        case list():
            yield from _size_faults(len(value), schema, "Items")
            if schema.get("uniqueItems") is True and len(set(map(_comparable, value))) < len(value):
                yield Reason(ReasonCode.EXPECTED_UNIQUE)
        case dict():
            yield from _size_faults(len(value), schema, "Properties")


def expected(wanted: Reason, found: Reason) -> Reason:
    """Return the fault of a value that is another one than the schema wants."""
    return Reason(ReasonCode.EXPECTED, expected=wanted, found=found)


def finds(value: JSON) -> Reason:
    """Return what kind of value this is."""
    match value:
        case None:
            return _KINDS["null"]
        case bool():
            return _KINDS["boolean"]
        case int() | float():
            return _KINDS["integer"] if _is(value, "integer") else Reason(ReasonCode.KIND_FRACTION)
        case str():
            return _KINDS["string"]
        case list():
            return _KINDS["array"]
        case dict():
            return _KINDS["object"]
        case _:
            return Reason(ReasonCode.KIND_FOREIGN)


def phrase(schema: dict[str, Any]) -> Reason:
    """Return what a schema wants, as far as it says so itself."""
    options = _options(schema)
    if options is not None:
        return _either(options)
    kinds = schema.get("type")
    named = [_KINDS[kind] for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind in _KINDS]
    if len(named) > 1:
        return Reason(ReasonCode.ONE_OF, options=tuple(named), more=None)
    return named[0] if named else Reason(ReasonCode.KIND_VALUE)


def matches(pattern: Any, text: str) -> bool:
    """True if the pattern is found in the text, or cannot be read."""
    compiled = _compiled(pattern) if isinstance(pattern, str) else None
    return compiled is None or compiled.search(text) is not None


def _is(value: JSON, kind: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "integer":
            return number and (isinstance(value, int) or value.is_integer())
        case "number":
            return number or value in _NOT_FINITE
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case _:
            return True


# -- options -------------------------------------------------------------------------------------------


def _options(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


def _options_fault(value: JSON, schema: dict[str, Any]) -> Iterator[Reason]:
    options = _options(schema)
    if options is not None and _comparable(value) not in set(map(_comparable, options)):
        kinds = {finds(option) for option in options}
        found = Reason(ReasonCode.KIND_OTHER_VALUE) if finds(value) in kinds else finds(value)
        yield expected(_either(options), found)


def _either(options: list[Any]) -> Reason:
    shown = tuple(json.dumps(option, ensure_ascii=False) for option in options[:_SHOWN_OPTIONS])
    return Reason(ReasonCode.ONE_OF, options=shown, more=len(options) - len(shown) or None)


def _comparable(value: JSON) -> Any:
    """Equal and hashable exactly if two values are the same JSON: 1 is 1.0, but neither is true."""
    match value:
        case bool():
            return ("bool", value)
        case list():
            return ("list", *map(_comparable, value))
        case dict():
            return ("dict", frozenset((key, _comparable(inner)) for key, inner in value.items()))
        case _:
            return value


# -- numbers, text, sizes ------------------------------------------------------------------------------


def _number_faults(value: float, schema: dict[str, Any]) -> Iterator[Reason]:
    for key, code, fits in _BOUNDS:
        bound = schema.get(key)
        if _is_number(bound) and not fits(value, bound):
            yield Reason(code, bound=bound)
    step = schema.get("multipleOf")
    if _is_number(step) and step > 0 and not _is_multiple(value, step):
        yield Reason(ReasonCode.EXPECTED_MULTIPLE, step=step)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_multiple(value: float, step: float) -> bool:
    try:
        return _exact(value) % _exact(step) == 0
    except ValueError:  # not finite
        return True


def _exact(number: float) -> Fraction:
    """The number as it is written: 0.3 is three times 0.1."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _text_faults(value: str, schema: dict[str, Any]) -> Iterator[Reason]:
    if schema.get("format") not in _BYTES:
        yield from _size_faults(len(value), schema, "Length")
    if not matches(schema.get("pattern"), value):
        yield Reason(ReasonCode.EXPECTED_PATTERN, pattern=schema["pattern"])


def _size_faults(size: int, schema: dict[str, Any], key: str) -> Iterator[Reason]:
    least, most = schema.get(f"min{key}"), schema.get(f"max{key}")
    too_few, too_many = _SIZES[key]
    if _is_number(least) and size < least:
        yield Reason(too_few, n=least, found=size)
    if _is_number(most) and size > most:
        yield Reason(too_many, n=most, found=size)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None
