"""Values as they are given on the command line: JSON, `@FILE`, and FIELD=VALUE."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.cli.exits import USAGE, Misused, Stopped

if TYPE_CHECKING:
    from redrive.policy import RetryPolicy

__all__ = ["json_object", "json_value", "retry_policy", "step_outputs"]


def json_value(text: str, option: str) -> Any:
    """Any JSON value; `@file` is the file's content."""
    try:
        return json.loads(_content(text, option))
    except ValueError as error:
        raise Misused(f"{option} is no JSON: {error}{_quoting(text)}") from error


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """A JSON object, or None if the option was not given."""
    if text is None:
        return None
    value = json_value(text, option)
    if not isinstance(value, dict):
        raise Misused(f'{option} must be an object from name to value, such as \'{{"order": "A-1"}}\'')
    return value


def step_outputs(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """NAME=JSON, as often as wanted, as a mapping from step to result."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise Misused(f"{option} {pair} is no NAME=JSON; write {option} charge='\"paid by hand\"'")
        found[name] = json_value(text, f"{option} {name}")
    return found


def retry_policy(fields: Sequence[str]) -> RetryPolicy | None:
    """FIELD=VALUE, as often as wanted, as a policy whose other fields have their defaults."""
    if not fields:
        return None
    from redrive.errors import ConfigurationError
    from redrive.policy import RetryPolicy

    try:
        return RetryPolicy.from_json(dict(_field(text) for text in fields))
    except ConfigurationError as error:
        raise Stopped(f"--retry: {error}", USAGE) from error


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Misused(f"--retry {text} is no FIELD=VALUE; write --retry max_retries=5")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _content(text: str, option: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise Misused(f"{option} {text}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Misused(f"{option} {text}: the file is not UTF-8 text") from error


def _quoting(text: str) -> str:
    """What people forget first: a text needs quotes of its own, inside those of the shell."""
    if text[:1].isalpha() and text not in ("true", "false", "null"):
        return f". A text needs quotes of its own: '\"{text}\"'"
    return ""
