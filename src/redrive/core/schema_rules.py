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

__all__ = ["faults", "finds", "is_of", "matches", "phrase"]

_WORDS = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_BOUNDS: tuple[tuple[str, str, str, Callable[[Any, Any], bool]], ...] = (
    ("minimum", "of at least", "a smaller one", operator.ge),
    ("maximum", "of at most", "a larger one", operator.le),
    ("exclusiveMinimum", "above", "one that is not", operator.gt),
    ("exclusiveMaximum", "below", "one that is not", operator.lt),
)
_NOT_FINITE = ("Infinity", "-Infinity", "NaN")
_BYTES = ("binary", "base64", "base64url")
_SHOWN_OPTIONS = 10


def is_of(value: JSON, schema: dict[str, Any]) -> bool:
    """True if the value is of a kind that the schema names, or if it names none."""
    kinds = schema.get("type")
    if isinstance(kinds, list) and kinds:
        return any(_is(value, kind) for kind in kinds)
    return _is(value, kinds)


def faults(value: JSON, schema: dict[str, Any]) -> Iterator[str]:
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
            yield from _size_faults(len(value), schema, "Items", "item")
            if schema.get("uniqueItems") is True and len(set(map(_comparable, value))) < len(value):
                yield "expected every item once, found one twice"
        case dict():
            yield from _size_faults(len(value), schema, "Properties", "field")


def finds(value: JSON) -> str:
    """What kind of value this is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a yes or no"
        case int() | float():
            return "a whole number" if _is(value, "integer") else "a number with a fraction"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "something that JSON does not have"


def phrase(schema: dict[str, Any]) -> str:
    """What a schema wants, as far as it says so itself."""
    options = _options(schema)
    if options is not None:
        return _either(options)
    kinds = schema.get("type")
    named = kinds if isinstance(kinds, list) else [kinds]
    return " or ".join(_WORDS[kind] for kind in named if kind in _WORDS) or "a value"


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


def _options_fault(value: JSON, schema: dict[str, Any]) -> Iterator[str]:
    options = _options(schema)
    if options is not None and _comparable(value) not in set(map(_comparable, options)):
        kinds = {finds(option) for option in options}
        found = "a different value" if finds(value) in kinds else finds(value)
        yield f"expected {_either(options)}, found {found}"


def _either(options: list[Any]) -> str:
    shown = [json.dumps(option, ensure_ascii=False) for option in options[:_SHOWN_OPTIONS]]
    more = len(options) - len(shown)
    return " or ".join(shown) + (f" or one of {more} more" if more else "")


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


def _number_faults(value: float, schema: dict[str, Any]) -> Iterator[str]:
    for key, words, found, fits in _BOUNDS:
        bound = schema.get(key)
        if _is_number(bound) and not fits(value, bound):
            yield f"expected a number {words} {bound}, found {found}"
    step = schema.get("multipleOf")
    if _is_number(step) and step > 0 and not _is_multiple(value, step):
        yield f"expected a multiple of {step}, found a number between two"


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


def _text_faults(value: str, schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("format") not in _BYTES:
        yield from _size_faults(len(value), schema, "Length", "character")
    if not matches(schema.get("pattern"), value):
        yield f"expected text that matches /{schema['pattern']}/, found other text"


def _size_faults(size: int, schema: dict[str, Any], key: str, unit: str) -> Iterator[str]:
    least, most = schema.get(f"min{key}"), schema.get(f"max{key}")
    if _is_number(least) and size < least:
        yield f"expected at least {_count(least, unit)}, found {size}"
    if _is_number(most) and size > most:
        yield f"expected at most {_count(most, unit)}, found {size}"


def _count(number: float, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None
