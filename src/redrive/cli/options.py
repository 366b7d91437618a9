"""Inputs given on the command line, and the workflow they are for."""

from __future__ import annotations

import difflib
import functools
import json
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from redrive.cli.messages import NOT_FOUND, REFUSED, CommandFailed, UsageError, exit_code_for, hint, rewrite_hints
from redrive.cli.output import echo_err, escape_line

if TYPE_CHECKING:
    from redrive.app import Redrive, Workflow

# -- Changing things: who did it, whether it is only tried, and whether to ask first ---------------------


class ChangeOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a change is to be made."""

    by: str
    dry_run: bool
    yes: bool

    @property
    def is_interactive(self) -> bool:
        """True if there is a person to ask."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, what: str) -> None:
        """Ask a person; a script that has no terminal is never asked."""
        if self.yes or self.dry_run or not self.is_interactive:
            return
        with interruptible_prompt():
            agreed = click.confirm(f"{escape_line(what)}?", err=True)
        if not agreed:
            raise CommandFailed("nothing was changed", REFUSED)

    def require_yes(self, otherwise: str, code: int = REFUSED) -> None:
        """End the command where nobody can be asked and nobody said `--yes`."""
        if not (self.yes or self.dry_run or self.is_interactive):
            raise CommandFailed(otherwise, code)


def change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--dry-run`, `--yes` and `--by`; it receives them as `change`."""

    @click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
    @click.option("-y", "--yes", is_flag=True, help="Do not ask.")
    @click.option("--by", metavar="NAME", help="Who does it, for the record.  [default: your user name]")
    @functools.wraps(command)
    def with_change(*args: Any, dry_run: bool, yes: bool, by: str | None, **others: Any) -> Any:
        change = ChangeOptions(by=name_or_current_user(by, "--by"), dry_run=dry_run, yes=yes)
        return command(*args, change=change, **others)

    return with_change


@contextmanager
def interruptible_prompt() -> Iterator[None]:
    """Let one Ctrl-C end a question; while an event loop runs, Python keeps the first one for the loop."""
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
    """Whom an option names, and whoever is at the keyboard where it was left out.

    An empty name is refused: it is what a script gives whose variable is not set.
    """
    if name is None:
        return current_user()
    if not name.strip():
        raise UsageError(f"{option} is empty: give a name, or leave {option} out to mean yourself")
    return name


def current_user() -> str:
    """Who is at the keyboard, for what is recorded."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


async def for_each_id_or_exit(ids: Sequence[str], act: Callable[[str], Awaitable[None]]) -> None:
    """Do the same to each; one that fails does not keep the others from it. Ends with the worst exit code."""
    exit_if_failed(await for_each_id(ids, act))


async def for_each_id(ids: Sequence[str], act: Callable[[str], Awaitable[None]]) -> int:
    """The same, and goes on after it: returns the worst exit code, 0 if all went well."""
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
    """End the command here, unless all went well."""
    if code:
        raise click.exceptions.Exit(code)


# -- Ids as people give them: whole, by a prefix that fits one thing only, or from standard input --------


_LETTER_PREFIX = "dl-"
_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_LENGTH = 26
_MAX_RUNS_READ = 10_000  # how many things are looked through for a prefix
_MAX_CLOCK_DRIFT = timedelta(hours=1)  # between the clock of whoever made an id and the store's


def read_ids(words: Sequence[str]) -> list[str]:
    """The ids on the command line; `-` stands for those on standard input, the first word of each line."""
    found: list[str] = []
    for word in words:
        if word != "-":
            found.append(word)
            continue
        if sys.stdin.isatty():
            raise click.UsageError("- reads ids from standard input, which is a terminal: pipe them in")
        found += (line.split()[0] for line in sys.stdin if line.strip())
    return list(dict.fromkeys(found))


async def find_run_id(app: Redrive, text: str) -> str:
    """The id of the run that is meant; a dead letter's id means its run."""
    text = text.removeprefix(_LETTER_PREFIX)
    if len(text) >= _ID_LENGTH:
        return text
    found = await _find_runs_by_prefix(app, text)
    if not found:
        raise CommandFailed(f"there is no run {text!r}; `{hint('runs', 'list')}` shows the newest", NOT_FOUND)
    return _require_single(text, found, "runs")


async def find_letter_id(app: Redrive, text: str) -> str:
    """The id of the dead letter that is meant; a run's id means its letter."""
    run = text.removeprefix(_LETTER_PREFIX)
    if len(run) >= _ID_LENGTH:
        return text
    found = [letter for id in await _find_runs_by_prefix(app, run) if (letter := await _find_letter_of_run(app, id))]
    if not found:
        raise CommandFailed(f"there is no dead letter {text!r}; `{hint('dlq', 'list')}` shows them", NOT_FOUND)
    return _require_single(text, list(dict.fromkeys(found)), "dead letters")


async def find_bulk_id(app: Redrive, text: str) -> str:
    """The id of the set that is meant."""
    from redrive.store.list_query import iterate_pages

    prefix = text.lower()
    if len(prefix) >= _ID_LENGTH:
        return prefix
    sets = iterate_pages(lambda cursor: app.dlq.sets(limit=500, cursor=cursor))
    found = [one.id async for one in sets if one.id.startswith(prefix)] if prefix else []
    if not found:
        raise CommandFailed(f"there is no set {text!r}; `{hint('dlq', 'sets', 'list')}` shows them", NOT_FOUND)
    return _require_single(text, found, "sets")


async def _find_letter_of_run(app: Redrive, run_id: str) -> str | None:
    """The letter of a run, also one that was written for it and is about a later run by now."""
    from redrive.errors import NotFound

    try:
        return (await app.dlq.get(run_id)).id
    except NotFound:
        return None


def _require_single(text: str, found: list[str], what: str) -> str:
    if len(found) > 1:
        listed = "\n".join(f"  {id}" for id in found[:5])
        raise CommandFailed(f"{text!r} fits {len(found)} {what}; give more of one of them:\n{listed}", REFUSED)
    return found[0]


async def _find_runs_by_prefix(app: Redrive, prefix: str) -> list[str]:
    """Runs whose ids begin so. An id begins with its time, so the prefix says where to look."""
    from redrive.store.filters import RunFilter

    prefix = prefix.lower()
    if not prefix or any(letter not in _ID_ALPHABET for letter in prefix):
        return []
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
            raise CommandFailed(f"{prefix!r} is too short among so many runs; give more of the id", REFUSED)


def _prefix_time(prefix: str, rest: str, drift: timedelta) -> datetime:
    """The first or the last moment at which an id with this prefix can have been made."""
    value = 0
    for letter in prefix.ljust(_ID_LENGTH, rest):
        value = value << 5 | _ID_ALPHABET.index(letter)
    milliseconds = min(value >> 80, 4_000_000_000_000)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) + drift


# -- Times as people give them: moments (`2h` ago, or an ISO 8601 time) and spans (`10m`) ----------------


class _TimeType(click.ParamType["datetime"]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from datetime import datetime

        from redrive.clock import SystemClock
        from redrive.duration import parse_past_time, to_datetime

        if isinstance(value, datetime):
            return value
        found = parse_past_time(value, to_datetime(SystemClock().now()))
        if found is None:
            self.fail(f"{value!r} is no time: give 2h (ago), 2026-03-01 or 2026-03-01T14:00:00Z", param, ctx)
        return found


class _DurationType(click.ParamType[str]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from redrive.duration import parse_duration
        from redrive.errors import ConfigurationError

        try:
            parse_duration(value)
        except ConfigurationError:
            self.fail(f"{value!r} is no duration: give 90 (seconds), 30s, 5m, 1h30m or 2d", param, ctx)
        return str(value)


TIME_TYPE = _TimeType()
DURATION_TYPE = _DurationType()


# -- Inputs given on the command line, and the workflow they are for -------------------------------------


_MAX_PROBLEMS = 5  # problems of one input


def read_input(text: str | None) -> str:
    """The input as JSON text: an object; none given means no parameters; `@file` is the file's content."""
    return "{}" if text is None else _require_object(read_text_or_file(text, "--input"), "--input")


def read_input_lines(file: TextIO) -> Iterator[str]:
    """The inputs of a file with one on each line; empty lines are passed over."""
    try:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _require_object(line, f"line {number} of {file.name}")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file.name} is not UTF-8 text; nothing was started") from error


def read_text_or_file(text: str, option: str) -> str:
    """A value as it was given; `@file` is the file's content."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{option} {text}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {text}: the file is not UTF-8 text") from error


def parse_json_text(text: str, what: str, advice: str = "") -> Any:
    """The JSON value that somebody typed."""
    from redrive.core.json_edit import parse_typed_json
    from redrive.errors import InputError

    try:
        return parse_typed_json(text).value
    except InputError as error:
        raise UsageError(f"{what} is no JSON that can be used: {error}{advice}") from error


def parse_field(text: str, option: str = "") -> tuple[str, Any]:
    """FIELD=VALUE as a pair; a value that is no JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{option}{text!r} is no FIELD=VALUE; write {option}max_retries=5")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def decode_arguments(workflow: Workflow[Any, Any, Any], text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the workflow is called with, or an error that says everything that is wrong with the names."""
    from redrive.errors import PayloadError

    try:
        return workflow.signature.decode(text)
    except PayloadError as error:
        known = _list_parameters(workflow)
        problems = _find_name_problems(json.loads(text), known)
        if not problems:
            raise
        more = [f"and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else []
        lines = [*problems[:_MAX_PROBLEMS], *more, f"it takes {', '.join(known) or 'no parameters'}"]
        raise PayloadError(
            "\n  ".join([f"the input does not fit {workflow.name!r}:", *lines]), path=error.path
        ) from error


def _list_parameters(workflow: Workflow[Any, Any, Any]) -> dict[str, bool]:
    """Every parameter's name, and whether it is needed; nothing if the types have no schema."""
    schema = workflow.signature.schema_in()
    needed = schema.get("required", [])
    return {name: name in needed for name in schema.get("properties", {})}


def _find_name_problems(given: dict[str, Any], known: dict[str, bool]) -> list[str]:
    """Names that the workflow does not take, then those it lacks and that no typing error explains."""
    left = [name for name in known if name not in given]
    unknown = [name for name in given if known and name not in known]
    meant = {other for name in unknown for other in difflib.get_close_matches(name, left, n=1)}
    return [
        *(f"{name}: there is no such parameter{suggest_names(name, left)}" for name in unknown),
        *(f"{name}: is missing" for name in left if known[name] and name not in meant),
    ]


def require_workflow(app: Redrive, name: str) -> Workflow[Any, Any, Any]:
    """The workflow of that name, or an error that names those that are like it."""
    from redrive.errors import UnknownWorkflow

    found = app.registered_workflows.get(name)
    if found is None:
        names = sorted(app.registered_workflows)
        raise UnknownWorkflow(
            f"no workflow is called {name!r}; registered are: {', '.join(names)}{suggest_names(name, names)}"
        )
    return found


def suggest_names(name: str, known: list[str]) -> str:
    """`; did you mean ...?` with the names most like this one, or nothing."""
    found = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def _require_object(text: str, what: str) -> str:
    if not isinstance(parse_json_text(text, what), dict):
        raise UsageError(f'{what} must be an object from parameter name to value, such as \'{{"order": "A-1"}}\'')
    return text
