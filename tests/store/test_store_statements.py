"""Reading statements from `.sql` files."""

from __future__ import annotations

from importlib.resources import files

import pytest

from redrive.errors import ConfigurationError
from redrive.store.statements import load, parse

SQLITE = "redrive.store.sqlite"


def test_statements_are_found_by_name() -> None:
    text = "-- A file.\n\n-- name: one\n-- The first.\nSELECT 1;\n"
    text += "\n-- name: two\n-- The second.\nSELECT 2,\n  3;\n"
    assert parse(text, "x.sql") == {"one": "SELECT 1", "two": "SELECT 2,\n  3"}


def test_a_statement_without_a_purpose_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="what it is for"):
        parse("-- name: one\nSELECT 1;\n", "x.sql")


def test_a_name_is_given_once() -> None:
    with pytest.raises(ConfigurationError, match="two statements"):
        parse("-- name: a\n-- One.\nSELECT 1;\n-- name: a\n-- Two.\nSELECT 2;\n", "x.sql")


def test_every_statement_is_used() -> None:
    package = files(SQLITE)
    sources = {item.name: item.read_text("utf-8") for item in package.iterdir() if item.name.endswith(".py")}
    for file in package.joinpath("statements").iterdir():
        (source,) = [text for text in sources.values() if f'"{file.name}"' in text]
        for name in load(SQLITE, file.name):
            last = name.split(".")[-1]
            used = f'"{last}"' in source or f'.{last}"' in source or f"    {last}: " in _filters()
            assert used, f"{file.name}: nobody uses {name!r}"


def _filters() -> str:
    return files("redrive.store").joinpath("port.py").read_text("utf-8")
