"""Checks of JSON values against the JSON Schema of a workflow's input or a step's result.

    {"order": {"lines": [{"price": "x"}]}}  ──find_faults──▶  order.lines[0].price: expected a number, found text

The schemas are those that the payload codec writes into the catalogue, which pydantic emits. Unknown
keywords, dangling references and patterns that Python cannot compile are ignored: the type decides when the
run decodes its input, and this check must not refuse what the type accepts. For the same reason it follows
the codec where the codec differs from the standard (ADR 0040 says why no library does this):

- "Infinity", "-Infinity" and "NaN" are numbers, as that is how the codec writes them.
- Text of a known `format`, such as a date, is what the type with this format reads.
- The length of bytes is not that of their base64 text, and is left to the type.
- `oneOf` is satisfied by several members: pydantic means a tagged union and tells them apart by the tag.
- A read-only field is computed and never stored, so it is not required.
"""

from __future__ import annotations

import contextlib
import json
import operator
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias, TypeGuard

import msgspec

from redrive.core.payload.faults import Path, format_path
from redrive.core.payload.plain_json import MAX_DEPTH
from redrive.core.payload.pydantic_adapters import FORMAT_EXAMPLES, has_format
from redrive.core.redact import JSON
from redrive.reasons import Reason, ReasonCode


class SchemaFault(msgspec.Struct, frozen=True):
    """A place in a value that the schema does not allow.

    It may be shown and logged: `why` quotes the schema and never the value. Only `path` has names from the value.
    """

    path: str
    """The place, such as `order.lines[2].price`; empty for the value itself."""
    why: Reason

    @property
    def reason(self) -> Reason:
        """The place and what is wrong with it."""
        return Reason(ReasonCode.FAULT, path=self.path or None, why=self.why)

    def __str__(self) -> str:
        return str(self.reason)


Schema: TypeAlias = Any
"""A JSON Schema: an object, true or false. Anything else accepts every value."""

_INTEGER_TEXT = re.compile(r"-?\d{1,40}", re.ASCII)

_FAST_OBJECT_KEYS = frozenset({"type", "properties", "required", "title", "description", "additionalProperties"})
_FAST_VALUE_KEYS = frozenset({"type", "title", "description", "default"})
_FAST_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool}

_TYPES = {
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
_PYTHON_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
_NOT_FINITE = ("Infinity", "-Infinity", "NaN")
_BYTES = ("binary", "base64", "base64url")
_MAX_SHOWN_OPTIONS = 10

_Visit: TypeAlias = tuple[JSON, Schema, Path]
_Key: TypeAlias = tuple[Path, int]
_Work: TypeAlias = Generator[_Visit, list[SchemaFault], list[SchemaFault]]


def find_faults(value: JSON, schema: Mapping[str, Any]) -> list[SchemaFault]:
    """Return everything in the value that the schema does not allow, in the order of the value."""
    if _fits_fast(value, schema):
        return []
    deep = find_too_deep(value)
    if deep is not None:
        return [_build_fault(deep, Reason(ReasonCode.NESTED_TOO_DEEP, most=MAX_DEPTH))]
    return list(dict.fromkeys(_SchemaCheck(schema).run(value, schema, ())))


def _fits_fast(value: JSON, schema: Any) -> bool:
    """Return True for the most common input, an object of plain values. False means that it must be checked."""
    if type(value) is not dict or type(schema) is not dict or not schema.keys() <= _FAST_OBJECT_KEYS:
        return False
    parts = schema.get("properties")
    if schema.get("type") != "object" or type(parts) is not dict:
        return False
    for name, each in value.items():
        part = parts.get(name)
        if type(part) is not dict or not part.keys() <= _FAST_VALUE_KEYS:
            return False
        kind = part.get("type")
        if type(kind) is not str or type(each) is not _FAST_TYPES.get(kind):
            return False
    needed = schema.get("required", ())
    return type(needed) in (list, tuple) and all(name in value for name in needed)


class _SchemaCheck:
    """Comparison of the places of one value with the parts of one schema, each pair once.

    Nesting and references cannot exhaust Python's stack, because the check keeps its own: a comparison yields
    the pairs whose faults it needs. A pair that is requested while it is being compared belongs to a
    reference that leads back to itself, and adds no faults.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[_Key, list[SchemaFault]] = {}

    def run(self, value: JSON, schema: Schema, path: Path) -> list[SchemaFault]:
        """Return the faults of one place and of all places below it."""
        stack: list[tuple[_Key, _Work]] = [((path, id(schema)), self._compare(value, schema, path))]
        answer: list[SchemaFault] | None = None
        while stack:
            key, work = stack[-1]
            try:
                visit = work.send(answer)  # type: ignore[arg-type]  # None starts it
            except StopIteration as done:
                stack.pop()
                self._known[key] = answer = done.value
                continue
            answer = self._known.get((visit[2], id(visit[1])))
            if answer is None:
                self._known[visit[2], id(visit[1])] = []
                stack.append(((visit[2], id(visit[1])), self._compare(*visit)))
        return answer or []

    def _compare(self, value: JSON, schema: Schema, path: Path) -> _Work:
        if schema is False:
            return [_build_fault(path, Reason(ReasonCode.EXPECTED_NOTHING, found=describe_value(value)))]
        if not isinstance(schema, dict):
            return []
        if not _has_type(value, schema):
            return [_build_fault(path, _expected_reason(self._describe(schema), describe_value(value)))]
        found = [_build_fault(path, fault) for fault in _value_faults(value, schema)]
        if isinstance(value, dict):
            found += self._missing_fields(value, schema, path)
            if schema.get("additionalProperties") is False:
                known = ", ".join(_as_dict(schema.get("properties"))) or "none"
                unknown = [key for key in value if not list(_iter_field_schemas(key, schema))]
                found += [_build_fault((*path, key), Reason(ReasonCode.FIELD_UNKNOWN, known=known)) for key in unknown]
            found += self._misnamed_fields(value, schema, path)
        for visit in self._iter_visits(value, schema, path):
            found += yield visit
        for branches in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(branches, list) and branches:
                found += yield from self._check_branches(value, branches, path)
        return found

    def _iter_visits(self, value: JSON, schema: dict[str, Any], path: Path) -> Iterator[_Visit]:
        """Yield more pairs to compare: the same place elsewhere in the schema, and the places below."""
        if "$ref" in schema:
            yield value, self._follow_reference(schema["$ref"]), path
        yield from ((value, each, path) for each in _as_list(schema.get("allOf")))
        if isinstance(value, dict):
            others = schema.get("additionalProperties")
            for key, inner in value.items():
                named = list(_iter_field_schemas(key, schema))
                for each in named or ([others] if isinstance(others, dict) else []):
                    yield inner, each, (*path, key)
        elif isinstance(value, list):
            first = _as_list(schema.get("prefixItems"))
            rest = schema.get("items", True)
            for index, inner in enumerate(value):
                yield inner, first[index] if index < len(first) else rest, (*path, index)

    def _check_branches(self, value: JSON, branches: list[Schema], path: Path) -> _Work:
        """Return no faults if one branch fits, else those of the branch that most likely applies."""
        answers = []
        for branch in branches:
            answers.append((yield value, branch, path))
            if not answers[-1]:
                return []
        candidates = [
            (_has_other_tag(value, self._resolve(branch)), len(answer), answer)
            for branch, answer in zip(branches, answers, strict=True)
            if _has_type(value, self._resolve(branch))
        ]
        if not candidates:
            return [_build_fault(path, _expected_reason(self._describe({"anyOf": branches}), describe_value(value)))]
        return min(candidates, key=lambda each: each[:2])[2]

    def _missing_fields(self, value: dict[str, JSON], schema: dict[str, Any], path: Path) -> Iterator[SchemaFault]:
        for name in _as_list(schema.get("required")):
            field = _as_dict(schema.get("properties")).get(name, {})
            if isinstance(name, str) and name not in value and not _as_dict(field).get("readOnly"):
                why = Reason(ReasonCode.FIELD_MISSING, expected=self._describe(field))
                yield _build_fault((*path, name), why)

    def _misnamed_fields(self, value: dict[str, JSON], schema: dict[str, Any], path: Path) -> Iterator[SchemaFault]:
        names = schema.get("propertyNames")
        if isinstance(names, dict):
            for key in value:
                # The codec writes the key 1 as "1", so a name that looks like a number may be either.
                values: list[JSON] = [key, int(key)] if _INTEGER_TEXT.fullmatch(key) else [key]
                if all(_SchemaCheck(self._root).run(each, names, ()) for each in values):
                    why = Reason(ReasonCode.FIELD_NAME_INVALID, expected=self._describe(names))
                    yield _build_fault((*path, key), why)

    def _follow_reference(self, reference: Any) -> Schema:
        """Return the part that a reference such as `#/$defs/Order` names, or True for a dangling one."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        part = self._root
        for name in reference[1:].split("/")[1:]:
            part = _as_dict(part).get(name.replace("~1", "/").replace("~0", "~"), True)
        return part

    def _resolve(self, schema: Schema) -> dict[str, Any]:
        """Follow references to the schema that they name."""
        seen: set[int] = set()
        while isinstance(schema, dict) and "$ref" in schema and id(schema) not in seen:
            seen.add(id(schema))
            schema = self._follow_reference(schema["$ref"])
        return _as_dict(schema)

    def _describe(self, schema: Schema, levels: int = 4) -> Reason:
        """Describe in a few words what the schema accepts."""
        schema = self._resolve(schema)
        branches = _as_list(schema.get("anyOf")) or _as_list(schema.get("oneOf"))
        if not branches or levels == 0:
            return _describe_type(schema)
        described = dict.fromkeys(self._describe(branch, levels - 1) for branch in branches)
        return Reason(ReasonCode.ONE_OF, options=tuple(described), more=None)


def _build_fault(path: Path, why: Reason) -> SchemaFault:
    return SchemaFault(format_path(path), why)


def _expected_reason(expected: Reason, found: Reason) -> Reason:
    return Reason(ReasonCode.EXPECTED, expected=expected, found=found)


def _iter_field_schemas(key: str, schema: dict[str, Any]) -> Iterator[Schema]:
    named = _as_dict(schema.get("properties"))
    if key in named:
        yield named[key]
    for pattern, each in _as_dict(schema.get("patternProperties")).items():
        if _matches(pattern, key):
            yield each


def _has_other_tag(value: JSON, schema: dict[str, Any]) -> bool:
    """Return True if the tag field of a union names another member."""
    if not isinstance(value, dict):
        return False
    fields = _as_dict(schema.get("properties")).items()
    return any(
        "const" in _as_dict(field) and value.get(name, field["const"]) != field["const"] for name, field in fields
    )


def find_too_deep(value: JSON) -> Path | None:
    """Return the path of something nested deeper than the codec can read back, or None."""
    level: list[tuple[Path, JSON]] = [((), value)]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return None
        level = [
            ((*path, part)[:1], each)  # the first name is enough to find the place
            for path, inner in level
            if isinstance(inner, dict | list)
            for part, each in (inner.items() if isinstance(inner, dict) else enumerate(inner))
        ]
    return next((path for path, each in level if isinstance(each, dict | list)), None)


def is_deeper(value: JSON, levels: int) -> bool:
    """Return True if lists and objects are nested deeper than `levels`."""
    level = [value]
    for _ in range(levels + 1):
        containers = [each for each in level if isinstance(each, dict | list)]
        level = [child for each in containers for child in (each.values() if isinstance(each, dict) else each)]
        if not level:
            return False
    return True


# An escaped character is matched as a whole: in `\\ud800` an escaped backslash stands before an ordinary text.
_SURROGATE = re.compile(r"\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)


def _has_surrogate(text: str) -> bool:
    return "\\ud" in text or "\\uD" in text


def _blank_surrogate(escape: re.Match[str]) -> str:
    return r"\u0020" if len(escape[0]) > 2 else escape[0]


def find_json_fault(text: str) -> str | None:
    """Return why a text is not JSON that can be stored and read back, for a sentence that begins with its name."""
    try:
        # With its numbers: one that is too large could not be read back. msgspec refuses lone surrogates, which
        # payloads may have.
        value = msgspec.json.decode(_SURROGATE.sub(_blank_surrogate, text) if _has_surrogate(text) else text)
        # Only a text with that many brackets can be nested too deeply.
        if text.count("[") + text.count("{") > MAX_DEPTH and is_deeper(value, MAX_DEPTH - 1):
            return f"is nested deeper than {MAX_DEPTH} levels"
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return "is not JSON"
    return None


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _has_type(value: JSON, schema: dict[str, Any]) -> bool:
    """Return True if the value has a type that the schema names, or if the schema names none."""
    kinds = schema.get("type")
    if isinstance(kinds, list) and kinds:
        return any(_is_type(value, kind) for kind in kinds)
    return _is_type(value, kinds)


def _value_faults(value: JSON, schema: dict[str, Any]) -> Iterator[Reason]:
    """Yield the faults of a value of the right type, without those of its items and fields."""
    options = _options(schema)
    if options is not None and _make_hashable(value) not in set(map(_make_hashable, options)):
        kinds = {describe_value(option) for option in options}
        found = Reason(ReasonCode.KIND_OTHER_VALUE) if describe_value(value) in kinds else describe_value(value)
        yield _expected_reason(_list_options(options), found)
    match value:
        case bool() | None:
            return
        case int() | float():
            yield from _number_faults(value, schema)
        case str():
            format = schema.get("format")
            if format not in _BYTES:
                yield from _size_faults(len(value), schema, "Length")
            if isinstance(format, str) and format in FORMAT_EXAMPLES and not has_format(value, format):
                yield Reason(ReasonCode.EXPECTED_FORMAT, example=FORMAT_EXAMPLES[format][1])
            if not _matches(schema.get("pattern"), value):
                yield Reason(ReasonCode.EXPECTED_PATTERN, pattern=schema["pattern"])
        case list():
            yield from _size_faults(len(value), schema, "Items")
            if schema.get("uniqueItems") is True and len(set(map(_make_hashable, value))) < len(value):
                yield Reason(ReasonCode.EXPECTED_UNIQUE)
        case dict():
            yield from _size_faults(len(value), schema, "Properties")


def describe_value(value: JSON) -> Reason:
    """Name the JSON type of a value."""
    for kind in ("null", "boolean", "integer", "string", "array", "object"):
        if _is_type(value, kind):
            return _TYPES[kind]
    return Reason(ReasonCode.KIND_FRACTION if isinstance(value, float) else ReasonCode.KIND_FOREIGN)


def _describe_type(schema: dict[str, Any]) -> Reason:
    """Describe what a schema accepts by its own options or types."""
    options = _options(schema)
    if options is not None:
        return _list_options(options)
    kinds = schema.get("type")
    named = [_TYPES[kind] for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind in _TYPES]
    if len(named) > 1:
        return Reason(ReasonCode.ONE_OF, options=tuple(named), more=None)
    return named[0] if named else Reason(ReasonCode.KIND_VALUE)


def _matches(pattern: Any, text: str) -> bool:
    """Return True if the text matches the pattern, or if Python cannot compile the pattern."""
    compiled = _compile(pattern) if isinstance(pattern, str) else None
    return compiled is None or compiled.search(text) is not None


def _is_type(value: JSON, kind: Any) -> bool:
    match kind:
        case "integer":
            return _is_number(value) and (isinstance(value, int) or value.is_integer())
        case "number":
            return _is_number(value) or value in _NOT_FINITE
        case str() if kind in _PYTHON_TYPES:
            return isinstance(value, _PYTHON_TYPES[kind])
        case _:
            return True


def _options(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


def _list_options(options: list[Any]) -> Reason:
    shown = tuple(json.dumps(option, ensure_ascii=False) for option in options[:_MAX_SHOWN_OPTIONS])
    return Reason(ReasonCode.ONE_OF, options=shown, more=len(options) - len(shown) or None)


def _make_hashable(value: JSON) -> Any:
    """Return a hashable that is equal exactly for equal JSON: 1 equals 1.0, and neither equals true."""
    match value:
        case bool():
            return ("bool", value)
        case list():
            return ("list", *map(_make_hashable, value))
        case dict():
            return ("dict", frozenset((key, _make_hashable(inner)) for key, inner in value.items()))
        case _:
            return value


def _number_faults(value: float, schema: dict[str, Any]) -> Iterator[Reason]:
    for key, code, fits in _BOUNDS:
        bound = schema.get(key)
        if _is_number(bound) and not fits(value, bound):
            yield Reason(code, bound=bound)
    step = schema.get("multipleOf")
    if _is_number(step) and step > 0:
        with contextlib.suppress(ValueError):  # not finite
            # Floats are compared as they are written, so that 0.3 is a multiple of 0.1.
            dividend, divisor = (Fraction(each if isinstance(each, int) else repr(each)) for each in (value, step))
            if dividend % divisor:
                yield Reason(ReasonCode.EXPECTED_MULTIPLE, step=step)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size_faults(size: int, schema: dict[str, Any], key: str) -> Iterator[Reason]:
    least, most = schema.get(f"min{key}"), schema.get(f"max{key}")
    too_few, too_many = _SIZES[key]
    if _is_number(least) and size < least:
        yield Reason(too_few, n=least, found=size)
    if _is_number(most) and size > most:
        yield Reason(too_many, n=most, found=size)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None
