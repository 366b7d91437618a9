"""Operations of the desk as HTTP sees them, for the server and its client: routes, permissions and parameters."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, Unpack, get_args, get_origin, get_type_hints

import msgspec

from redrive.core.roles import Permission

CALLER_PARAMETERS = frozenset({"by", "reader"})
"""Parameters that name the caller. A client does not send them: the server takes the user from the credential."""

F = TypeVar("F", bound=Callable[..., Any])


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation as HTTP sees it: `id` names it in the OpenAPI document.

    `names` maps parameters to their names in a path, query or body where the two differ. `field` is the field of
    the answer that holds the result, where the answer is an object around it.
    """

    method: str
    path: str
    permission: Permission
    id: str = ""
    status: int = 200
    all_workflows: bool = False
    field: str | None = None
    names: Mapping[str, str] = {}

    @property
    def path_names(self) -> frozenset[str]:
        """The names of the parameters in the path."""
        return frozenset(re.findall(r"{(\w+)", self.path))


def operation(
    route: str,
    permission: Permission,
    *,
    id: str = "",
    status: int = 200,
    all_workflows: bool = False,
    field: str | None = None,
    **names: str,
) -> Callable[[F], F]:
    """Describe a method of the desk: `@operation("POST /circuits/{key:path}/open", Permission.DECIDE)`.

    The parameters are those of the method; other keywords say what a parameter is called on the wire.
    """
    method, path = route.split(" ")

    def describe(call: F) -> F:
        call.operation = Operation(  # type: ignore[attr-defined]
            method=method,
            path=path,
            permission=permission,
            id=id,
            status=status,
            all_workflows=all_workflows,
            field=field,
            names=names,
        )
        return call

    return describe


def get_operation(call: Callable[..., Any]) -> Operation:
    found: Operation = call.operation  # type: ignore[attr-defined]
    return found


def list_operations(facet: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of a class of the desk that are described, by name."""
    return {name: call for name, call in inspect.getmembers(facet) if hasattr(call, "operation")}


@cache
def get_parameters(call: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a method with their types, and those of `**options: Unpack[...]` one by one."""
    hints = get_type_hints(call, include_extras=True)
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in list(inspect.signature(call).parameters.items())[1:]:
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            found[name] = parameter.replace(annotation=hints[name])
        elif get_origin(hints[name]) is Unpack:
            for field, kind in get_type_hints(get_args(hints[name])[0]).items():
                found[field] = inspect.Parameter(field, parameter.KEYWORD_ONLY, default=None, annotation=kind)
    return found


def get_answer_type(call: Callable[..., Any]) -> Any:
    return get_type_hints(call)["return"]


def keep_local(call: F) -> F:
    """Return an operation without its description: a class of a client calls it here, not on the server."""

    @functools.wraps(call)
    async def local(*args: Any, **options: Any) -> Any:
        return await call(*args, **options)

    del local.operation  # type: ignore[attr-defined]
    return local  # type: ignore[return-value]
