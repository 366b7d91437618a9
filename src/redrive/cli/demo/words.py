"""The demo in plain text: what its views share, and what it says at the end."""

from __future__ import annotations

import shlex
import sys

from redrive.app import Redrive
from redrive.cli.demo.crew import Crew
from redrive.cli.folding import folded
from redrive.cli.hints import ways_to_find
from redrive.cli.news import News
from redrive.core.states import RunStatus
from redrive.desk.shapes import DeadLetter

__all__ = ["counts", "lines_to_type", "story", "summary", "wrapped"]


def counts(news: News) -> list[tuple[RunStatus, int]]:
    """How many runs stand where, in the order of a run's life."""
    return [(status, news.statuses[status]) for status in RunStatus if news.statuses[status]]


def lines_to_type(url: str, *, few: bool = False) -> list[str]:
    """What to type, in another terminal, to look closer and to act; a few lines for a low screen."""
    commands = [line for line, always in _COMMANDS if always or not few]
    return [*ways_to_find(), f"export REDRIVE_URL={shlex.quote(url)}", *commands]


_COMMANDS = (
    ("redrive dlq list                # what waits for a person", True),
    ("redrive dlq show ID             # what happened, and what to do about it", True),
    ("redrive dlq replay ID --dry-run # what would run again; then without --dry-run", True),
    ("redrive dlq edit ID             # correct its input and run it again", False),
    ("redrive dlq resolve ID          # settled by hand: close it without running it again", False),
    ("redrive dlq groups              # failures by their cause", False),
    ("redrive schedules list          # what the shop starts by itself, and when next", False),
    ("redrive runs list               # then: redrive runs show ID, runs why ID", True),
)


async def story(app: Redrive, letter: DeadLetter) -> list[str]:
    """One dead letter as a person reads it."""
    whole = await app.dlq.get(letter.id)
    lines = [f"{whole.id}  {whole.workflow} of {whole.correlation_id}", f"  {whole.reason}"]
    for step in whole.steps:
        lines += (f"    {step.name}: {attempt.decision}" for attempt in step.attempts)
    return lines


def summary(news: News, crew: Crew) -> list[str]:
    """What came of it all."""
    listed = ", ".join(f"{count} {status}" for status, count in counts(news))
    return [f"{news.runs} runs: {listed}.", f"The worker {_crashes(crew.crashes)}; no run was lost."]


def wrapped(line: str) -> str:
    """A line that does not break within a word on a terminal; what goes on is indented deeper."""
    return folded(line, sys.stdout, deeper="  ")


def _crashes(count: int) -> str:
    if not count:
        return "did not crash"
    return f"crashed {'once' if count == 1 else f'{count} times'} and was started again"
