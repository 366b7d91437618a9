"""Options and values that users type: who changes something, times and durations, JSON, `@FILE`, FIELD=VALUE."""

from __future__ import annotations

import difflib
import functools
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from redrive.cli.errors import REFUSED, USAGE, CommandFailed, UsageError, suggest_names
from redrive.cli.output import escape_line

if TYPE_CHECKING:
    from redrive.app import Workflow
    from redrive.policy import RetryPolicy


class ChangeOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Options of a command that changes something."""

    by: str
    dry_run: bool
    yes: bool

    @property
    def is_interactive(self) -> bool:
        """True if the user can be asked: standard input and standard error are terminals."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, what: str) -> None:
        """Ask the user to confirm. A script without a terminal is not asked."""
        if self.yes or self.dry_run or not self.is_interactive:
            return
        with interruptible_prompt():
            agreed = click.confirm(f"{escape_line(what)}?", err=True)
        if not agreed:
            raise CommandFailed("nothing was changed", REFUSED)

    def require_yes(self, message: str, code: int = REFUSED) -> None:
        """End the command if the user cannot be asked and `--yes` was not given."""
        if not (self.yes or self.dry_run or self.is_interactive):
            raise CommandFailed(message, code)


def change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--dry-run`, `--yes` and `--by`; it receives them as `change`."""

    @click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
    @click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
    @click.option("--by", metavar="NAME", help="Your name in the audit log.  [default: your user name]")
    @functools.wraps(command)
    def with_change(*args: Any, dry_run: bool, yes: bool, by: str | None, **others: Any) -> Any:
        change = ChangeOptions(by=name_or_current_user(by, "--by"), dry_run=dry_run, yes=yes)
        return command(*args, change=change, **others)

    return with_change


@contextmanager
def interruptible_prompt() -> Iterator[None]:
    """Let the first Ctrl-C end a prompt."""
    # While an event loop runs, asyncio's handler takes the first Ctrl-C and the prompt would not notice it.
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def name_or_current_user(name: str | None, option: str) -> str:
    """Return the name that an option gives, else the current user."""
    if name is None:
        return current_user()
    if not name.strip():  # a script whose variable is not set passes an empty name
        raise UsageError(f"{option} is empty: give a name, or leave {option} out to use your user name")
    return name


def current_user() -> str:
    """Return the name of the operating system's user, for the audit log."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


class _TimeType(click.ParamType["datetime"]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from redrive.clock import SystemClock
        from redrive.duration import parse_past_time, to_datetime

        if isinstance(value, datetime):
            return value
        found = parse_past_time(value, to_datetime(SystemClock().now()))
        if found is None:
            self.fail(f"{value!r} is not a time: give 2h (ago), 2026-03-01 or 2026-03-01T14:00:00Z", param, ctx)
        return found


class _DurationType(click.ParamType[str]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from redrive.duration import parse_duration
        from redrive.errors import ConfigurationError

        try:
            parse_duration(value)
        except ConfigurationError:
            self.fail(f"{value!r} is not a duration: give 90 (seconds), 30s, 5m, 1h30m or 2d", param, ctx)
        return str(value)


TIME_TYPE = _TimeType()
DURATION_TYPE = _DurationType()
REASON_OPTION = click.option("--reason", metavar="TEXT", help="Why, for the audit log.")


def time_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options `--since` and `--until`."""
    until = click.option("--until", type=TIME_TYPE, metavar="TIME", help="Before.")
    since = click.option("--since", type=TIME_TYPE, metavar="TIME", help="At or after: 2h (ago), or an ISO time.")
    return since(until(command))


_MAX_PROBLEMS = 5  # reported problems of one input
_LIST_FIELDS = frozenset({"delays", "retry_on", "never_retry_on"})  # may be written as a,b,c
_MAX_DIGITS = 9


def read_input(text: str | None) -> str:
    """Return the value of `--input` as the text of a JSON object. `@file` reads a file, None is `{}`."""
    return "{}" if text is None else _require_object(_read_text_or_file(text, "--input"), "--input")


def read_input_lines(file: TextIO) -> Iterator[str]:
    """Yield the JSON objects of a file that has one on each line; skip empty lines."""
    try:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _require_object(line, f"line {number} of {file.name}")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file.name} is not UTF-8 text: nothing was started") from error


def _read_text_or_file(text: str, option: str) -> str:
    """Return a value from the command line. `@file` returns the content of the file."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{option} {text}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {text}: the file is not UTF-8 text") from error


def _parse_json_text(text: str, what: str, advice: str = "") -> Any:
    """Return the JSON value that the user typed."""
    from redrive.core.json_edit import parse_typed_json
    from redrive.errors import InputError

    try:
        return parse_typed_json(text).value
    except InputError as error:
        raise UsageError(f"{what} is not valid JSON: {error}{advice}") from error


def parse_field(text: str, option: str = "", *, example: str = "max_retries=5") -> tuple[str, Any]:
    """Return FIELD=VALUE as a pair. A value that is not JSON is text, or a list with commas where a field is one."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{option}{text!r} is not FIELD=VALUE: write {option}{example}")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = value
    if name in _LIST_FIELDS and isinstance(found, str):
        found = [item.strip() for item in found.split(",")]
    return name, found


def decode_arguments(workflow: Workflow[Any, Any, Any], text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for a workflow, or end the command with every wrong or missing name."""
    from redrive.errors import PayloadError

    try:
        return workflow.signature.decode(text)
    except PayloadError as error:
        schema, given = workflow.signature.build_input_schema(), json.loads(text)
        known, required = list(schema.get("properties", {})), schema.get("required", [])
        missing = [name for name in known if name not in given]
        unknown = [name for name in given if known and name not in known]
        # A missing name that looks like an unknown one is a typing error and is reported once.
        misspelt = {other for name in unknown for other in difflib.get_close_matches(name, missing, n=1)}
        problems = [
            *(f"{name}: is not a parameter{suggest_names(name, missing)}" for name in unknown),
            *(f"{name}: is missing" for name in missing if name in required and name not in misspelt),
        ]
        if not problems:
            raise
        more = [f"and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else []
        lines = [*problems[:_MAX_PROBLEMS], *more, f"it takes {', '.join(known) or 'no parameters'}"]
        message = "\n  ".join([f"the input does not fit {workflow.name!r}:", *lines])
        raise CommandFailed(message, REFUSED) from error


def _require_object(text: str, what: str) -> str:
    if not isinstance(_parse_json_text(text, what), dict):
        raise UsageError(f'{what} must be an object from parameter name to value, such as \'{{"order": "A-1"}}\'')
    return text


def parse_json_value(text: str, option: str) -> Any:
    """Parse any JSON value; `@file` reads a file."""
    # The quotes of the shell are easily taken for those of the JSON string.
    is_bare = text[:1].isalpha() and text not in ("true", "false", "null")
    advice = f". A JSON string needs its own quotes: '\"{text}\"'" if is_bare else ""
    return _parse_json_text(_read_text_or_file(text, option), option, advice)


def parse_json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """Parse a JSON object; return None if the option was not given."""
    if text is None:
        return None
    value = parse_json_value(text, option)
    if not isinstance(value, dict):
        raise UsageError(f'{option} must be a JSON object from name to value, such as \'{{"order": "A-1"}}\'')
    return value


def _split_pairs(pairs: Sequence[str], option: str, form: str, example: str) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {pair!r} is not {form}: write {option} {example}")
        yield name, value


def parse_step_outputs(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Parse NAME=JSON options into a mapping from step to result."""
    split = _split_pairs(pairs, option, "NAME=JSON", "charge='\"paid by hand\"'")
    return {name: parse_json_value(text, f"{option} {name}") for name, text in split}


def parse_index_values(pairs: Sequence[str], option: str) -> dict[str, str] | None:
    """Parse FIELD=VALUE options into a mapping from field to value; return None if there are none.

    A value stays a text, as the store compares texts. As JSON, the customer id 1E5 would become a number.
    """
    found: dict[str, str] = {}
    for name, value in _split_pairs(pairs, option, "FIELD=VALUE", "customer.email=ann@example.org"):
        if name in found:
            raise UsageError(f"{option} gives {name!r} twice: give one value for each field")
        found[name] = value
    return found or None


def parse_retry_policy(fields: Sequence[str]) -> RetryPolicy | None:
    """Parse FIELD=VALUE options into a policy; fields that are not given have their defaults."""
    if not fields:
        return None
    from redrive.errors import ConfigurationError
    from redrive.policy import RetryPolicy

    try:
        return RetryPolicy.from_json(dict(parse_field(text, "--retry ") for text in fields))
    except ConfigurationError as error:
        raise CommandFailed(f"--retry: {error}", USAGE) from error


def parse_step_number(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise UsageError(f"--from-step {text[:_MAX_DIGITS]}… has {len(text):,} digits: `dlq show` lists the steps")
    return int(text)
