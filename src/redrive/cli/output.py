"""How results are shown: tables for people, tab-separated lines for pipes, JSON for programs, ids alone.

On a terminal a table has a heading and times read "3 m ago"; piped, there is one line per thing
without a heading, and times are ISO 8601.

All that is printed passes `echo`: no sign that a terminal would obey goes through, whoever wrote it, and a
reader that goes away (`| head -1`) ends the printing, not the work.
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
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
from redrive.records import as_dict, is_record

# -- Lines that end between words where a person reads them, and stay whole where a program does ---------


_MIN_TEXT_WIDTH = 40
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"  # a space to the eye, no place to fold for textwrap
_COMMAND_PATTERN = re.compile(r"(?<=: )\S*redrive .*$|`[^`]*`")


def fold_text(text: str, stream: TextIO, *, deeper: str = "") -> str:
    """The text as the stream is to have it; folded lines go on below their first word, `deeper` to the right.

    A command at the end of a line or in backquotes is never folded, so that it can be copied.
    """
    if not stream.isatty():
        return text
    width = max(_MIN_TEXT_WIDTH, shutil.get_terminal_size().columns)
    return "\n".join(_fold_line(line, width, deeper) for line in text.split("\n"))


def _fold_line(line: str, width: int, deeper: str) -> str:
    indent = " " * (len(line) - len(line.lstrip(" ")))
    whole = _COMMAND_PATTERN.sub(lambda found: found[0].replace(" ", _NO_BREAK_SPACE), line.strip(" "))
    filled = textwrap.fill(
        whole,
        width,
        initial_indent=indent,
        subsequent_indent=indent + deeper,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return filled.replace(_NO_BREAK_SPACE, " ")


# -- How results are shown: tables for people, tab-separated lines for pipes, JSON for programs, ids -----


Item = TypeVar("Item")
# `styled` marks the styles of this program. A stored text cannot know the mark, so `echo` escapes its styles:
# one of them could hide the rest of a line.
_STYLE_TOKEN = secrets.token_hex(8)
_STYLE_PATTERN = re.compile(f"\\\\u001b{_STYLE_TOKEN}(\\[[0-9;]*m)")
_CLOSED_STREAMS: list[TextIO] = []  # streams that nobody reads any more
_MIN_COLUMN_WIDTH = 8  # a column narrower than this says nothing
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


class Column(msgspec.Struct, Generic[Item], frozen=True):
    """One column of a table: its title, and how its value is found.

    A `sentence` stands in lines of its own below the others where it would be cut short. Of a column that
    must be cut, `ends` keeps the end of what it says.
    """

    title: str
    value: Callable[[Item], Any]
    sentence: bool = False
    ends: bool = False


class Output(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the caller wants to see."""

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
        """Show a page of things; `empty` says, on a terminal, what to do when there are none."""
        if self.json:
            self.object({"items": [as_json(item) for item in items], "next": next, "prev": prev, **also})
            return
        if self.quiet:
            for item in items:
                echo(id(item))
        elif not on_terminal():
            for item in items:
                echo("\t".join(_format_piped_cell(column.value(item)) for column in columns))
        elif not items:
            echo(empty)
        else:
            _print_table(items, columns)
        if next is not None:
            echo_err(f"There are more. --all lists everything; this goes on behind the last one: --cursor {next}")

    def object(self, value: Any) -> None:
        """Show one thing as JSON."""
        echo(json_text(value, indent=2))

    def done(self, id: str, value: Any, text: str) -> None:
        """Say what was done to one thing, in the way that was asked for."""
        if self.json:
            echo(json_text(value))
        elif self.quiet:
            echo(id)
        else:
            echo(text)


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options `--json` and `--quiet`; it receives them as `output`."""

    @click.option("--json", "json_", is_flag=True, help="Print JSON, in a shape that stays.")
    @click.option("-q", "--quiet", is_flag=True, help="Print ids and nothing else.")
    @functools.wraps(command)
    def with_output(*args: Any, json_: bool, quiet: bool, **others: Any) -> Any:
        if json_ and quiet:
            raise click.UsageError("--json and --quiet exclude each other")
        return command(*args, output=Output(json=json_, quiet=quiet), **others)

    return with_output


def echo_err(text: str) -> None:
    """A word to whoever watches, kept out of what programs read."""
    echo(fold_text(text, sys.stderr), err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Print, safe for a terminal. When nobody reads any more nothing is printed, and the work goes on."""
    try:
        click.echo(make_printable(text), err=err)
    except BrokenPipeError:
        _silence_stream(sys.stderr if err else sys.stdout)


def make_printable(text: str) -> str:
    """Return a text as a terminal can show it: with the styles that `styled` made, all else escaped."""
    return _STYLE_PATTERN.sub("\x1b\\1", escape_controls(text, lines=True))


def is_stdout_closed() -> bool:
    """True once whoever read standard output has gone away."""
    return sys.stdout in _CLOSED_STREAMS


def _silence_stream(stream: TextIO) -> None:
    _CLOSED_STREAMS.append(stream)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def display_tenant(tenant: str) -> str | None:
    """A tenant as it is listed; people who have one only need not read its name."""
    return None if tenant == DEFAULT_TENANT and on_terminal() else tenant


def on_terminal() -> bool:
    """True if a person reads standard output."""
    return sys.stdout.isatty()


def use_colour() -> bool:
    """True if colours are wanted: on a terminal, unless NO_COLOR or a dumb terminal says no."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style_text(text: str, **style: Any) -> str:
    """Return the text in a style where colours are wanted; `echo` or `printable` complete it."""
    return click.style(text, **style).replace("\x1b[", f"\x1b{_STYLE_TOKEN}[") if use_colour() else text


def escape_line(text: str) -> str:
    """Return a text from a store as one line that a terminal can show: a message may contain anything."""
    return escape_controls(text)


def _print_table(items: Sequence[Item], columns: Sequence[Column[Item]]) -> None:
    """Columns from the left for as long as they fit; those without a value are left out."""
    room = shutil.get_terminal_size().columns
    filled = [cells for cells in (_format_column(column, items) for column in columns) if cells.has_values]
    beside = [cells for cells in filled if not cells.column.sentence]
    below = [cells for cells in filled if cells.column.sentence]
    if _total_width(filled) <= room:
        beside, below = filled, []
    fitting = _fit_columns(beside, room)
    for number, line in enumerate(zip(*fitting, strict=True)):
        styles = [{"bold": True} if number == 0 else {"fg": _STATUS_COLOURS.get(cell.strip())} for cell in line]
        parts = (style_text(cell, **style) for cell, style in zip(line, styles, strict=True))
        echo("  ".join(parts).rstrip())
        for sentence in below if number else []:
            echo(textwrap.fill(sentence.texts[number], room, initial_indent="    ", subsequent_indent="    "))
    if dropped := ", ".join(cells.column.title for cells in beside[len(fitting) :]):
        echo_err(f"No room for {dropped}: a wider terminal shows more, --json shows everything.")


class _ColumnCells(msgspec.Struct, frozen=True):
    """A column with its title and all its cells as texts."""

    column: Column[Any]
    texts: list[str]

    @property
    def has_values(self) -> bool:
        return any(text != "-" for text in self.texts[1:])

    @property
    def width(self) -> int:
        return max(map(len, self.texts))

    def fit_to_width(self, width: int) -> list[str]:
        """Its texts, each as wide as this; of those that are cut the title keeps its beginning."""
        title, *texts = self.texts
        cut = [_truncate(title, width, ends=False), *(_truncate(text, width, ends=self.column.ends) for text in texts)]
        return [text.ljust(width) for text in cut]


def _format_column(column: Column[Item], items: Sequence[Item]) -> _ColumnCells:
    return _ColumnCells(column, [column.title, *(_format_cell(column.value(item)) for item in items)])


def _total_width(columns: Sequence[_ColumnCells]) -> int:
    return sum(cells.width + 2 for cells in columns) - 2


def _fit_columns(columns: Sequence[_ColumnCells], room: int) -> list[list[str]]:
    """Columns as wide as their widest cell; the last one that still has some room is cut."""
    fitting: list[list[str]] = []
    for cells in columns:
        width = cells.width
        if fitting and width > room:
            if room < _MIN_COLUMN_WIDTH:
                break
            width = room
        fitting.append(cells.fit_to_width(width))
        room -= width + 2
    return fitting


def _truncate(text: str, width: int, *, ends: bool) -> str:
    if len(text) <= width:
        return text
    return f"…{text[1 - width :]}" if ends else f"{text[: width - 1]}…"


def as_json(value: Any) -> Any:
    """A value as JSON has it: records as objects, times as ISO 8601 in UTC, tuples as lists."""
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
    """A value as JSON text that a terminal shows as it stands: what it would obey is escaped."""
    return escape_controls(json.dumps(as_json(value), indent=indent, ensure_ascii=False), lines=True)


def _format_piped_cell(value: Any) -> str:
    """One cell of a line: no tab, no line end, nothing relative."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return str(as_json(value))
    return escape_line(" ".join(str(value).split()))


def _format_cell(value: Any) -> str:
    """One cell of a table, for people."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return format_age(value)
    return escape_line(" ".join(str(value).split()))


def format_age(moment: datetime) -> str:
    """How long ago, or in how long, in the larger unit."""
    from redrive.clock import MICROS, SystemClock
    from redrive.duration import format_duration

    passed = SystemClock().now() / MICROS - moment.timestamp()
    if abs(passed) < 1:
        return "now"
    whole = " ".join(format_duration(round(abs(passed))).split()[:2])
    return f"{whole} ago" if passed > 0 else f"in {whole}"
