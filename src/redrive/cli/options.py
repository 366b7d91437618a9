"""Options and values that users type: who changes something, times and durations, JSON, `@FILE`, FIELD=VALUE; and ids,
which are read from standard input, found by a prefix, and worked on one after the other."""

from __future__ import annotations

import difflib
import functools
import json
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from redrive.cli.errors import NOT_FOUND, REFUSED, USAGE, CommandFailed, UsageError, exit_code_for
from redrive.cli.hints import hint, rewrite_hints, suggest_names
from redrive.cli.output import echo_err, escape_line

if TYPE_CHECKING:
    from redrive.app import Redrive, Workflow
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


def check_assignee(to: str | None, unassign: bool) -> None:
    """Refuse `--to` without a name, and `--to` together with `--unassign`."""
    if to is not None and unassign:
        raise UsageError("--to and --unassign exclude each other")
    if to is not None and not to.strip():
        raise UsageError("--to is empty: give a name, leave --to out to take it yourself, or give --unassign")


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
        from redrive.time_values import parse_past_time, to_datetime

        if isinstance(value, datetime):
            return value
        found = parse_past_time(value, to_datetime(SystemClock().now()))
        if found is None:
            self.fail(f"{value!r} is not a time: give 2h (ago), 2026-03-01 or 2026-03-01T14:00:00Z", param, ctx)
        return found


class _DurationType(click.ParamType[str]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from redrive.errors import ConfigurationError
        from redrive.time_values import parse_duration

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


_LETTER_PREFIX = "dl-"
_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_LENGTH = 26
_MAX_RUNS_READ = 10_000  # runs that are searched for the prefix of an id
_MAX_CLOCK_DRIFT = timedelta(hours=1)  # between the process that made an id and the store


async def for_each_id(ids: Sequence[str], act: Callable[[str], Awaitable[None]]) -> int:
    """Call `act` with each id, also after one has failed. Return the highest exit code."""
    from redrive.errors import RedriveError

    worst = 0
    for id in ids:
        try:
            await act(id)
        except RedriveError as error:
            echo_err(f"Error: {rewrite_hints(str(error))}")
            worst = max(worst, exit_code_for(error))
        except CommandFailed as error:
            echo_err(f"Error: {error.message}")
            worst = max(worst, error.exit_code)
    return worst


def exit_if_failed(code: int) -> None:
    """End the command unless the exit code is 0."""
    if code:
        raise click.exceptions.Exit(code)


def read_ids(words: Sequence[str]) -> list[str]:
    """Return the ids of the command line. `-` reads them from standard input, the first word of each line."""
    found: list[str] = []
    for word in words:
        if word != "-":
            found.append(word)
            continue
        if sys.stdin.isatty():
            raise click.UsageError("- reads ids from standard input, which is a terminal: pipe ids in")
        found += (line.split()[0] for line in sys.stdin if line.strip())
    return list(dict.fromkeys(found))


async def find_run_id(app: Redrive, text: str) -> str:
    """Return the id of the run that a prefix names. The id of a dead letter names its run."""
    text = text.removeprefix(_LETTER_PREFIX)
    if len(text) >= _ID_LENGTH:
        return text
    return _require_single(text, await _find_runs_by_prefix(app, text), "run", "runs", "list")


async def find_letter_id(app: Redrive, text: str) -> str:
    """Return the id of the dead letter that a prefix names. The id of a run names its letter."""
    from redrive.errors import NotFound

    prefix = text.removeprefix(_LETTER_PREFIX)
    if len(prefix) >= _ID_LENGTH:
        return text
    found: list[str] = []
    for run_id in await _find_runs_by_prefix(app, prefix):
        with suppress(NotFound):
            # A letter that was written for this run may have moved to a later run, so ask instead of adding dl-.
            found.append((await app.dlq.get(run_id)).id)
    return _require_single(text, list(dict.fromkeys(found)), "dead letter", "dlq", "list")


async def find_bulk_id(app: Redrive, text: str) -> str:
    """Return the id of the bulk action that a prefix names."""
    from redrive.store.result_page import iterate_pages

    prefix = text.lower()
    if len(prefix) >= _ID_LENGTH:
        return prefix
    actions = iterate_pages(lambda cursor: app.dlq.sets(limit=500, cursor=cursor))
    found = [one.id async for one in actions if one.id.startswith(prefix)] if prefix else []
    return _require_single(text, found, "bulk action", "dlq", "bulk", "list")


def _require_single(text: str, found: list[str], kind: str, *list_command: str) -> str:
    if not found:
        raise CommandFailed(f"{kind} {text!r} was not found: `{hint(*list_command)}` lists the newest", NOT_FOUND)
    if len(found) > 1:
        listed = "\n".join(f"  {id}" for id in found[:5])
        raise CommandFailed(
            f"{text!r} is the beginning of {len(found)} {kind}s: give more of the id\n{listed}", REFUSED
        )
    return found[0]


async def _find_runs_by_prefix(app: Redrive, prefix: str) -> list[str]:
    """Return the ids of the runs that begin with a prefix."""
    from redrive.store.filters import RunFilter

    prefix = prefix.lower()
    if not prefix or any(letter not in _ID_ALPHABET for letter in prefix):
        return []
    # An id begins with the time at which it was made, so the prefix limits the search.
    since, until = _prefix_time(prefix, "0", -_MAX_CLOCK_DRIFT), _prefix_time(prefix, "z", _MAX_CLOCK_DRIFT)
    where = RunFilter(since=since, until=until)
    found: list[str] = []
    seen, cursor = 0, None
    while True:
        page = await app.runs.list(where, limit=500, cursor=cursor)
        found += (run.id for run in page.items if run.id.startswith(prefix))
        seen, cursor = seen + len(page.items), page.next
        if cursor is None:
            return found
        if seen >= _MAX_RUNS_READ:
            raise CommandFailed(f"{prefix!r} is too short for so many runs: give more of the id", REFUSED)


def _prefix_time(prefix: str, rest: str, drift: timedelta) -> datetime:
    """Return the time of the id that has this prefix and is filled up with `rest`."""
    value = 0
    for letter in prefix.ljust(_ID_LENGTH, rest):
        value = value << 5 | _ID_ALPHABET.index(letter)
    milliseconds = min(value >> 80, 4_000_000_000_000)  # datetime cannot represent every time of an id
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) + drift
