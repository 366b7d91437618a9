"""Statements as PostgreSQL takes them: `:name` in the files becomes `$1`, `redrive.` the store's schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from redrive.store import sql_files

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
# `redrive.tenant` is a setting, the same for every schema.
_SCHEMA = re.compile(r"\bredrive(?=\.(?!tenant\b))|(?<=\bSCHEMA )redrive\b")


class NumberedStatement(msgspec.Struct, frozen=True, gc=False):
    """A statement and the names of its parameters, in the order of their numbers."""

    text: str
    names: tuple[str, ...]

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """The values in the order of the parameters."""
        return [values[name] for name in self.names]


@lru_cache(maxsize=4096)
def number_parameters(text: str) -> NumberedStatement:
    """Number the parameters of a statement; a name that comes twice is one parameter."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}"

    numbered = _PARAMETER.sub(number, text)
    return NumberedStatement(numbered, tuple(names))


def load_statements(file: str) -> dict[str, NumberedStatement]:
    """The statements of one of this store's files, by name."""
    return {name: number_parameters(text) for name, text in sql_files.load_statements(__package__, file).items()}


@lru_cache(maxsize=4096)
def replace_schema(text: str, schema: str) -> str:
    """The text for tables that lie in another schema than `redrive`."""
    return text if schema == "redrive" else _SCHEMA.sub(schema, text)
