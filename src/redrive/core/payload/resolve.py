"""What a function's signature says: its parameters, and what their annotations mean."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from redrive.errors import RegistrationError
from redrive.frozen import dataclass

REQUIRED = inspect.Parameter.empty
"""The default of a parameter that has none."""

# Python 3.14 evaluates annotations when they are asked for, and would raise for a name defined later.
_LATER: dict[str, Any] = (
    {"annotation_format": importlib.import_module("annotationlib").Format.FORWARDREF}
    if sys.version_info >= (3, 14)
    else {}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter as written."""

    name: str
    annotation: Any
    default: Any
    keyword_only: bool


class NotYet(Exception):
    """A name in an annotation is not defined (yet)."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__(where, name)
        self.where = where
        self.name = name


def name_of(fn: Callable[..., Any]) -> str:
    """What messages call the function."""
    qualname: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    return qualname.rpartition("<locals>.")[2]


def where(name: str) -> str:
    """What messages call a parameter, or the result."""
    return "the result" if name == "return" else f"parameter {name!r}"


def read_signature(fn: Callable[..., Any]) -> inspect.Signature:
    """The function's signature, with names that are not defined yet left for later."""
    return inspect.signature(fn, **_LATER)


def storable_parameters(
    fn: Callable[..., Any], signature: inspect.Signature, reserved: frozenset[str]
) -> tuple[Parameter, ...]:
    """The parameters, or a RegistrationError for one that an input object cannot hold."""
    for each in signature.parameters.values():
        if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
            stars = "*" if each.kind is each.VAR_POSITIONAL else "**"
            raise RegistrationError(
                f"{name_of(fn)}(): parameter '{stars}{each.name}' cannot be stored: input is an object from "
                "parameter name to value. Name each parameter, or take one list or dict"
            )
        if each.name in reserved:
            raise RegistrationError(
                f"{name_of(fn)}(): parameter {each.name!r} has the name of an option of start(). "
                "Rename the parameter"
            )
    return tuple(
        Parameter(
            name=each.name,
            annotation=each.annotation,
            default=each.default,
            keyword_only=each.kind is each.KEYWORD_ONLY,
        )
        for each in signature.parameters.values()
    )


def namespace(fn: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """What names mean where the function was written."""
    inner = inspect.unwrap(fn)
    found = {**getattr(inner, "__globals__", {}), **names}
    code = getattr(inner, "__code__", None)
    for name, cell in zip(
        code.co_freevars if code else (), getattr(inner, "__closure__", None) or (), strict=True
    ):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def resolve(fn: Callable[..., Any], name: str, annotation: Any, names: Mapping[str, Any]) -> Any:
    """What an annotation means; Any if there is none. Raises NotYet or RegistrationError."""
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        hint = typing.get_type_hints(holder, dict(names), include_extras=True)[name]
    except NameError as error:
        raise NotYet(where(name), str(error.name)) from None
    except Exception as error:
        raise RegistrationError(
            f"{name_of(fn)}(): the annotation of {where(name)} cannot be understood: {error}"
        ) from error
    return Any if hint in (REQUIRED, typing.NoReturn, typing.Never) else hint
