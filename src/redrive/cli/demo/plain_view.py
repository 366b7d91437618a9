"""The demo as lines of text, for pipes, logs and terminals without rich."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from redrive.cli.demo import list_commands
from redrive.cli.demo.worker import WorkerProcess, describe_crashes
from redrive.cli.output import fold_text
from redrive.cli.run_feed import EventFeed, format_counts

_COUNTS_INTERVAL = 5.0  # seconds between two lines of figures


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
