"""The version of the user's code: a hash over the syntax trees of all registered functions."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["code_version"]


def code_version(functions: Iterable[tuple[str, Callable[..., Any]]]) -> str:
    """Twelve hex digits that change when the code of a function does, but not with its comments or layout."""
    digest = hashlib.sha256()
    for name, fn in sorted(functions, key=lambda item: item[0]):
        digest.update(f"{name}\0{_shape(fn)}\0".encode())
    return digest.hexdigest()[:12]


def _shape(fn: Callable[..., Any]) -> str:
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(fn))))
    except (OSError, TypeError, SyntaxError):  # no source at hand, as in a console
        code = getattr(fn, "__code__", None)
        return "" if code is None else f"{code.co_code.hex()}{code.co_consts!r}{code.co_names!r}"
