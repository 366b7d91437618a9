"""The fields of records, and copies of records with other values in some fields.

Records are Structs inside Redrive, and dataclasses for users and for pydantic. Read the names of fields here:
`msgspec.structs.fields` evaluates annotations, which costs time and fails for names that are imported for type
checkers only.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeGuard, TypeVar

import msgspec

T = TypeVar("T")


def is_record(value: object) -> TypeGuard[Any]:
    """Return True for an instance of a Struct or of a dataclass."""
    return isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def field_names(record: Any) -> tuple[str, ...]:
    """Return the names of a record's fields, in order. Takes a class or an instance."""
    names: tuple[str, ...] | None = getattr(record, "__struct_fields__", None)
    return tuple(each.name for each in dataclasses.fields(record)) if names is None else names


def as_dict(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name. The values are not copied, and records in them stay records."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.asdict(record)
    return {name: getattr(record, name) for name in field_names(record)}


def replace(record: T, /, **changes: Any) -> T:
    """Return a copy of a record with other values in some fields."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    changed: T = dataclasses.replace(record, **changes)  # type: ignore[type-var]
    return changed
