"""The version of the user's code: a hash over the syntax trees of all registered functions."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

__all__ = ["code_version"]


def code_version(functions: Iterable[tuple[str, Callable[..., Any]]]) -> str:
    """Twelve hex digits that change when the code of a function does, but not with its comments or layout."""
    digest = hashlib.sha256()
    for name, fn in sorted(functions, key=lambda item: item[0]):
        digest.update(f"{name}\0{_shape(fn)}\0".encode())
    return digest.hexdigest()[:12]


def _shape(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not inspect.isroutine(fn):
        fn = type(fn).__call__  # an object that can be called
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(fn))))
    except (OSError, TypeError, SyntaxError):  # no source at hand, as in a console
        return _constant(getattr(fn, "__code__", None))


def _constant(value: Any) -> str:
    """A constant of compiled code as text that is the same in every process.

    The text of a code object names its address, that of a set depends on the process's hash seed.
    """
    match value:
        case CodeType():
            return f"{value.co_code.hex()}{_constant(value.co_consts)}{value.co_names!r}"
        case tuple():
            return f"({','.join(map(_constant, value))})"
        case frozenset():
            return f"{{{','.join(sorted(map(_constant, value)))}}}"
        case _:
            return repr(value)
