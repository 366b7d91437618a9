"""Output of commands: tables for people, tab-separated lines for pipes, JSON for programs, or ids alone.

On a terminal a table has a heading and times read "3 m ago". In a pipe each item is one line without a heading,
and times are ISO 8601.

Commands print with `echo`. It escapes control characters, which stored text may contain. If the reader of the
pipe exits (`| head -1`), printing ends and the work continues.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Generic, TextIO, TypeVar

import click
import msgspec

from redrive.core.redact import escape_controls
from redrive.core.roles import DEFAULT_TENANT
from redrive.record_fields import as_dict, is_record

Item = TypeVar("Item")
_MIN_TEXT_WIDTH = 40
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"  # textwrap does not break a line there
_COMMAND_PATTERN = re.compile(r"(?<=: )\S*redrive .*$|`[^`]*`")
# `style_text` marks the styles of this program with a random token. Stored text cannot contain the token, so `echo`
# escapes the styles in it: one of them could hide the rest of a line.
_STYLE_TOKEN = os.urandom(8).hex()
_STYLE_PATTERN = re.compile(f"\\\\u001b{_STYLE_TOKEN}(\\[[0-9;]*m)")
_CLOSED_STREAMS: list[TextIO] = []  # streams whose reader has exited
_MAX_PAYLOAD_LINES = 20
_MIN_COLUMN_WIDTH = 8  # a narrower column cannot be read
_STATUS_COLOURS = {
    "SUCCESS": "green",
    "RUNNING": "cyan",
    "SLEEPING": "yellow",
    "RETRYING": "yellow",
    "DLQ_PENDING": "red",
    "FAILED": "red",
    "DLQ": "red",
    "OPEN": "red",
    "TIMED_OUT": "magenta",
    "CANCELLED": "bright_black",
}


def fold_text(text: str, stream: TextIO, *, deeper: str = "") -> str:
    """Fold lines that are wider than the terminal; continued lines are indented by `deeper` as well.

    A command at the end of a line or in backquotes is not folded, so that it can be copied.
    """
    if not stream.isatty():
        return text
    width = max(_MIN_TEXT_WIDTH, shutil.get_terminal_size().columns)
    folded: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip(" ")))
        filled = textwrap.fill(
            _COMMAND_PATTERN.sub(lambda found: found[0].replace(" ", _NO_BREAK_SPACE), line.strip(" ")),
            width,
            initial_indent=indent,
            subsequent_indent=indent + deeper,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        folded.append(filled.replace(_NO_BREAK_SPACE, " "))
    return "\n".join(folded)


class Column(msgspec.Struct, Generic[Item], frozen=True):
    """Title and value of a table column.

    A `sentence` that does not fit beside the other columns is printed below them. A column with `ends` is cut at
    the front.
    """

    title: str
    value: Callable[[Item], Any]
    sentence: bool = False
    ends: bool = False


def field_columns(**fields: str) -> list[Column[Any]]:
    """Return columns with fields of the items, by title. `_` in a title is a space."""

    def read(item: Any, name: str) -> Any:
        return item[name] if isinstance(item, dict) else getattr(item, name)

    return [Column(title.replace("_", " "), functools.partial(read, name=name)) for title, name in fields.items()]


class Output(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Output format that the user chose."""

    json: bool = False
    quiet: bool = False

    def list(
        self,
        items: Sequence[Item],
        columns: Sequence[Column[Item]],
        *,
        id: Callable[[Item], str],
        empty: str,
        next: str | None = None,
        prev: str | None = None,
        **also: Any,
    ) -> None:
        """Print a page of items; on a terminal, `empty` is printed if there are none."""
        if self.json:
            self.object({"items": [as_json(item) for item in items], "next": next, "prev": prev, **also})
            return
        if self.quiet:
            for item in items:
                echo(id(item))
        elif not on_terminal():
            for item in items:
                echo("\t".join(_format_cell(column.value(item), piped=True) for column in columns))
        elif not items:
            echo(empty)
        else:
            _print_table(items, columns)
        if next is not None:
            context = click.get_current_context(silent=True)
            has_all = context is not None and any(each.name == "everything" for each in context.command.params)
            echo_err(f"There are more. {'--all lists everything; ' if has_all else ''}the next page: --cursor {next}")

    def object(self, value: Any) -> None:
        """Print one value as JSON."""
        echo(json_text(value, indent=2))

    def record(self, short: str, value: Any, text: str) -> None:
        """Print one record: as JSON, as `short` (its id, usually), or as `text`."""
        echo(json_text(value, indent=2) if self.json else escape_line(short) if self.quiet else text)

    def done(self, id: str, value: Any, text: str) -> None:
        """Print the result of a change: as one line of JSON, the id, or `text`."""
        echo(json_text(value) if self.json else id if self.quiet else text)


def output_options(command: Callable[..., Any], quiet_help: str = "Print ids and nothing else.") -> Callable[..., Any]:
    """Give a command the options `--json` and `--quiet`; it receives them as `output`."""

    @click.option("--json", "json_", is_flag=True, help="Print JSON; its fields do not change.")
    @click.option("-q", "--quiet", is_flag=True, help=quiet_help)
    @functools.wraps(command)
    def with_output(*args: Any, json_: bool, quiet: bool, **others: Any) -> Any:
        if json_ and quiet:
            raise click.UsageError("--json and --quiet cannot be combined: choose one")
        return command(*args, output=Output(json=json_, quiet=quiet), **others)

    return with_output


def echo_err(text: str) -> None:
    """Print a message for the user on standard error, so that programs do not read it."""
    echo(fold_text(text, sys.stderr), err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Print text with control characters escaped. If the reader has exited, print nothing and return."""
    try:
        click.echo(make_printable(text), err=err)
    except BrokenPipeError:
        stream = sys.stderr if err else sys.stdout
        _CLOSED_STREAMS.append(stream)
        # Python flushes the stream at exit, which would raise BrokenPipeError again.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)


def make_printable(text: str) -> str:
    """Escape everything that a terminal would obey, except the styles that `style_text` made."""
    return _STYLE_PATTERN.sub("\x1b\\1", escape_controls(text, lines=True))


def is_stdout_closed() -> bool:
    """Return True if the reader of standard output has exited."""
    return sys.stdout in _CLOSED_STREAMS


def display_tenant(tenant: str) -> str | None:
    """Return a tenant as lists show it: on a terminal, the default tenant is left out."""
    return None if tenant == DEFAULT_TENANT and on_terminal() else tenant


def on_terminal() -> bool:
    """Return True if standard output is a terminal."""
    return sys.stdout.isatty()


def use_colour() -> bool:
    """Return True on a terminal, unless NO_COLOR is set or TERM is dumb."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style_text(text: str, **style: Any) -> str:
    """Return the text in a style if colours are on; print it with `echo` or through `make_printable`."""
    return click.style(text, **style).replace("\x1b[", f"\x1b{_STYLE_TOKEN}[") if use_colour() else text


def escape_line(text: str) -> str:
    """Return stored text as one line without control characters."""
    return escape_controls(text)


def _print_table(items: Sequence[Item], columns: Sequence[Column[Item]]) -> None:
    """Print the columns that have values, from the left, as many as fit the terminal."""
    room = shutil.get_terminal_size().columns
    all_cells = [
        _ColumnCells(column, [column.title, *(_format_cell(column.value(item), piped=False) for item in items)])
        for column in columns
    ]
    filled = [cells for cells in all_cells if cells.has_values]
    beside, below = filled, []
    if sum(cells.width + 2 for cells in filled) - 2 > room:
        beside = [cells for cells in filled if not cells.column.sentence]
        below = [cells for cells in filled if cells.column.sentence]
    fitting: list[list[str]] = []
    left = room
    for cells in beside:
        width = cells.width
        if fitting and width > left:
            # The last column that fits is cut; the columns after it are dropped.
            if left < _MIN_COLUMN_WIDTH:
                break
            width = left
        fitting.append(cells.fit_to_width(width))
        left -= width + 2
    for number, line in enumerate(zip(*fitting, strict=True)):
        styles = [{"bold": True} if number == 0 else {"fg": _STATUS_COLOURS.get(cell.strip())} for cell in line]
        parts = (style_text(cell, **style) for cell, style in zip(line, styles, strict=True))
        echo("  ".join(parts).rstrip())
        for sentence in below if number else []:
            echo(textwrap.fill(sentence.texts[number], room, initial_indent="    ", subsequent_indent="    "))
    if dropped := ", ".join(cells.column.title for cells in beside[len(fitting) :]):
        echo_err(f"No room for {dropped}: a wider terminal shows more, --json shows everything.")


class _ColumnCells(msgspec.Struct, frozen=True):
    """Column with its title and cells as text."""

    column: Column[Any]
    texts: list[str]

    @property
    def has_values(self) -> bool:
        return any(text != "-" for text in self.texts[1:])

    @property
    def width(self) -> int:
        return max(map(len, self.texts))

    def fit_to_width(self, width: int) -> list[str]:
        """Return the title and the cells, padded or cut to the width."""
        title, *texts = self.texts
        cut = [_truncate(title, width, ends=False), *(_truncate(text, width, ends=self.column.ends) for text in texts)]
        return [text.ljust(width) for text in cut]


def _truncate(text: str, width: int, *, ends: bool) -> str:
    if len(text) <= width:
        return text
    return f"…{text[1 - width :]}" if ends else f"{text[: width - 1]}…"


def as_json(value: Any) -> Any:
    """Convert a value to plain JSON: records to objects, times to ISO 8601 in UTC, tuples to lists."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case Enum():
            return value.value
        case dict():
            return {str(key): as_json(one) for key, one in value.items()}
        case list() | tuple():
            return [as_json(one) for one in value]
        case _ if is_record(value):
            return {name: as_json(one) for name, one in as_dict(value).items()}
        case _:
            return value


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON text with control characters escaped."""
    return escape_controls(json.dumps(as_json(value), indent=indent, ensure_ascii=False), lines=True)


def _format_cell(value: Any, *, piped: bool) -> str:
    """Return a cell as one line: with ISO times in a pipe, with relative times in a table."""
    if value is None or value == "":
        return "" if piped else "-"
    if isinstance(value, datetime):
        return str(as_json(value)) if piped else format_age(value)
    return escape_line(" ".join(str(value).split()))


def format_age(moment: datetime) -> str:
    """Return the time from now in its two largest units, such as "3 m 20 s ago" or "in 2 h"."""
    from redrive.clock import MICROS, SystemClock
    from redrive.time_values import format_duration

    passed = SystemClock().now() / MICROS - moment.timestamp()
    if abs(passed) < 1:
        return "now"
    whole = " ".join(format_duration(round(abs(passed))).split()[:2])
    return f"{whole} ago" if passed > 0 else f"in {whole}"


def format_time(moment: datetime | None) -> str:
    """Return a time for a sentence."""
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def terminal_width() -> int:
    """Return the columns of the terminal, at most 140."""
    return min(140, shutil.get_terminal_size().columns)


def render_facts(**values: Any) -> list[str]:
    """Render named values, one to a line; leave out those that are None."""
    lines = [
        f"  {name.replace('_', ' '):<12} {escape_line(' '.join(str(value).split()))}"
        for name, value in values.items()
        if value is not None
    ]
    return [fold_text(line, sys.stdout, deeper=" " * 13) for line in lines]


def render_payload(title: str, value: Any) -> list[str]:
    """Render a payload as indented JSON, shortened if it is long."""
    lines = json.dumps(as_json(value), indent=2, ensure_ascii=False).splitlines()
    if len(lines) > _MAX_PAYLOAD_LINES:
        lines = [*lines[:_MAX_PAYLOAD_LINES], f"… and {len(lines) - _MAX_PAYLOAD_LINES} more lines; --json shows all"]
    return [f"  {title}", *(f"    {escape_line(line)}" for line in lines)]
