"""Options that commands share: who changes something, times, durations and reasons."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
import msgspec

from redrive.cli.errors import REFUSED, CommandFailed, UsageError
from redrive.cli.output import escape_line


class ChangeOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Options of a command that changes something."""

    by: str
    dry_run: bool
    yes: bool

    @property
    def is_interactive(self) -> bool:
        """True if the user can be asked: standard input and standard error are terminals."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, what: str) -> None:
        """Ask the user to confirm. A script without a terminal is not asked."""
        if self.yes or self.dry_run or not self.is_interactive:
            return
        with interruptible_prompt():
            agreed = click.confirm(f"{escape_line(what)}?", err=True)
        if not agreed:
            raise CommandFailed("nothing was changed", REFUSED)

    def require_yes(self, message: str, code: int = REFUSED) -> None:
        """End the command if the user cannot be asked and `--yes` was not given."""
        if not (self.yes or self.dry_run or self.is_interactive):
            raise CommandFailed(message, code)


def change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--dry-run`, `--yes` and `--by`; it receives them as `change`."""

    @click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
    @click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
    @click.option("--by", metavar="NAME", help="Your name in the audit log.  [default: your user name]")
    @functools.wraps(command)
    def with_change(*args: Any, dry_run: bool, yes: bool, by: str | None, **others: Any) -> Any:
        change = ChangeOptions(by=name_or_current_user(by, "--by"), dry_run=dry_run, yes=yes)
        return command(*args, change=change, **others)

    return with_change


@contextmanager
def interruptible_prompt() -> Iterator[None]:
    """Let the first Ctrl-C end a prompt."""
    # While an event loop runs, asyncio's handler takes the first Ctrl-C and the prompt would not notice it.
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
    """Return the name that an option gives, else the current user."""
    if name is None:
        return current_user()
    if not name.strip():  # a script whose variable is not set passes an empty name
        raise UsageError(f"{option} is empty: give a name, or leave {option} out to use your user name")
    return name


def current_user() -> str:
    """Return the name of the operating system's user, for the audit log."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


class _TimeType(click.ParamType["datetime"]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from redrive.clock import SystemClock
        from redrive.duration import parse_past_time, to_datetime

        if isinstance(value, datetime):
            return value
        found = parse_past_time(value, to_datetime(SystemClock().now()))
        if found is None:
            self.fail(f"{value!r} is not a time: give 2h (ago), 2026-03-01 or 2026-03-01T14:00:00Z", param, ctx)
        return found


class _DurationType(click.ParamType[str]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from redrive.duration import parse_duration
        from redrive.errors import ConfigurationError

        try:
            parse_duration(value)
        except ConfigurationError:
            self.fail(f"{value!r} is not a duration: give 90 (seconds), 30s, 5m, 1h30m or 2d", param, ctx)
        return str(value)


TIME_TYPE = _TimeType()
DURATION_TYPE = _DurationType()
REASON_OPTION = click.option("--reason", metavar="TEXT", help="Why, for the audit log.")


def time_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options `--since` and `--until`."""
    until = click.option("--until", type=TIME_TYPE, metavar="TIME", help="Before.")
    since = click.option("--since", type=TIME_TYPE, metavar="TIME", help="At or after: 2h (ago), or an ISO time.")
    return since(until(command))
