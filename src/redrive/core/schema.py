"""Checks a JSON value against the JSON Schema of a workflow's input or a step's result.

    {"order": {"lines": [{"price": "x"}]}}  ──problems──▶  order.lines[0].price: expected a number, found text

It knows what the payload codec writes into the catalogue, which is what pydantic emits. A keyword it does
not know, a reference that leads nowhere and a pattern Python cannot read demand nothing: the type has the
last word when the run decodes its input, and this check must not refuse what the type would take. For
the same reason it follows the codec where that differs from the letter of the standard:

- "Infinity", "-Infinity" and "NaN" are numbers, as that is how the codec writes them.
- The length of bytes is not that of their base64 text, and is left to the type.
- `oneOf` is satisfied by several members: pydantic means a tagged union and tells them apart by the tag.
- A read-only field is computed and never stored, so it is not required.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any, TypeAlias

from redrive.core.payload.explain import Path, path_text
from redrive.core.payload.plain import MAX_DEPTH
from redrive.core.redact import JSON
from redrive.core.schema_rules import expected, faults, finds, is_of, matches, phrase
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode

__all__ = ["Problem", "problems", "too_deep"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One place that does not fit. `why` quotes the schema, never the value.

    It may be shown and logged as it is; only `path` holds names out of the value.
    """

    path: str
    """Where, as `order.lines[2].price`; empty for the value itself."""
    why: Reason

    @property
    def reason(self) -> Reason:
        """The place and what is wrong with it."""
        return Reason(ReasonCode.FAULT, path=self.path or None, why=self.why)

    def __str__(self) -> str:
        return str(self.reason)


Schema: TypeAlias = Any
"""A JSON Schema: an object, true or false. Anything else demands nothing."""

_WHOLE = re.compile(r"-?\d{1,40}", re.ASCII)

_OF_OBJECTS = frozenset({"type", "properties", "required", "title", "description", "additionalProperties"})
_OF_PLAIN = frozenset({"type", "title", "description", "default"})
_PLAIN: dict[str, type] = {"string": str, "integer": int, "boolean": bool}

_Visit: TypeAlias = tuple[JSON, Schema, Path]
_Key: TypeAlias = tuple[Path, int]
_Work: TypeAlias = Generator[_Visit, list[Problem], list[Problem]]


def problems(value: JSON, schema: Mapping[str, Any]) -> list[Problem]:
    """Everything in the value that the schema does not allow, in the order of the value; [] if it fits."""
    if _surely_fits(value, schema):
        return []
    deep = too_deep(value)
    if deep is not None:
        return [_problem(deep, Reason(ReasonCode.NESTED_TOO_DEEP, most=MAX_DEPTH))]
    return list(dict.fromkeys(_Check(schema).run(value, schema, ())))


def _surely_fits(value: JSON, schema: Any) -> bool:
    """True for what most inputs are, found fast: an object of plain values. False says nothing at all."""
    if type(value) is not dict or type(schema) is not dict or not schema.keys() <= _OF_OBJECTS:
        return False
    parts = schema.get("properties")
    if schema.get("type") != "object" or type(parts) is not dict:
        return False
    for name, each in value.items():
        part = parts.get(name)
        if type(part) is not dict or not part.keys() <= _OF_PLAIN:
            return False
        kind = part.get("type")
        if type(kind) is not str or type(each) is not _PLAIN.get(kind):
            return False
    needed = schema.get("required", ())
    return type(needed) in (list, tuple) and all(name in value for name in needed)


class _Check:
    """Compares places of one value with parts of one schema, each pair once.

    Neither nesting nor references can exhaust Python's stack, as there is a stack of its own: what a
    place needs to know about another it asks for by `yield`. A pair that is asked for while it is being
    answered is a reference that leads back to itself, and demands nothing more.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[_Key, list[Problem]] = {}

    def run(self, value: JSON, schema: Schema, path: Path) -> list[Problem]:
        """The problems of one place and all below it."""
        stack: list[tuple[_Key, _Work]] = [((path, id(schema)), self._compare(value, schema, path))]
        answer: list[Problem] | None = None
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
            return [_problem(path, Reason(ReasonCode.EXPECTED_NOTHING, found=finds(value)))]
        if not isinstance(schema, dict):
            return []
        if not is_of(value, schema):
            return [_problem(path, expected(self._describe(schema), finds(value)))]
        found = [_problem(path, fault) for fault in faults(value, schema)]
        found += self._field_faults(value, schema, path) if isinstance(value, dict) else []
        for visit in self._parts(value, schema, path):
            found += yield visit
        for branches in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(branches, list) and branches:
                found += yield from self._choose(value, branches, path)
        return found

    def _parts(self, value: JSON, schema: dict[str, Any], path: Path) -> Iterator[_Visit]:
        """What must fit as well: the same place elsewhere in the schema, and the places below."""
        if "$ref" in schema:
            yield value, self._target(schema["$ref"]), path
        yield from ((value, each, path) for each in _list(schema.get("allOf")))
        if isinstance(value, dict):
            yield from _fields(value, schema, path)
        elif isinstance(value, list):
            yield from _items(value, schema, path)

    def _choose(self, value: JSON, branches: list[Schema], path: Path) -> _Work:
        """Nothing if one branch fits, else the problems of the branch that was most likely meant."""
        answers = []
        for branch in branches:
            answers.append((yield value, branch, path))
            if not answers[-1]:
                return []
        meant = [
            (_tagged_otherwise(value, self._resolve(branch)), len(answer), answer)
            for branch, answer in zip(branches, answers, strict=True)
            if is_of(value, self._resolve(branch))
        ]
        if not meant:
            return [_problem(path, expected(self._describe({"anyOf": branches}), finds(value)))]
        return min(meant, key=lambda each: each[:2])[2]

    # -- objects ---------------------------------------------------------------------------------------

    def _field_faults(self, value: dict[str, JSON], schema: dict[str, Any], path: Path) -> list[Problem]:
        return [
            *self._missing(value, schema, path),
            *_unknown(value, schema, path),
            *self._misnamed(value, schema, path),
        ]

    def _missing(self, value: dict[str, JSON], schema: dict[str, Any], path: Path) -> Iterator[Problem]:
        for name in _list(schema.get("required")):
            field = _dict(schema.get("properties")).get(name, {})
            if isinstance(name, str) and name not in value and not _dict(field).get("readOnly"):
                why = Reason(ReasonCode.FIELD_MISSING, expected=self._describe(field))
                yield _problem((*path, name), why)

    def _misnamed(self, value: dict[str, JSON], schema: dict[str, Any], path: Path) -> Iterator[Problem]:
        names = schema.get("propertyNames")
        if isinstance(names, dict):
            for key in value:
                if not any(not _Check(self._root).run(each, names, ()) for each in _readings(key)):
                    why = Reason(ReasonCode.FIELD_NAME_INVALID, expected=self._describe(names))
                    yield _problem((*path, key), why)

    # -- the schema ------------------------------------------------------------------------------------

    def _target(self, reference: Any) -> Schema:
        """The part that `#/$defs/Order` names, or true."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        part = self._root
        for name in reference[1:].split("/")[1:]:
            part = _dict(part).get(name.replace("~1", "/").replace("~0", "~"), True)
        return part

    def _resolve(self, schema: Schema) -> dict[str, Any]:
        """Past references, as far as they lead anywhere."""
        seen: set[int] = set()
        while isinstance(schema, dict) and "$ref" in schema and id(schema) not in seen:
            seen.add(id(schema))
            schema = self._target(schema["$ref"])
        return _dict(schema)

    def _describe(self, schema: Schema, levels: int = 4) -> Reason:
        """What the schema wants, in a few words."""
        schema = self._resolve(schema)
        branches = _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
        if not branches or levels == 0:
            return phrase(schema)
        described = dict.fromkeys(self._describe(branch, levels - 1) for branch in branches)
        return Reason(ReasonCode.ONE_OF, options=tuple(described), more=None)


def _problem(path: Path, why: Reason) -> Problem:
    return Problem(path_text(path), why)


def _fields(value: dict[str, JSON], schema: dict[str, Any], path: Path) -> Iterator[_Visit]:
    for key, inner in value.items():
        named = list(_schemas_of(key, schema))
        others = schema.get("additionalProperties")
        for each in named or ([others] if isinstance(others, dict) else []):
            yield inner, each, (*path, key)


def _schemas_of(key: str, schema: dict[str, Any]) -> Iterator[Schema]:
    named = _dict(schema.get("properties"))
    if key in named:
        yield named[key]
    for pattern, each in _dict(schema.get("patternProperties")).items():
        if matches(pattern, key):
            yield each


def _unknown(value: dict[str, JSON], schema: dict[str, Any], path: Path) -> Iterator[Problem]:
    if schema.get("additionalProperties") is False:
        known = ", ".join(_dict(schema.get("properties"))) or "none"
        for key in value:
            if not any(True for _ in _schemas_of(key, schema)):
                yield _problem((*path, key), Reason(ReasonCode.FIELD_UNKNOWN, known=known))


def _items(value: list[JSON], schema: dict[str, Any], path: Path) -> Iterator[_Visit]:
    first = _list(schema.get("prefixItems"))
    rest = schema.get("items", True)
    for index, inner in enumerate(value):
        yield inner, first[index] if index < len(first) else rest, (*path, index)


def _tagged_otherwise(value: JSON, schema: dict[str, Any]) -> bool:
    """True if a field that tells the members of a union apart says that another one was meant."""
    if not isinstance(value, dict):
        return False
    fields = _dict(schema.get("properties")).items()
    return any(
        "const" in _dict(field) and value.get(name, field["const"]) != field["const"]
        for name, field in fields
    )


def _readings(key: str) -> list[JSON]:
    """A field's name as text, and as the number it may stand for: the codec writes the key 1 as "1"."""
    return [key, int(key)] if _WHOLE.fullmatch(key) else [key]


def too_deep(value: JSON) -> Path | None:
    """Where something is nested beyond the deepest level that can be read back."""
    level: list[tuple[Path, JSON]] = [((), value)]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return None
        level = [((*path, part)[:1], each) for path, inner in level for part, each in _pieces(inner)]
    return next((path for path, each in level if isinstance(each, dict | list)), None)


def _pieces(value: JSON) -> list[tuple[str | int, JSON]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
