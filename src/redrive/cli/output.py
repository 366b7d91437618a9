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
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Generic, TextIO, TypeVar

import click

from redrive.core.redact import escape_controls
from redrive.core.roles import DEFAULT_TENANT
from redrive.frozen import dataclass

__all__ = [
    "Column",
    "Output",
    "ago",
    "as_json",
    "clean",
    "coloured",
    "echo",
    "folded",
    "json_text",
    "nobody_reads",
    "on_terminal",
    "printable",
    "say",
    "shown",
    "styled",
    "told_tenant",
]


# -- Lines that end between words where a person reads them, and stay whole where a program does ---------


_LEAST = 40
_TOGETHER = "\N{NO-BREAK SPACE}"  # a space to the eye, no place to fold for textwrap
_COMMAND = re.compile(r"(?<=: )\S*redrive .*$|`[^`]*`")


def folded(text: str, stream: TextIO, *, deeper: str = "") -> str:
    """The text as the stream is to have it; folded lines go on below their first word, `deeper` to the right.

    A command at the end of a line or in backquotes is never folded, so that it can be copied.
    """
    if not stream.isatty():
        return text
    width = max(_LEAST, shutil.get_terminal_size().columns)
    return "\n".join(_fold(line, width, deeper) for line in text.split("\n"))


def _fold(line: str, width: int, deeper: str) -> str:
    indent = " " * (len(line) - len(line.lstrip(" ")))
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _TOGETHER), line.strip(" "))
    filled = textwrap.fill(
        whole,
        width,
        initial_indent=indent,
        subsequent_indent=indent + deeper,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return filled.replace(_TOGETHER, " ")


# -- How results are shown: tables for people, tab-separated lines for pipes, JSON for programs, ids -----


Item = TypeVar("Item")
# `styled` marks the styles of this program. A stored text cannot know the mark, so `echo` escapes its styles:
# one of them could hide the rest of a line.
_MARK = secrets.token_hex(8)
_STYLE = re.compile(f"\\\\u001b{_MARK}(\\[[0-9;]*m)")
_LEFT: list[TextIO] = []  # streams that nobody reads any more
_LEAST_OUTPUT = 8  # a column narrower than this says nothing
_COLOURS = {
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


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """One column of a table: its title, and how its value is found.

    A `sentence` stands in lines of its own below the others where it would be cut short. Of a column that
    must be cut, `ends` keeps the end of what it says.
    """

    title: str
    value: Callable[[Item], Any]
    sentence: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
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
                echo("\t".join(_piped(column.value(item)) for column in columns))
        elif not items:
            echo(empty)
        else:
            _table(items, columns)
        if next is not None:
            say(f"There are more. --all lists everything; this goes on behind the last one: --cursor {next}")

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


def shown(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options `--json` and `--quiet`; it receives them as `output`."""

    @click.option("--json", "json_", is_flag=True, help="Print JSON, in a shape that stays.")
    @click.option("-q", "--quiet", is_flag=True, help="Print ids and nothing else.")
    @functools.wraps(command)
    def with_output(*args: Any, json_: bool, quiet: bool, **others: Any) -> Any:
        if json_ and quiet:
            raise click.UsageError("--json and --quiet exclude each other")
        return command(*args, output=Output(json=json_, quiet=quiet), **others)

    return with_output


def say(text: str) -> None:
    """A word to whoever watches, kept out of what programs read."""
    echo(folded(text, sys.stderr), err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Print, safe for a terminal. When nobody reads any more nothing is printed, and the work goes on."""
    try:
        click.echo(printable(text), err=err)
    except BrokenPipeError:
        _print_no_more(sys.stderr if err else sys.stdout)


def printable(text: str) -> str:
    """Return a text as a terminal can show it: with the styles that `styled` made, all else escaped."""
    return _STYLE.sub("\x1b\\1", escape_controls(text, lines=True))


def nobody_reads() -> bool:
    """True once whoever read standard output has gone away."""
    return sys.stdout in _LEFT


def _print_no_more(stream: TextIO) -> None:
    _LEFT.append(stream)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def told_tenant(tenant: str) -> str | None:
    """A tenant as it is listed; people who have one only need not read its name."""
    return None if tenant == DEFAULT_TENANT and on_terminal() else tenant


def on_terminal() -> bool:
    """True if a person reads standard output."""
    return sys.stdout.isatty()


def coloured() -> bool:
    """True if colours are wanted: on a terminal, unless NO_COLOR or a dumb terminal says no."""
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, **style: Any) -> str:
    """Return the text in a style where colours are wanted; `echo` or `printable` complete it."""
    return click.style(text, **style).replace("\x1b[", f"\x1b{_MARK}[") if coloured() else text


def clean(text: str) -> str:
    """Return a text from a store as one line that a terminal can show: a message may contain anything."""
    return escape_controls(text)


def _table(items: Sequence[Item], columns: Sequence[Column[Item]]) -> None:
    """Columns from the left for as long as they fit; those without a value are left out."""
    room = shutil.get_terminal_size().columns
    filled = [cells for cells in (_cells(column, items) for column in columns) if cells.says_something]
    beside = [cells for cells in filled if not cells.column.sentence]
    below = [cells for cells in filled if cells.column.sentence]
    if _width(filled) <= room:
        beside, below = filled, []
    fitting = _fitting(beside, room)
    for number, line in enumerate(zip(*fitting, strict=True)):
        styles = [{"bold": True} if number == 0 else {"fg": _COLOURS.get(cell.strip())} for cell in line]
        parts = (styled(cell, **style) for cell, style in zip(line, styles, strict=True))
        echo("  ".join(parts).rstrip())
        for sentence in below if number else []:
            echo(textwrap.fill(sentence.texts[number], room, initial_indent="    ", subsequent_indent="    "))
    if dropped := ", ".join(cells.column.title for cells in beside[len(fitting) :]):
        say(f"No room for {dropped}: a wider terminal shows more, --json shows everything.")


@dataclass(frozen=True, slots=True)
class _Cells:
    """A column with its title and all its cells as texts."""

    column: Column[Any]
    texts: list[str]

    @property
    def says_something(self) -> bool:
        return any(text != "-" for text in self.texts[1:])

    @property
    def width(self) -> int:
        return max(map(len, self.texts))

    def fitted(self, width: int) -> list[str]:
        """Its texts, each as wide as this; of those that are cut the title keeps its beginning."""
        title, *texts = self.texts
        cut = [_cut(title, width, ends=False), *(_cut(text, width, ends=self.column.ends) for text in texts)]
        return [text.ljust(width) for text in cut]


def _cells(column: Column[Item], items: Sequence[Item]) -> _Cells:
    return _Cells(column, [column.title, *(_read(column.value(item)) for item in items)])


def _width(columns: Sequence[_Cells]) -> int:
    return sum(cells.width + 2 for cells in columns) - 2


def _fitting(columns: Sequence[_Cells], room: int) -> list[list[str]]:
    """Columns as wide as their widest cell; the last one that still has some room is cut."""
    fitting: list[list[str]] = []
    for cells in columns:
        width = cells.width
        if fitting and width > room:
            if room < _LEAST_OUTPUT:
                break
            width = room
        fitting.append(cells.fitted(width))
        room -= width + 2
    return fitting


def _cut(text: str, width: int, *, ends: bool) -> str:
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
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON text that a terminal shows as it stands: what it would obey is escaped."""
    return escape_controls(json.dumps(as_json(value), indent=indent, ensure_ascii=False), lines=True)


def _piped(value: Any) -> str:
    """One cell of a line: no tab, no line end, nothing relative."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return str(as_json(value))
    return clean(" ".join(str(value).split()))


def _read(value: Any) -> str:
    """One cell of a table, for people."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return ago(value)
    return clean(" ".join(str(value).split()))


def ago(moment: datetime) -> str:
    """How long ago, or in how long, in the larger unit."""
    from redrive.clock import MICROS, SystemClock
    from redrive.duration import words

    passed = SystemClock().now() / MICROS - moment.timestamp()
    if abs(passed) < 1:
        return "now"
    whole = " ".join(words(round(abs(passed))).split()[:2])
    return f"{whole} ago" if passed > 0 else f"in {whole}"
