"""Whether a value of some JSON Schema can have something at a place that a template names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["missing_field"]

_SINGLE = frozenset({"string", "integer", "number", "boolean", "null"})
_DEEPEST = 50


def missing_field(schema: Mapping[str, Any], parts: Sequence[str]) -> str | None:
    """What is wrong with the place, in words; None if it may exist. Where a schema says nothing, it may."""
    return _missing(schema, schema.get("$defs", {}), parts, _DEEPEST)


def _missing(schema: Any, shared: Mapping[str, Any], parts: Sequence[str], depth: int) -> str | None:
    if not parts or not depth or not isinstance(schema, Mapping) or not schema:
        return None
    if "$ref" in schema:
        return _missing(shared.get(schema["$ref"].rpartition("/")[2]), shared, parts, depth - 1)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            found = [
                _missing(one, shared, parts, depth - 1)
                for one in schema[several]
                if one.get("type") != "null"
            ]
            return None if None in found or not found else found[0]
    if schema.get("type") == "object":
        return _missing_in_object(schema, shared, parts, depth)
    if schema.get("type") == "array":
        if not parts[0].isdigit():
            return f"has a list there, with numbers and no {parts[0]!r}"
        return _missing(schema.get("items"), shared, parts[1:], depth - 1)
    if schema.get("type") in _SINGLE:
        return f"has no field {parts[0]!r} there, but a single value"
    return None


def _missing_in_object(
    schema: Mapping[str, Any], shared: Mapping[str, Any], parts: Sequence[str], depth: int
) -> str | None:
    fields = schema.get("properties", {})
    if parts[0] in fields:
        return _missing(fields[parts[0]], shared, parts[1:], depth - 1)
    more = schema.get("additionalProperties", not fields)
    if not more:
        return f"has no field {parts[0]!r}; it has: {', '.join(fields) or 'none'}"
    return _missing(more, shared, parts[1:], depth - 1)
