"""Ids on the command line: read from standard input, found by a prefix, and worked on one after the other."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from redrive.cli.errors import NOT_FOUND, REFUSED, CommandFailed, exit_code_for, hint, rewrite_hints
from redrive.cli.output import echo_err

if TYPE_CHECKING:
    from redrive.app import Redrive

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
