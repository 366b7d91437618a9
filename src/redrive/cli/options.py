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

from redrive.cli.messages import NOT_FOUND, REFUSED, Misused, Stopped, code_of, hint, rewritten
from redrive.cli.output import clean, say
from redrive.frozen import dataclass

if TYPE_CHECKING:
    from redrive.app import Redrive, Workflow

__all__ = [
    "Change",
    "MOMENT",
    "SPAN",
    "arguments",
    "asking",
    "changing",
    "content",
    "each",
    "end",
    "field",
    "find_letter",
    "find_run",
    "find_set",
    "given",
    "known_workflow",
    "named_or_user",
    "near",
    "one_input",
    "read_lines",
    "tried",
    "typed",
    "user",
]


# -- Changing things: who did it, whether it is only tried, and whether to ask first ---------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a change is to be made."""

    by: str
    dry_run: bool
    yes: bool

    @property
    def somebody_watches(self) -> bool:
        """True if there is a person to ask."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, what: str) -> None:
        """Ask a person; a script that has no terminal is never asked."""
        if self.yes or self.dry_run or not self.somebody_watches:
            return
        with asking():
            agreed = click.confirm(f"{clean(what)}?", err=True)
        if not agreed:
            raise Stopped("nothing was changed", REFUSED)

    def expect_yes(self, otherwise: str, code: int = REFUSED) -> None:
        """End the command where nobody can be asked and nobody said `--yes`."""
        if not (self.yes or self.dry_run or self.somebody_watches):
            raise Stopped(otherwise, code)


def changing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--dry-run`, `--yes` and `--by`; it receives them as `change`."""

    @click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
    @click.option("-y", "--yes", is_flag=True, help="Do not ask.")
    @click.option("--by", metavar="NAME", help="Who does it, for the record.  [default: your user name]")
    @functools.wraps(command)
    def with_change(*args: Any, dry_run: bool, yes: bool, by: str | None, **others: Any) -> Any:
        change = Change(by=named_or_user(by, "--by"), dry_run=dry_run, yes=yes)
        return command(*args, change=change, **others)

    return with_change


@contextmanager
def asking() -> Iterator[None]:
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


def named_or_user(name: str | None, option: str) -> str:
    """Whom an option names, and whoever is at the keyboard where it was left out.

    An empty name is refused: it is what a script gives whose variable is not set.
    """
    if name is None:
        return user()
    if not name.strip():
        raise Misused(f"{option} is empty: give a name, or leave {option} out to mean yourself")
    return name


def user() -> str:
    """Who is at the keyboard, for what is recorded."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


async def each(ids: Sequence[str], act: Callable[[str], Awaitable[None]]) -> None:
    """Do the same to each; one that fails does not keep the others from it. Ends with the worst exit code."""
    end(await tried(ids, act))


async def tried(ids: Sequence[str], act: Callable[[str], Awaitable[None]]) -> int:
    """The same, and goes on after it: returns the worst exit code, 0 if all went well."""
    from redrive.errors import RedriveError

    worst = 0
    for id in ids:
        try:
            await act(id)
        except RedriveError as error:
            say(f"Error: {rewritten(str(error))}")
            worst = max(worst, code_of(error))
        except Stopped as error:
            say(f"Error: {error.message}")
            worst = max(worst, error.exit_code)
    return worst


def end(code: int) -> None:
    """End the command here, unless all went well."""
    if code:
        raise click.exceptions.Exit(code)


# -- Ids as people give them: whole, by a prefix that fits one thing only, or from standard input --------


_LETTER = "dl-"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26
_MOST = 10_000  # how many things are looked through for a prefix
_DRIFT = timedelta(hours=1)  # between the clock of whoever made an id and the store's


def given(words: Sequence[str]) -> list[str]:
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


async def find_run(app: Redrive, text: str) -> str:
    """The id of the run that is meant; a dead letter's id means its run."""
    text = text.removeprefix(_LETTER)
    if len(text) >= _LENGTH:
        return text
    found = await _with_prefix(app, text)
    if not found:
        raise Stopped(f"there is no run {text!r}; `{hint('runs', 'list')}` shows the newest", NOT_FOUND)
    return _only(text, found, "runs")


async def find_letter(app: Redrive, text: str) -> str:
    """The id of the dead letter that is meant; a run's id means its letter."""
    run = text.removeprefix(_LETTER)
    if len(run) >= _LENGTH:
        return text
    found = [letter for id in await _with_prefix(app, run) if (letter := await _letter_of(app, id))]
    if not found:
        raise Stopped(f"there is no dead letter {text!r}; `{hint('dlq', 'list')}` shows them", NOT_FOUND)
    return _only(text, list(dict.fromkeys(found)), "dead letters")


async def find_set(app: Redrive, text: str) -> str:
    """The id of the set that is meant."""
    from redrive.store.list_query import page_by_page

    prefix = text.lower()
    if len(prefix) >= _LENGTH:
        return prefix
    sets = page_by_page(lambda cursor: app.dlq.sets(limit=500, cursor=cursor))
    found = [one.id async for one in sets if one.id.startswith(prefix)] if prefix else []
    if not found:
        raise Stopped(f"there is no set {text!r}; `{hint('dlq', 'sets', 'list')}` shows them", NOT_FOUND)
    return _only(text, found, "sets")


async def _letter_of(app: Redrive, run_id: str) -> str | None:
    """The letter of a run, also one that was written for it and is about a later run by now."""
    from redrive.errors import NotFound

    try:
        return (await app.dlq.get(run_id)).id
    except NotFound:
        return None


def _only(text: str, found: list[str], what: str) -> str:
    if len(found) > 1:
        listed = "\n".join(f"  {id}" for id in found[:5])
        raise Stopped(f"{text!r} fits {len(found)} {what}; give more of one of them:\n{listed}", REFUSED)
    return found[0]


async def _with_prefix(app: Redrive, prefix: str) -> list[str]:
    """Runs whose ids begin so. An id begins with its time, so the prefix says where to look."""
    from redrive.store.filters import RunFilter

    prefix = prefix.lower()
    if not prefix or any(letter not in _ALPHABET for letter in prefix):
        return []
    since, until = _moment(prefix, "0", -_DRIFT), _moment(prefix, "z", _DRIFT)
    where = RunFilter(since=since, until=until)
    found: list[str] = []
    seen, cursor = 0, None
    while True:
        page = await app.runs.list(where, limit=500, cursor=cursor)
        found += (run.id for run in page.items if run.id.startswith(prefix))
        seen, cursor = seen + len(page.items), page.next
        if cursor is None:
            return found
        if seen >= _MOST:
            raise Stopped(f"{prefix!r} is too short among so many runs; give more of the id", REFUSED)


def _moment(prefix: str, rest: str, drift: timedelta) -> datetime:
    """The first or the last moment at which an id with this prefix can have been made."""
    value = 0
    for letter in prefix.ljust(_LENGTH, rest):
        value = value << 5 | _ALPHABET.index(letter)
    milliseconds = min(value >> 80, 4_000_000_000_000)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds) + drift


# -- Times as people give them: moments (`2h` ago, or an ISO 8601 time) and spans (`10m`) ----------------


class _Moment(click.ParamType["datetime"]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from datetime import datetime

        from redrive.clock import SystemClock
        from redrive.duration import before, moment

        if isinstance(value, datetime):
            return value
        found = before(value, moment(SystemClock().now()))
        if found is None:
            self.fail(f"{value!r} is no time: give 2h (ago), 2026-03-01 or 2026-03-01T14:00:00Z", param, ctx)
        return found


class _Span(click.ParamType[str]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from redrive.duration import seconds
        from redrive.errors import ConfigurationError

        try:
            seconds(value)
        except ConfigurationError:
            self.fail(f"{value!r} is no duration: give 90 (seconds), 30s, 5m, 1h30m or 2d", param, ctx)
        return str(value)


MOMENT = _Moment()
SPAN = _Span()


# -- Inputs given on the command line, and the workflow they are for -------------------------------------


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
    from redrive.core.json_edit import read_typed
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
