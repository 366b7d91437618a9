"""The demo as lines of text, for pipes, logs and terminals without rich; and the texts that both views show."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from redrive.cli.demo.worker import WorkerProcess
from redrive.cli.errors import list_path_commands
from redrive.cli.output import fold_text
from redrive.cli.run_feed import EventFeed
from redrive.core.states import RunStatus

_COUNTS_INTERVAL = 5.0  # seconds between two lines of figures
_COMMANDS = (  # with True if a small screen shows it as well
    ("redrive dlq list                # failures that need a decision", True),
    ("redrive dlq show ID             # what happened, and the next commands", True),
    ("redrive dlq replay ID --dry-run # what would run again; then without --dry-run", True),
    ("redrive dlq edit ID             # correct the input and run it again", False),
    ("redrive dlq resolve ID          # close it without running it again", False),
    ("redrive dlq groups              # failures by their cause", False),
    ("redrive schedules list          # scheduled runs, and when the next one starts", False),
    ("redrive runs list               # then: redrive runs show ID, runs why ID", True),
)


class PlainView:
    """The demo as lines of text, for pipes, logs and terminals without rich: events, and counts now and then."""

    def __init__(self, url: str, dashboard_lines: Sequence[str] = ()) -> None:
        self._url = url
        self._dashboard_lines = dashboard_lines
        self._next = _COUNTS_INTERVAL

    def __enter__(self) -> PlainView:
        print(wrap_line("A sample shop on SQLite, with a bank that fails. In the browser:"))
        for line in self._dashboard_lines:
            print(wrap_line(f"    {line}"))
        print(wrap_line("To look closer, in another terminal:"))
        for line in list_commands(self._url):
            print(f"    {line}")
        sys.stdout.flush()  # a program may read the address from a pipe
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, feed: EventFeed, worker: WorkerProcess, elapsed: float) -> None:
        """Print the new events."""
        for event in feed.fresh:
            print(wrap_line(f"{event.at:%H:%M:%S} {event.run} {event.step}: {event.text}"), flush=True)
        if elapsed >= self._next:
            self._next = elapsed + _COUNTS_INTERVAL
            crashes = f"the worker {describe_crashes(worker.crashes)}"
            print(f"-- {elapsed:.0f} s: {format_counts(feed)}; {crashes}", flush=True)


def wrap_line(line: str) -> str:
    return fold_text(line, sys.stdout, deeper="  ")


def count_by_status(feed: EventFeed) -> list[tuple[RunStatus, int]]:
    """Count runs by status, in the order of a run's life."""
    return [(status, feed.statuses[status]) for status in RunStatus if feed.statuses[status]]


def format_counts(feed: EventFeed) -> str:
    return ", ".join(f"{count} {status}" for status, count in count_by_status(feed))


def describe_crashes(count: int) -> str:
    times = "once" if count == 1 else f"{count} times"
    return f"crashed {times} and was started again" if count else "did not crash"


def list_commands(url: str, *, few: bool = False) -> list[str]:
    """List commands to type in another terminal; `few` of them for a small screen."""
    commands = [line for line, always in _COMMANDS if always or not few]
    return [*list_path_commands(), f"export REDRIVE_URL={shlex.quote(url)}", *commands]
