"""Values as they are given on the command line: JSON, `@FILE`, and FIELD=VALUE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redrive.cli.messages import USAGE, CommandFailed, UsageError
from redrive.cli.options import parse_field, parse_json_text, read_text_or_file

if TYPE_CHECKING:
    from redrive.policy import RetryPolicy

_MAX_DIGITS = 9


def parse_json_value(text: str, option: str) -> Any:
    """Any JSON value; `@file` is the file's content."""
    return parse_json_text(read_text_or_file(text, option), option, _advise_quotes(text))


def parse_json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """A JSON object, or None if the option was not given."""
    if text is None:
        return None
    value = parse_json_value(text, option)
    if not isinstance(value, dict):
        raise UsageError(f'{option} must be an object from name to value, such as \'{{"order": "A-1"}}\'')
    return value


def parse_step_outputs(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """NAME=JSON, as often as wanted, as a mapping from step to result."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {pair} is no NAME=JSON; write {option} charge='\"paid by hand\"'")
        found[name] = parse_json_value(text, f"{option} {name}")
    return found


def parse_index_values(pairs: Sequence[str], option: str) -> dict[str, str] | None:
    """FIELD=VALUE, as often as wanted, as a mapping from field to value; None if there is none.

    A value stays the text that it is: so it is kept and compared. As JSON, 1E5 would be a number, and the
    customer with that id would not be found.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {pair!r} is no FIELD=VALUE; write {option} customer.email=ann@example.org")
        if name in found:
            raise UsageError(f"{option} gives {name!r} twice: it takes one value for each field")
        found[name] = value
    return found or None


def parse_retry_policy(fields: Sequence[str]) -> RetryPolicy | None:
    """FIELD=VALUE, as often as wanted, as a policy whose other fields have their defaults."""
    if not fields:
        return None
    from redrive.errors import ConfigurationError
    from redrive.policy import RetryPolicy

    try:
        return RetryPolicy.from_json(dict(parse_field(text, "--retry ") for text in fields))
    except ConfigurationError as error:
        raise CommandFailed(f"--retry: {error}", USAGE) from error


def parse_rate_option(text: str) -> str:
    """How many letters may be decided on in a second, a minute or an hour."""
    from redrive.core.schedule import parse_rate
    from redrive.errors import InputError

    try:
        return str(parse_rate(text))
    except InputError as error:
        raise UsageError(str(error)) from error


def parse_step_number(text: str) -> int:
    """A step by its number."""
    if len(text) > _MAX_DIGITS:
        raise UsageError(f"--from-step {text[:_MAX_DIGITS]}… has {len(text):,} digits; `dlq show` lists the steps")
    return int(text)


def _advise_quotes(text: str) -> str:
    """What people forget first: a text needs quotes of its own, inside those of the shell."""
    if text[:1].isalpha() and text not in ("true", "false", "null"):
        return f". A text needs quotes of its own: '\"{text}\"'"
    return ""
