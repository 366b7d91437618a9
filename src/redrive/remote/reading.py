"""JSON as the desk's records, and filters as queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from redrive.duration import moment
from redrive.errors import InputError, StoreError
from redrive.policy import RetryPolicy
from redrive.store.selection import AuditFilter, CircuitFilter, LetterFilter, OutboxFilter, RunFilter

__all__ = ["Filter", "policy_json", "query_of", "read", "said"]

T = TypeVar("T")
Filter = RunFilter | LetterFilter | AuditFilter | CircuitFilter | OutboxFilter


def read(kind: type[T], value: Any) -> T:
    """The record that an answer holds. What a newer server tells beside it is passed over."""
    try:
        return cast("T", _adapter(cast("Any", kind)).validate_python(value))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise StoreError(
            f"the server's answer cannot be understood ({place}): it has another version than this program"
        ) from None


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def said(**values: Any) -> dict[str, Any]:
    """What was given, without what was left out."""
    return {name: value for name, value in values.items() if value is not None}


def policy_json(policy: RetryPolicy | None) -> dict[str, Any] | None:
    """A retry policy as it is sent."""
    if policy is not None and not isinstance(policy, RetryPolicy):
        raise InputError(f"retry takes a RetryPolicy, not {type(policy).__name__}")
    return None if policy is None else policy.to_json()


def query_of(where: Filter | None) -> dict[str, Any]:
    """A filter as a query; its tenant is not part of that."""
    if where is None:
        return {}
    given = {one.name: getattr(where, one.name) for one in fields(where) if one.name != "tenant"}
    return {name: _sent(name, value) for name, value in given.items() if value is not None}


def _sent(name: str, value: Any) -> Any:
    if name in ("since", "until"):
        return moment(value).isoformat()
    if isinstance(value, Mapping):  # the index: filters keep each field's values as texts
        return [f"{field}:{text}" for field, texts in value.items() for text in texts]
    return list(value) if isinstance(value, tuple) else value
