"""Ids as people give them: whole, by a prefix that fits one thing only, or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from redrive.cli.exits import NOT_FOUND, REFUSED, Stopped
from redrive.cli.hints import hint

if TYPE_CHECKING:
    from redrive.app import Redrive

__all__ = ["find_letter", "find_run", "find_set", "given"]

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
    from redrive.store.pages import page_by_page

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
    from redrive.store.selection import RunFilter

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
