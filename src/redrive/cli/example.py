"""An input to begin from, made from the types of a workflow's parameters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.app import Workflow

_MAX_DEPTH = 4  # types may contain themselves
_EXAMPLES_BY_TYPE = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": [], "null": None}
_EXAMPLES_BY_FORMAT = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00",
    "duration": "PT1H",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def make_example_input(workflow: Workflow[Any, Any, Any]) -> str:
    """Every parameter that is needed, with some value of its type; {} where the types have no schema."""
    schema = workflow.signature.schema_in()
    return json.dumps(_example_value(schema, schema.get("$defs", {})), ensure_ascii=False)


def _example_value(schema: dict[str, Any], named: dict[str, Any], depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        return None
    match schema:
        case {"default": value} | {"const": value} | {"enum": [value, *_]}:
            return value
        case {"$ref": name}:
            return _example_value(named.get(name.rpartition("/")[2], {}), named, depth + 1)
        case {"anyOf": [first, *_]} | {"oneOf": [first, *_]} | {"allOf": [first, *_]}:
            return _example_value(first, named, depth + 1)
        case {"format": name} if name in _EXAMPLES_BY_FORMAT:
            return _EXAMPLES_BY_FORMAT[name]
        case {"type": name} if name in _EXAMPLES_BY_TYPE:
            return _EXAMPLES_BY_TYPE[name]
    known = schema.get("properties", {})
    return {name: _example_value(known[name], named, depth + 1) for name in schema.get("required", []) if name in known}
