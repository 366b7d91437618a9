"""Inputs given on the command line, and the workflow they are for."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from redrive.errors import PayloadError, UnknownWorkflow

if TYPE_CHECKING:
    from redrive.app import Redrive, Workflow

__all__ = ["arguments", "known_workflow", "near", "one_input", "read_lines"]

_NAMED = 5  # problems of one input


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


def arguments(workflow: Workflow[Any, Any, Any], text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the workflow is called with, or an error that says everything that is wrong with the names."""
    try:
        return workflow.signature.decode(text)
    except PayloadError as error:
        known = _parameters(workflow)
        problems = _wrong_names(json.loads(text), known)
        if not problems:
            raise
        more = [f"and {len(problems) - _NAMED} more"] if len(problems) > _NAMED else []
        lines = [*problems[:_NAMED], *more, f"it takes {', '.join(known) or 'no parameters'}"]
        raise PayloadError(
            "\n  ".join([f"the input does not fit {workflow.name!r}:", *lines]), path=error.path
        ) from error


def _parameters(workflow: Workflow[Any, Any, Any]) -> dict[str, bool]:
    """Every parameter's name, and whether it is needed; nothing if the types have no schema."""
    schema = workflow.signature.schema_in()
    needed = schema.get("required", [])
    return {name: name in needed for name in schema.get("properties", {})}


def _wrong_names(given: dict[str, Any], known: dict[str, bool]) -> list[str]:
    """Names that the workflow does not take, then those it lacks and that no typing error explains."""
    left = [name for name in known if name not in given]
    unknown = [name for name in given if known and name not in known]
    meant = {other for name in unknown for other in difflib.get_close_matches(name, left, n=1)}
    return [
        *(f"{name}: there is no such parameter{near(name, left)}" for name in unknown),
        *(f"{name}: is missing" for name in left if known[name] and name not in meant),
    ]


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
