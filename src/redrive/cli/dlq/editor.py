"""A text in the user's editor, in a file of its own that outlives whatever goes wrong."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from redrive.cli.exits import REFUSED, Stopped
from redrive.reasons import Reason

__all__ = ["Draft", "placed"]

_LAST = re.compile(r"(?:\.[^.\[\]]+|\[[^\]]*\])$")


class Draft:
    """A file that somebody edits: remarks, which begin with #, and below them the text."""

    def __init__(self, text: str, *, otherwise: str) -> None:
        """`otherwise` says what to do where no editor works."""
        self.text = text
        self._otherwise = otherwise
        handle, name = tempfile.mkstemp(prefix="redrive-", suffix=".json")
        os.close(handle)
        self._path = Path(name)
        self._begun_with = text

    def edit(self, remarks: Sequence[str]) -> bool:
        """Open the editor; False if the text is as it was before."""
        head = "".join(f"# {line}\n" for line in remarks)
        self._path.write_text(f"{head}{self.text}\n", encoding="utf-8")
        try:
            click.edit(filename=str(self._path))
        except click.ClickException as error:
            raise Stopped(
                f"{error.message}. Nothing was changed. Name another editor in $EDITOR, or {self._otherwise}"
            ) from error
        before, self.text = self.text, _without_remarks(_decoded(self._path))
        return self.text != before

    def close(self, *, keep: bool) -> Path | None:
        """Remove the file, or keep what was typed in it, without the remarks, if anything was."""
        if keep and self.text == self._begun_with and not _is_foreign(self._path):
            keep = False
        if not keep:
            self._path.unlink(missing_ok=True)
            return None
        if not _is_foreign(self._path):
            self._path.write_text(f"{self.text}\n", encoding="utf-8")
        return self._path


def _decoded(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        why = f"the editor left no file to read ({error.strerror})"
        raise Stopped(f"{why}: nothing was changed; name another editor in $EDITOR", REFUSED) from None
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Stopped(f"line {line} is not UTF-8 text: have your editor save as UTF-8", REFUSED) from None


def _is_foreign(path: Path) -> bool:
    """True if the editor saved something that cannot be read, which is left as it is."""
    try:
        path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        return True
    except OSError:
        return False
    return False


def _without_remarks(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#")).strip()


def placed(mistake: Reason, lines: Mapping[str, int]) -> str:
    """Return the sentence for a mistake, with the line of each place that it names."""
    if not mistake.faults:
        return str(mistake)
    faults = tuple(_with_line(place, why, lines) for place, why in mistake.faults)
    return str(Reason(mistake.code, **{**mistake.params, "faults": faults}))


def _with_line(place: str, why: Reason, lines: Mapping[str, int]) -> str:
    if not place:
        return str(why)
    path = place
    while path and path not in lines:  # what is missing stands nowhere, but it is missing somewhere
        shorter = _LAST.sub("", path)
        path = shorter if shorter != path else ""
    return f"line {lines.get(path, 1)}, {place}: {why}"
