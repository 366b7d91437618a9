"""The demo as lines of text, for pipes, logs and terminals without rich."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from redrive.cli.demo.crew import Crew
from redrive.cli.demo.words import counts, lines_to_type, wrapped
from redrive.cli.news import News

__all__ = ["Plain"]

_EVERY = 5.0  # seconds between two lines of figures


class Plain:
    """Prints each event once, and the figures now and then."""

    def __init__(self, url: str, doors: Sequence[str] = ()) -> None:
        self._url = url
        self._doors = doors
        self._next = _EVERY

    def __enter__(self) -> Plain:
        print(wrapped("A small shop, on SQLite, with a bank that fails. In the browser:"))
        for line in self._doors:
            print(wrapped(f"    {line}"))
        print(wrapped("To look closer, in another terminal:"))
        for line in lines_to_type(self._url):
            print(f"    {line}")
        sys.stdout.flush()  # somebody may read it from a pipe and wait for the address
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, news: News, crew: Crew, passed: float) -> None:
        """Print what is new."""
        for event in news.fresh:
            print(wrapped(f"{event.at:%H:%M:%S} {event.run} {event.step}: {event.text}"), flush=True)
        if passed >= self._next:
            self._next = passed + _EVERY
            listed = ", ".join(f"{count} {status}" for status, count in counts(news))
            print(f"-- {passed:.0f} s: {listed}; the worker crashed {crew.crashes} times", flush=True)
