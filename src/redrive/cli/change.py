"""Changing things: who did it, whether it is only tried, and whether to ask first."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from redrive.cli.exits import REFUSED, Misused, Stopped, code_of
from redrive.cli.hints import rewritten
from redrive.cli.output import clean, say
from redrive.frozen import dataclass

__all__ = ["Change", "asking", "changing", "each", "end", "named_or_user", "tried", "user"]


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
