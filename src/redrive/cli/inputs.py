"""Inputs given on the command line, and the workflow they are for."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from redrive.errors import UnknownWorkflow

if TYPE_CHECKING:
    from redrive.app import Redrive, Workflow

__all__ = ["known_workflow", "near", "one_input", "read_lines"]


def one_input(text: str | None) -> str:
    """The input as JSON text: an object; none given means no parameters; `@file` is the file's content."""
    if text is None:
        return "{}"
    if not text.startswith("@"):
        return _object(text, "--input")
    try:
        content = Path(text[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--input {text}: {error.strerror}") from error
    return _object(content, text[1:])


def read_lines(file: TextIO) -> Iterator[str]:
    """The inputs of a file with one on each line; empty lines are passed over."""
    for number, line in enumerate(file, 1):
        if line.strip():
            yield _object(line, f"line {number} of {file.name}")


def known_workflow(app: Redrive, name: str) -> Workflow[Any, Any, Any]:
    """The workflow of that name, or an error that names those that are like it."""
    found = app.registered_workflows.get(name)
    if found is None:
        names = sorted(app.registered_workflows)
        raise UnknownWorkflow(
            f"no workflow is called {name!r}; registered are: {', '.join(names)}{near(name, names)}"
        )
    return found


def near(name: str, known: list[str]) -> str:
    """`; did you mean ...?` with the names most like this one, or nothing."""
    found = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def _object(text: str, what: str) -> str:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{what} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise click.UsageError(
            f'{what} must be an object from parameter name to value, such as \'{{"order": "A-1"}}\''
        )
    return text
