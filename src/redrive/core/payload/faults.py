"""Faults of values that do not fit their annotation: the place, such as `order.lines[2].price`, and the cause."""

from __future__ import annotations

import dataclasses
import io
import math
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, SchemaSerializer, to_json

from redrive.core.payload.plain_json import MAX_DEPTH, has_lone_surrogates, has_surrogate_pair, load_json
from redrive.core.payload.pydantic_adapters import CORE_CONFIG, SchemaNode, join_definitions
from redrive.errors import PayloadError
from redrive.reasons import Reason, ReasonCode

Path = tuple[str | int, ...]
_EXPECTED = re.compile(r"Expected `([^`]+)`")
_TOO_DEEP = Reason(ReasonCode.NESTED_TOO_DEEP, most=MAX_DEPTH)
_MAX_NAMED_PATHS = 5  # places that one error names
_CONTAINERS = (list, tuple, set, frozenset)


def build_payload_error(path: Path, why: Reason) -> PayloadError:
    where = format_path(path)
    return PayloadError(Reason(ReasonCode.FAULT, path=where or None, why=why), path=where)


def format_path(path: Path) -> str:
    """Format `("order", "lines", 2)` as `order.lines[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{part[:40]!a}]" if text else part[:40]
    return text


def build_misfit_error(error: ValidationError, text: str, root: Path) -> PayloadError:
    """Build the error for JSON that does not fit its annotation. It names up to five places."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    messages = [each["msg"][:1].lower() + each["msg"][1:] for each in problems[:_MAX_NAMED_PATHS]]
    if problems[0]["type"] == "json_invalid":
        if "recursion limit" in messages[0]:
            return PayloadError(_TOO_DEEP)
        if "number out of range" in messages[0]:
            return PayloadError(Reason(ReasonCode.NUMBER_TOO_LONG))
        return PayloadError(Reason(ReasonCode.JSON_INVALID, why=messages[0].removeprefix("invalid JSON: ")))
    data = load_json(text)
    named = [
        build_payload_error(
            root + _locate_problem(each, data), Reason(ReasonCode.PYDANTIC_RULE, rule=each["type"], message=message)
        )
        for each, message in zip(problems, messages, strict=False)
    ]
    if len(problems) == 1:
        return named[0]
    faults = tuple(Reason.of_error(each) for each in named)
    more = len(problems) - _MAX_NAMED_PATHS if len(problems) > _MAX_NAMED_PATHS else None
    return PayloadError(Reason(ReasonCode.FAULTS, faults=faults, more=more), path=named[0].path)


def _locate_problem(problem: ErrorDetails, data: Any) -> Path:
    """Return pydantic's location without the names of union members and validators in it."""
    path: Path = ()
    loc, missing = problem["loc"], problem["type"].startswith("missing")
    for position, part in enumerate(loc):
        inside = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        if inside:
            data = data[part]
        elif not (missing and position == len(loc) - 1):
            continue
        path += (part,)
    return path


def build_unwritable_error(value: Any, node: SchemaNode, definitions: list[SchemaNode], root: Path) -> PayloadError:
    """Build the error for a Python value that its schema could not write."""
    found = find_unstorable(value, root) or _find_mismatch(value, node, _SchemaDefinitions(definitions), root)
    return found or build_payload_error(
        root, Reason(ReasonCode.NOT_STORABLE_AS_ANNOTATED, type=type(value).__qualname__)
    )


def find_unstorable(value: Any, root: Path) -> PayloadError | None:
    """Return the error for a value that no annotation can store: code, handles, cycles, too deep nesting."""
    parents: list[int] = []
    levels = [iter([(root, value)])]  # an explicit stack, because the value may be deeper than Python's
    while levels:
        path, each = next(levels[-1], (None, None))
        if path is None:
            levels.pop()
            parents = parents[:-1]
        elif id(each) in parents:
            return build_payload_error(path, Reason(ReasonCode.REFERS_TO_ITSELF))
        elif len(parents) > MAX_DEPTH:
            return build_payload_error(path[:3], _TOO_DEEP)
        elif (pieces := _list_children(each)) is not None:
            parents.append(id(each))
            levels.append(iter([((*path, part), piece) for part, piece in pieces]))
        elif (why := _explain_unstorable(each)) is not None:
            return build_payload_error(path, why)
    return None


def has_surrogates(value: Any) -> bool:
    """Return True if a text or key in the value is not valid Unicode. The value must have no cycles."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, str) and has_lone_surrogates(each):
            return True
        for part, piece in _list_children(each) or ():
            left += (part, piece)
    return False


def _list_children(value: Any) -> Iterable[tuple[str | int, Any]] | None:
    if isinstance(value, dict):
        return [(key if isinstance(key, str) else str(key), item) for key, item in value.items()]
    if isinstance(value, _CONTAINERS):
        return enumerate(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    if isinstance(value, BaseModel):
        return list(value)
    return None


def _explain_unstorable(value: Any) -> Reason | None:
    if isinstance(value, str):
        return Reason(ReasonCode.SURROGATES_JOIN) if has_surrogate_pair(value) else None
    if isinstance(value, bytes | float):
        return None
    try:
        storable = not isinstance(value, Iterator) and bool(to_json(value))
    except PydanticSerializationError:
        storable = False
    if not storable:
        return Reason(ReasonCode.NOT_STORABLE, kind=_describe_kind(value))
    if isinstance(value, int) and value.bit_length() > 14_000:
        return Reason(ReasonCode.INTEGER_TOO_LONG)
    return None


def _describe_kind(value: Any) -> str:
    match value:
        case type():
            return "a class"
        case types.ModuleType():
            return "a module"
        case types.CoroutineType():
            return "a coroutine (was it not awaited?)"
        case io.IOBase():
            return "an open file"
        case _ if type(value).__module__ == "_thread" or type(value).__name__.endswith("Lock"):
            return "a lock"
        case _ if callable(value):
            return "a function"
    return f"a {type(value).__qualname__}"


class _SchemaDefinitions:
    """The definitions of a schema, by reference."""

    def __init__(self, definitions: list[SchemaNode]) -> None:
        self.definitions = definitions
        self.by_ref = {definition["ref"]: definition for definition in definitions}
        self.serializers: dict[int, SchemaSerializer] = {}

    def resolve(self, node: SchemaNode) -> SchemaNode:
        """Return the node behind references, defaults, validators and optional values."""
        while True:
            match node:
                case {"schema_ref": ref}:
                    node = self.by_ref[ref]
                case {"type": "default" | "nullable", "schema": inner}:
                    node = inner
                case {"type": "function-before" | "function-after" | "function-wrap", "schema": inner}:
                    node = inner
                case _:
                    return node

    def write_error(self, value: Any, node: SchemaNode) -> str | None:
        """Return pydantic's error if this node cannot write the value, else None."""
        serializer = self.serializers.get(id(node))
        if serializer is None:
            serializer = SchemaSerializer(join_definitions(node, self.definitions), CORE_CONFIG, _use_prebuilt=False)
            self.serializers[id(node)] = serializer
        try:
            serializer.to_json(value, warnings="error", round_trip=True)
        except (PydanticSerializationError, RecursionError) as error:
            # The serializer of a field runs only inside its model, whose error then describes the problem.
            return None if "inside the context of a model" in str(error) else str(error)
        return None


def _find_mismatch(value: Any, node: SchemaNode, known: _SchemaDefinitions, path: Path) -> PayloadError | None:
    """Return the error for the innermost place whose Python type the schema refuses."""
    found = None
    error = known.write_error(value, node)
    while error is not None:
        found = build_payload_error(path, _explain_mismatch(value, error))
        error = None
        for part, piece, kind in _list_typed_children(value, known.resolve(node), known):
            error = known.write_error(piece, kind)
            if error is not None:
                value, node, path = piece, kind, (*path, part)
                break
    return found


def _list_typed_children(
    value: Any, node: SchemaNode, known: _SchemaDefinitions
) -> Iterator[tuple[str | int, Any, SchemaNode]]:
    match node:
        case {"type": "model" | "dataclass", "cls": cls, "schema": inner}:
            if isinstance(value, cls):
                yield from _list_typed_children(value, known.resolve(inner), known)
        case {"type": "typed-dict" | "model-fields", "fields": fields}:
            pieces = dict(_list_children(value) or ())
            yield from ((name, pieces[name], f["schema"]) for name, f in fields.items() if name in pieces)
        case {"type": "dataclass-args", "fields": fields}:
            pieces = dict(_list_children(value) or ())
            yield from ((f["name"], pieces[f["name"]], f["schema"]) for f in fields if f["name"] in pieces)
        case {"type": "named-tuple", "fields": fields} if isinstance(value, tuple):
            pairs = zip(value, fields, strict=False)
            yield from ((index, item, f["schema"]) for index, (item, f) in enumerate(pairs))
        case {"type": "dict", "values_schema": values} if isinstance(value, dict):
            yield from ((str(key), item, values) for key, item in value.items())
        case {"type": "list" | "set" | "frozenset", "items_schema": items} if isinstance(value, _CONTAINERS):
            yield from ((index, item, items) for index, item in enumerate(value))
        case {"type": "tuple", "items_schema": items} if isinstance(value, tuple):
            each = items * len(value) if "variadic_item_index" in node else items
            yield from ((index, item, kind) for index, (item, kind) in enumerate(zip(value, each, strict=False)))
        case {"type": "any"} if _list_children(value) is not None:
            yield from ((part, item, node) for part, item in _list_children(value) or ())


def _explain_mismatch(value: Any, error: str) -> Reason:
    found = type(value).__qualname__
    if isinstance(value, float) and not math.isfinite(value):
        return Reason(ReasonCode.NO_JSON_FORM, value=str(value))
    expected = _EXPECTED.search(error)
    if expected is not None:
        return Reason(ReasonCode.TYPE_DIFFERS, expected=expected[1], found=found)
    if "UnexpectedValue" in error:  # pydantic's text contains the value, so it is not shown
        return Reason(ReasonCode.ANNOTATION_DIFFERS, type=found)
    return Reason(ReasonCode.NOT_STORABLE_HERE, type=found, why=error.rpartition(": ")[2])
