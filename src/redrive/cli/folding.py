"""Lines that end between words where a person reads them, and stay whole where a program does."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import TextIO

__all__ = ["folded"]

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
