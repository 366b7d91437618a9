"""What is happening to the runs of a store, read from it as any program could."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter, deque
from datetime import UTC, datetime

import msgspec

from redrive.app import Redrive
from redrive.cli.example import make_example_input
from redrive.cli.messages import hint
from redrive.cli.output import echo, escape_line, fold_text, style_text
from redrive.cli.worker_process import StopController
from redrive.clock import SystemClock
from redrive.core.states import FINAL_RUN_STATUSES, EntryKind, LetterStatus, RunStatus
from redrive.desk.models import AttemptRecord, DeadLetter, Run, StepRecord
from redrive.duration import to_datetime
from redrive.errors import ConfigurationError, NotFound, StoreError
from redrive.store.filters import LetterFilter, RunFilter

# -- What is happening to the runs of a store, read from it as any program could -------------------------


_WAITING_STATUSES = frozenset({RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT})
_MAX_LETTERS = 500
_UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a run, in words. `mood`: good, waiting or bad."""

    at: datetime
    run: str
    step: str
    text: str
    level: str


class EventFeed:
    """Follows every run from start to end; `events` holds what was decided on the way, newest last.

    With `endings`, a run's success is told as well.
    """

    def __init__(self, app: Redrive, *, keeps: int = 50, endings: bool = False) -> None:
        self._endings = endings
        self.statuses: Counter[RunStatus] = Counter()
        self.letters: list[DeadLetter] = []
        self.open_letters = 0
        self.events: deque[FeedEvent] = deque(maxlen=keeps)
        self.fresh: list[FeedEvent] = []
        self._app = app
        self._known: dict[str, RunStatus] = {}
        self._told: set[tuple[str, int, int, str]] = set()
        self._decided: set[str] = set()

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return len(self._known)

    async def refresh(self) -> None:
        """Look again; `fresh` holds what happened since the last time."""
        for run_id in await self._find_new_runs():
            self._known[run_id] = RunStatus.PENDING
        await self._read_letters()
        found: list[FeedEvent] = []
        for run_id, status in list(self._known.items()):
            if status not in FINAL_RUN_STATUSES:
                found += await self._refresh_run(run_id)
        self.statuses = Counter(self._known.values())
        self.fresh = sorted(found, key=lambda event: event.at)
        self.events.extend(self.fresh)

    async def _refresh_run(self, run_id: str) -> list[FeedEvent]:
        """What is new about one run; one that was removed by now is forgotten."""
        try:
            run = await self._app.runs.get(run_id)
        except NotFound:
            del self._known[run_id]
            return []
        self._known[run_id] = run.status
        return self._collect_events(run)

    async def _find_new_runs(self) -> list[str]:
        """Runs not seen before, oldest first."""
        new: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._app.runs.list(RunFilter(), limit=100, cursor=cursor)
            unknown = [run.id for run in page.items if run.id not in self._known]
            new += unknown
            cursor = page.next
            if cursor is None or len(unknown) < len(page.items):
                return new[::-1]

    async def _read_letters(self) -> None:
        """What waits for a person; a run whose letter no longer does is followed again."""
        page = await self._app.dlq.list(LetterFilter(status=LetterStatus.OPEN), limit=_MAX_LETTERS)
        self.letters, self.open_letters = page.items[:20], len(page.items)
        waiting = {letter.run_id for letter in page.items}
        for run_id, status in self._known.items():
            if status in _WAITING_STATUSES and run_id not in waiting | self._decided and page.next is None:
                self._decided.add(run_id)
                self._known[run_id] = RunStatus.PENDING
        self._decided -= waiting

    def _collect_events(self, run: Run) -> list[FeedEvent]:
        name = run.correlation_id or run.id
        events: list[FeedEvent] = []
        for step in run.steps:
            if step.kind is EntryKind.SLEEP and self._is_new(run, step, 0, "sleep"):
                events.append(_make_event(name, "sleep", step.began_at, _describe_sleep(step), "waiting"))
            for number, attempt in enumerate(step.attempts):
                told_before = not self._is_new(run, step, number, attempt.status)
                first_success = attempt.attempt == 1 and attempt.status == "SUCCESS" and number == 0
                if not told_before and not first_success:
                    at = attempt.ended_at or attempt.began_at
                    events.append(_make_event(name, step.name, at, attempt.decision, _attempt_level(attempt)))
        if run.status in FINAL_RUN_STATUSES and run.status is not RunStatus.SUCCESS:
            at = run.finished_at or _UNKNOWN_TIME
            events.append(_make_event(name, run.workflow, at, _describe_end(run), "bad"))
        elif run.status is RunStatus.SUCCESS and self._endings:
            events.append(_make_event(name, run.workflow, run.finished_at or _UNKNOWN_TIME, "SUCCESS", "good"))
        return events

    def _is_new(self, run: Run, step: StepRecord, number: int, what: str) -> bool:
        mark = (run.id, step.index, number, what)
        if mark in self._told:
            return False
        self._told.add(mark)
        return True


def _make_event(run: str, step: str, at: datetime, text: str, level: str) -> FeedEvent:
    return FeedEvent(at=at, run=run, step=step, text=text, level=level)


def _describe_end(run: Run) -> str:
    return f"{run.status}, a dead letter: {run.code}" if run.letter_id else f"{run.status}: {run.error}"


def _describe_sleep(step: StepRecord) -> str:
    return "waits, at no cost" + (f", until {step.next_at:%H:%M:%S}" if step.next_at else "")


def _attempt_level(attempt: AttemptRecord) -> str:
    if attempt.status == "SUCCESS":
        return "good"
    return "waiting" if attempt.next_at is not None or attempt.category is None else "bad"


# -- Lines that tell what happens while a worker works in this process -----------------------------------


_POLL_INTERVAL = 0.3
_LEVEL_COLOURS = {"good": "green", "waiting": "yellow", "bad": "red"}


class EventPrinter:
    """Tells each decision and each ending once, as it happens."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None

    def begin(self, stop: StopController) -> None:
        """Tell until the worker stops; called on its loop."""
        self._task = asyncio.create_task(self._print_events(stop))

    async def _print_events(self, stop: StopController) -> None:
        while stop.worker is None:  # noqa: ASYNC110 - the worker sets it, and knows of no listeners
            await asyncio.sleep(_POLL_INTERVAL / 10)
        news = EventFeed(self._app, endings=True)
        begun = to_datetime(SystemClock().now())
        echo("\n".join(_list_start_commands(self._app)))
        while not stop.asked.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.asked.wait(), _POLL_INTERVAL)
            await self._refresh_feed(news)
            for event in news.fresh:
                if event.at >= begun:  # what happened before is no news
                    _print_event(event)

    async def _refresh_feed(self, news: EventFeed) -> None:
        """A store that is busy, or closed already, is looked at another time."""
        news.fresh = []
        with contextlib.suppress(StoreError, ConfigurationError):
            await news.refresh()


def _list_start_commands(app: Redrive) -> list[str]:
    """How to start a run of the first workflow, and how to look at it."""
    import shlex

    name, workflow = next(iter(app.registered_workflows.items()))
    start = hint("runs", "start", name, "--input", shlex.quote(make_example_input(workflow)))
    return [
        "start a run, from this folder in another terminal:",
        f"    {start}",
        "look at it:",
        f"    {hint('runs', 'list')}",
    ]


def _print_event(event: FeedEvent) -> None:
    time, name = f"{event.at:%H:%M:%S}", escape_line(f"{event.run} {event.step}")
    line = fold_text(f"{time} {name}  {escape_line(event.text)}", sys.stdout, deeper=" " * 9)
    text = line[len(f"{time} {name}") :]
    echo(f"{time} {style_text(name, bold=True)}{style_text(text, fg=_LEVEL_COLOURS[event.level])}")
