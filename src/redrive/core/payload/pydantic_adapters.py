"""Pydantic adapters of annotations: their schemas, corrected so that they write each value exactly, and JSON Schemas.

pydantic's own JSON is lossy in places: bytes must be UTF-8, NaN becomes null, sets are in hash order,
offsets lose their seconds. Models and dataclasses have their own configuration, so the finished schema
is walked and corrected. Settings that a user's model makes itself are kept.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from functools import lru_cache
from typing import Any, Literal, cast
from uuid import UUID

import typing_extensions
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import CoreConfig, CoreSchema, SchemaError, core_schema

from redrive.core.payload.plain_json import sort_set, to_plain_json

# Before Python 3.12 pydantic refuses `typing.TypedDict`. Each such class gets a hook that returns the schema of an
# equal class made by typing_extensions.
_SCHEMA_HOOK = "__get_pydantic_core_schema__"
_STAND_IN = "__redrive_stand_in__"
_REQUIRED_MARKERS = {typing_extensions.Required, typing_extensions.NotRequired}
make_typed_dict: Any = typing_extensions.TypedDict
"""Makes a class from a name and hints. Typed as Any, because both are known at run time only."""


def adapt_typed_dicts(hint: Any, seen: set[int] | None = None) -> None:
    """Make every TypedDict in the hint readable for pydantic."""
    seen = set() if seen is None else seen
    if sys.version_info >= (3, 12) or id(hint) in seen:
        return
    seen.add(id(hint))
    for each in (*typing.get_args(hint), *_list_nested_hints(typing.get_origin(hint) or hint)):
        adapt_typed_dicts(each, seen)


def _list_nested_hints(target: Any) -> list[Any]:
    """Return the hints of the fields of a class that has typed fields."""
    if not isinstance(target, type):
        return []
    is_dict = typing.is_typeddict(target)
    if is_dict and type(target).__module__ == "typing" and _SCHEMA_HOOK not in vars(target):
        setattr(
            target, _SCHEMA_HOOK, classmethod(lambda cls, source, handler: handler.generate_schema(_get_stand_in(cls)))
        )
    if not (is_dict or dataclasses.is_dataclass(target) or hasattr(target, "_fields")):
        return []
    try:
        return list(typing.get_type_hints(target, include_extras=True).values())
    except NameError:  # building the schema reports it, with the name
        return []


def _get_stand_in(cls: Any) -> Any:
    """Return the equal class. It is made once, so that a class that contains itself is recognised."""
    if _STAND_IN not in vars(cls):
        hints = typing.get_type_hints(cls, include_extras=True)
        for name, hint in hints.items():
            # The key sets of the class miss markers in annotations that are written as text, so the hint goes first.
            if typing.get_origin(hint) not in _REQUIRED_MARKERS:
                required = name in cls.__required_keys__
                hints[name] = (typing_extensions.Required if required else typing_extensions.NotRequired)[hint]
        made = make_typed_dict(cls.__name__, hints)
        made.__module__, made.__qualname__ = cls.__module__, cls.__qualname__
        setattr(cls, _STAND_IN, made)
    return vars(cls)[_STAND_IN]


SchemaNode = dict[str, Any]
_SERIALIZATION_CONFIG: CoreConfig = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "strings",
}
CORE_CONFIG: CoreConfig = {**_SERIALIZATION_CONFIG, "allow_inf_nan": True}
"""For the top of a schema. Models of users get the settings for writing only, so they refuse what they did before."""

_BOX_CONFIG = ConfigDict(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings", allow_inf_nan=True, defer_build=True
)
_CONFIGURABLE_TYPES = frozenset({"model", "dataclass", "typed-dict"})
_SKIPPED_KEYS = frozenset({"metadata", "default", "expected", "members", "config", "custom_error_context"})
_MAPPING_KEYS = frozenset({"fields", "choices"})
_SCALARS = (str, int, float, bool, type(None))
_LEAF_CLASSES: Mapping[str, type] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "bytes": bytes,
    "datetime": datetime,
    "date": date,
    "time": time,
    "timedelta": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
FORMAT_EXAMPLES: Mapping[str, tuple[type, str]] = {
    "date": (date, "2026-01-31"),
    "date-time": (datetime, "2026-01-31T12:00:00Z"),
    "time": (time, "12:00:00"),
    "duration": (timedelta, "PT1H"),
    "uuid": (UUID, "00000000-0000-4000-8000-000000000000"),
    "decimal": (Decimal, "12.50"),
}
"""For a format of text in a JSON Schema: the type that reads such a text, and an example of it."""


@lru_cache
def _get_reader(format: str) -> TypeAdapter[Any]:
    return TypeAdapter(FORMAT_EXAMPLES[format][0], config=ConfigDict(allow_inf_nan=True))


def has_format(text: str, format: str) -> bool:
    """Return True if the type that writes this format of text can read the text."""
    try:
        _get_reader(format).validate_json(json.dumps(text))
    except ValidationError:
        return False
    return True


def build_adapter(title: str, hints: Mapping[str, Any], names: Mapping[str, Any]) -> TypeAdapter[Any]:
    """Build an adapter for an object with these fields. Its configuration applies to plain dataclasses too.

    `names` resolves the names that classes in the hints refer to. Raises pydantic's errors.
    """
    for hint in hints.values():
        adapt_typed_dicts(hint)
    try:
        adapter = _create_adapter(title, hints, names, _BOX_CONFIG)
    except SchemaError:  # decimals with a number of digits cannot be infinite
        adapter = _create_adapter(title, hints, names, {**_BOX_CONFIG, "allow_inf_nan": False})
    for node in _walk(adapter.core_schema):
        write = node.get("serialization", {}).get("function")
        if getattr(write, "__module__", "") == "pydantic.types" and write.__name__.startswith("_serialize_secret"):
            raise TypeError(
                "pydantic's secret types write asterisks instead of their value. "
                "Pass a reference to the secret, or declare it as str and name it in REDRIVE_REDACT"
            )
    return adapter


def _create_adapter(
    title: str, hints: Mapping[str, Any], names: Mapping[str, Any], config: ConfigDict
) -> TypeAdapter[Any]:
    boxed = make_typed_dict(title, dict(hints))
    boxed.__pydantic_config__ = config
    adapter: TypeAdapter[Any] = TypeAdapter(boxed)
    adapter.rebuild(force=True, raise_errors=True, _types_namespace=dict(names))
    return adapter


def correct_schema(adapter: TypeAdapter[Any]) -> CoreSchema:
    """Return the adapter's schema, corrected to write values exactly and independently of hash seeds."""
    return cast("CoreSchema", _correct_node(cast("SchemaNode", adapter.core_schema)))


def split_definitions(schema: CoreSchema) -> tuple[SchemaNode, list[SchemaNode]]:
    """Return the node of a schema, and the definitions that its references name."""
    node = cast("SchemaNode", schema)
    if node["type"] == "definitions":
        return node["schema"], node["definitions"]
    return node, []


def join_definitions(node: SchemaNode, definitions: list[SchemaNode]) -> CoreSchema:
    """Return a schema from what `split_definitions` returned."""
    if not definitions:
        return cast("CoreSchema", node)
    return core_schema.definitions_schema(cast("CoreSchema", node), cast("list[CoreSchema]", definitions))


def find_union_classes(node: SchemaNode) -> frozenset[type]:
    """Return every class that is a member of a union in this schema."""
    nodes = list(_walk(node))
    by_ref = {each["ref"]: each for each in nodes if "ref" in each}
    unions = [each for each in nodes if each.get("type") == "union"]
    choices = [choice[0] if isinstance(choice, tuple) else choice for each in unions for choice in each["choices"]]
    members = [by_ref.get(choice.get("schema_ref"), choice) for choice in choices]
    kinds = [each.get("cls") or _LEAF_CLASSES.get(each["type"]) for each in members]
    return frozenset(kind for kind in kinds if kind is not None)


def _list_children(node: SchemaNode) -> Iterator[tuple[str, Any]]:
    return ((key, child) for key, child in node.items() if key not in _SKIPPED_KEYS)


def _walk(node: Any) -> Iterator[SchemaNode]:
    if isinstance(node, list | tuple):
        for each in node:
            yield from _walk(each)
    elif isinstance(node, dict):
        yield node
        for key, child in _list_children(node):
            yield from _walk(list(child.values()) if key in _MAPPING_KEYS and isinstance(child, dict) else child)


def _correct_node(node: Any) -> Any:
    if isinstance(node, list):
        return [_correct_node(each) for each in node]
    if isinstance(node, tuple):
        return tuple(_correct_node(each) for each in node)
    if not isinstance(node, dict):
        return node
    copy = dict(node)
    for key, child in _list_children(node):
        if key in _MAPPING_KEYS and isinstance(child, dict):
            copy[key] = {name: _correct_node(each) for name, each in child.items()}
        else:
            copy[key] = _correct_node(child)
    kind = copy.get("type")
    if kind in _CONFIGURABLE_TYPES:
        copy["config"] = {**_SERIALIZATION_CONFIG, **copy.get("config", {})}
    correction = _CORRECTIONS.get(kind) if isinstance(kind, str) else None
    return copy if correction is None or "serialization" in copy else correction(copy)


def _write_set(value: Any, handler: Callable[[Any], Any]) -> Any:
    return sort_set(handler(value)) if isinstance(value, set | frozenset) else handler(value)


def _write_datetime(value: Any, handler: Callable[[Any], Any]) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None and value.tzinfo is not UTC:
        offset = value.utcoffset()
        if offset is not None and offset % timedelta(minutes=1):
            value = value.astimezone(UTC)
    return handler(value)


def _write_time(value: Any, handler: Callable[[Any], Any]) -> Any:
    if isinstance(value, time) and (value.utcoffset() or timedelta()) % timedelta(minutes=1):
        raise ValueError("a time's offset must be whole minutes")
    return handler(value)


def _write_with(write: Callable[[Any, Callable[[Any], Any]], Any]) -> Callable[[SchemaNode], SchemaNode]:
    """Return a correction that makes a node write its values with a function."""
    return lambda node: {**node, "serialization": core_schema.wrap_serializer_function_ser_schema(write)}


def _correct_iterable(node: SchemaNode) -> SchemaNode:
    def write(value: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(list(value))

    kept = {key: child for key, child in node.items() if key in {"items_schema", "ref", "metadata"}}
    ser = core_schema.wrap_serializer_function_ser_schema(write, schema=cast("CoreSchema", {"type": "list", **kept}))
    return {"type": "list", **kept, "serialization": ser}


def has_plain_values(members: Sequence[Enum]) -> bool:
    """Return True for an enum whose members are written as values; others are written as names."""
    return all(isinstance(member.value, _SCALARS) for member in members)


def _correct_enum(node: SchemaNode) -> SchemaNode:
    members: list[Enum] = node["members"]
    if has_plain_values(members):
        return node
    by_name = {member.name: member for member in members}
    return {
        "type": "function-after",
        "function": {"type": "no-info", "function": by_name.__getitem__},
        "schema": {"type": "literal", "expected": list(by_name)},
        "serialization": core_schema.plain_serializer_function_ser_schema(lambda member: member.name),
    }


def _correct_field(node: SchemaNode) -> SchemaNode:
    """Read back fields that `__init__` does not take, because their values may have changed since."""
    if node["schema"]["type"] != "default":
        return node
    return {key: child for key, child in node.items() if key != "init"}


_CORRECTIONS: Mapping[str, Callable[[SchemaNode], SchemaNode]] = {
    "any": lambda node: {**node, "serialization": core_schema.plain_serializer_function_ser_schema(to_plain_json)},
    "set": _write_with(_write_set),
    "frozenset": _write_with(_write_set),
    "datetime": _write_with(_write_datetime),
    "time": _write_with(_write_time),
    "generator": _correct_iterable,
    "enum": _correct_enum,
    "decimal": lambda node: (
        {**node, "allow_inf_nan": False} if {"max_digits", "decimal_places"} & node.keys() else node
    ),
    "dataclass-field": _correct_field,
}


def _drop_format(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove the format of text: a validator of the user that sees the text first may accept other texts."""
    for each in schema.get("anyOf", [schema]):
        each.pop("format", None)
    return schema


class _WrittenSchemaGenerator(GenerateJsonSchema):
    """Describes enums as the codec writes them: flags as integers, and members without a JSON value as names.

    The text of a decimal gets the format `decimal`. Deriving from pydantic's generator is the only way to change this.
    """

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Ignore the warning that a default without a JSON form is left out of the schema."""

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        found = super().decimal_schema(schema)
        for each in found.get("anyOf", [found]):
            if each.get("type") == "string":
                each["format"] = "decimal"
        return found

    def function_before_schema(self, schema: Any) -> dict[str, Any]:
        return _drop_format(super().function_before_schema(schema))

    def function_wrap_schema(self, schema: Any) -> dict[str, Any]:
        return _drop_format(super().function_wrap_schema(schema))

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        if issubclass(schema["cls"], Flag):
            return {"type": "integer"}
        if has_plain_values(schema["members"]):
            return super().enum_schema(schema)
        return {"type": "string", "enum": [member.name for member in schema["members"]]}


def build_json_schema(adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    try:
        return adapter.json_schema(by_alias=False, mode=mode, schema_generator=_WrittenSchemaGenerator)
    except PydanticInvalidForJsonSchema:
        return {}
