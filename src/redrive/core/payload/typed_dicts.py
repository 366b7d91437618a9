"""`typing.TypedDict` before Python 3.12: pydantic refuses it, so its classes are taught to stand in.

A class written with `typing.TypedDict` gets a schema hook that answers with an equal class made by
`typing_extensions.TypedDict`. The hook changes nothing else about the class.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from typing import Any

import typing_extensions
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

_HOOK = "__get_pydantic_core_schema__"
_STAND_IN = "__redrive_stand_in__"
_MARKS = {typing_extensions.Required, typing_extensions.NotRequired}

typed_dict: Any = typing_extensions.TypedDict
"""Makes a class from a name and hints; typed as Any, as neither is known before run time."""


def teach_typed_dicts(hint: Any, seen: set[int] | None = None) -> None:
    """Make every TypedDict within the hint readable for pydantic."""
    seen = set() if seen is None else seen
    if sys.version_info >= (3, 12) or id(hint) in seen:
        return
    seen.add(id(hint))
    for each in (*typing.get_args(hint), *_fields(typing.get_origin(hint) or hint)):
        teach_typed_dicts(each, seen)


def _fields(target: Any) -> list[Any]:
    """The hints inside a class that has typed fields."""
    if not isinstance(target, type):
        return []
    is_dict = typing.is_typeddict(target)
    if is_dict and type(target).__module__ == "typing" and _HOOK not in vars(target):
        setattr(target, _HOOK, classmethod(_schema))
    if not (is_dict or dataclasses.is_dataclass(target) or hasattr(target, "_fields")):
        return []
    try:
        return list(typing.get_type_hints(target, include_extras=True).values())
    except NameError:  # building the schema reports it, with the name
        return []


def _schema(cls: type, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    return handler.generate_schema(_stand_in(cls))


def _stand_in(cls: Any) -> Any:
    """The equal class. Made once, so that a class that contains itself is recognised."""
    if _STAND_IN not in vars(cls):
        made = typed_dict(cls.__name__, {name: _field(cls, name, hint) for name, hint in _hints(cls)})
        made.__module__, made.__qualname__ = cls.__module__, cls.__qualname__
        setattr(cls, _STAND_IN, made)
    return vars(cls)[_STAND_IN]


def _hints(cls: type) -> list[tuple[str, Any]]:
    return list(typing.get_type_hints(cls, include_extras=True).items())


def _field(cls: Any, name: str, hint: Any) -> Any:
    """The field with its mark. The class's own key sets miss marks in annotations written as text."""
    if typing.get_origin(hint) in _MARKS:
        return hint
    mark: Any = typing_extensions.Required if name in cls.__required_keys__ else typing_extensions.NotRequired
    return mark[hint]
