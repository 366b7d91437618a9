"""Inputs given on the command line, and the workflow they are for."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from redrive.cli.exits import Misused

if TYPE_CHECKING:
    from redrive.app import Redrive, Workflow

__all__ = ["arguments", "content", "field", "known_workflow", "near", "one_input", "read_lines", "typed"]

_NAMED = 5  # problems of one input


def one_input(text: str | None) -> str:
    """The input as JSON text: an object; none given means no parameters; `@file` is the file's content."""
    return "{}" if text is None else _object(content(text, "--input"), "--input")


def read_lines(file: TextIO) -> Iterator[str]:
    """The inputs of a file with one on each line; empty lines are passed over."""
    try:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _object(line, f"line {number} of {file.name}")
    except UnicodeDecodeError as error:
        raise Misused(f"{file.name} is not UTF-8 text; nothing was started") from error


def content(text: str, option: str) -> str:
    """A value as it was given; `@file` is the file's content."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Misused(f"{option} {text}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Misused(f"{option} {text}: the file is not UTF-8 text") from error


def typed(text: str, what: str, advice: str = "") -> Any:
    """The JSON value that somebody typed."""
    from redrive.core.typed import read_typed
    from redrive.errors import InputError

    try:
        return read_typed(text).value
    except InputError as error:
        raise Misused(f"{what} is no JSON that can be used: {error}{advice}") from error


def field(text: str, option: str = "") -> tuple[str, Any]:
    """FIELD=VALUE as a pair; a value that is no JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise Misused(f"{option}{text!r} is no FIELD=VALUE; write {option}max_retries=5")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def arguments(workflow: Workflow[Any, Any, Any], text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the workflow is called with, or an error that says everything that is wrong with the names."""
    from redrive.errors import PayloadError

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
    from redrive.errors import UnknownWorkflow

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
    if not isinstance(typed(text, what), dict):
        raise Misused(
            f'{what} must be an object from parameter name to value, such as \'{{"order": "A-1"}}\''
        )
    return text
