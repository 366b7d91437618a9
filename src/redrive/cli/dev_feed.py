"""What is happening to the runs of a store, read from it as any program could."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter, deque
from datetime import UTC, datetime

from redrive.app import Redrive
from redrive.cli.example import example_input
from redrive.cli.messages import hint
from redrive.cli.output import clean, echo, folded, styled
from redrive.cli.worker_process import Stop
from redrive.clock import SystemClock
from redrive.core.states import FINAL, EntryKind, LetterStatus, RunStatus
from redrive.desk.models import AttemptRecord, DeadLetter, Run, StepRecord
from redrive.duration import moment
from redrive.errors import ConfigurationError, NotFound, StoreError
from redrive.frozen import dataclass
from redrive.store.filters import LetterFilter, RunFilter

__all__ = ["Event", "Live", "News"]


# -- What is happening to the runs of a store, read from it as any program could -------------------------


_WAITING = frozenset({RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT})
_MOST_LETTERS = 500
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a run, in words. `mood`: good, waiting or bad."""

    at: datetime
    run: str
    step: str
    text: str
    mood: str


class News:
    """Follows every run from start to end; `events` holds what was decided on the way, newest last.

    With `endings`, a run's success is told as well.
    """

    def __init__(self, app: Redrive, *, keeps: int = 50, endings: bool = False) -> None:
        self._endings = endings
        self.statuses: Counter[RunStatus] = Counter()
        self.letters: list[DeadLetter] = []
        self.open_letters = 0
        self.events: deque[Event] = deque(maxlen=keeps)
        self.fresh: list[Event] = []
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
        for run_id in await self._new_runs():
            self._known[run_id] = RunStatus.PENDING
        await self._read_letters()
        found: list[Event] = []
        for run_id, status in list(self._known.items()):
            if status not in FINAL:
                found += await self._look_at(run_id)
        self.statuses = Counter(self._known.values())
        self.fresh = sorted(found, key=lambda event: event.at)
        self.events.extend(self.fresh)

    async def _look_at(self, run_id: str) -> list[Event]:
        """What is new about one run; one that was removed by now is forgotten."""
        try:
            run = await self._app.runs.get(run_id)
        except NotFound:
            del self._known[run_id]
            return []
        self._known[run_id] = run.status
        return self._events(run)

    async def _new_runs(self) -> list[str]:
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
        page = await self._app.dlq.list(LetterFilter(status=LetterStatus.OPEN), limit=_MOST_LETTERS)
        self.letters, self.open_letters = page.items[:20], len(page.items)
        waiting = {letter.run_id for letter in page.items}
        for run_id, status in self._known.items():
            if status in _WAITING and run_id not in waiting | self._decided and page.next is None:
                self._decided.add(run_id)
                self._known[run_id] = RunStatus.PENDING
        self._decided -= waiting

    def _events(self, run: Run) -> list[Event]:
        name = run.correlation_id or run.id
        events: list[Event] = []
        for step in run.steps:
            if step.kind is EntryKind.SLEEP and self._is_new(run, step, 0, "sleep"):
                events.append(_event(name, "sleep", step.began_at, _sleeps(step), "waiting"))
            for number, attempt in enumerate(step.attempts):
                told_before = not self._is_new(run, step, number, attempt.status)
                first_success = attempt.attempt == 1 and attempt.status == "SUCCESS" and number == 0
                if not told_before and not first_success:
                    at = attempt.ended_at or attempt.began_at
                    events.append(_event(name, step.name, at, attempt.decision, _mood(attempt)))
        if run.status in FINAL and run.status is not RunStatus.SUCCESS:
            at = run.finished_at or _NEVER
            events.append(_event(name, run.workflow, at, _ending(run), "bad"))
        elif run.status is RunStatus.SUCCESS and self._endings:
            events.append(_event(name, run.workflow, run.finished_at or _NEVER, "SUCCESS", "good"))
        return events

    def _is_new(self, run: Run, step: StepRecord, number: int, what: str) -> bool:
        mark = (run.id, step.index, number, what)
        if mark in self._told:
            return False
        self._told.add(mark)
        return True


def _event(run: str, step: str, at: datetime, text: str, mood: str) -> Event:
    return Event(at=at, run=run, step=step, text=text, mood=mood)


def _ending(run: Run) -> str:
    return f"{run.status}, a dead letter: {run.code}" if run.letter_id else f"{run.status}: {run.error}"


def _sleeps(step: StepRecord) -> str:
    return "waits, at no cost" + (f", until {step.next_at:%H:%M:%S}" if step.next_at else "")


def _mood(attempt: AttemptRecord) -> str:
    if attempt.status == "SUCCESS":
        return "good"
    return "waiting" if attempt.next_at is not None or attempt.category is None else "bad"


# -- Lines that tell what happens while a worker works in this process -----------------------------------


_LOOK = 0.3
_COLOURS = {"good": "green", "waiting": "yellow", "bad": "red"}


class Live:
    """Tells each decision and each ending once, as it happens."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None

    def begin(self, stop: Stop) -> None:
        """Tell until the worker stops; called on its loop."""
        self._task = asyncio.create_task(self._tell(stop))

    async def _tell(self, stop: Stop) -> None:
        while stop.worker is None:  # noqa: ASYNC110 - the worker sets it, and knows of no listeners
            await asyncio.sleep(_LOOK / 10)
        news = News(self._app, endings=True)
        begun = moment(SystemClock().now())
        echo("\n".join(_to_type(self._app)))
        while not stop.asked.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.asked.wait(), _LOOK)
            await self._look(news)
            for event in news.fresh:
                if event.at >= begun:  # what happened before is no news
                    _print(event)

    async def _look(self, news: News) -> None:
        """A store that is busy, or closed already, is looked at another time."""
        news.fresh = []
        with contextlib.suppress(StoreError, ConfigurationError):
            await news.refresh()


def _to_type(app: Redrive) -> list[str]:
    """How to start a run of the first workflow, and how to look at it."""
    import shlex

    name, workflow = next(iter(app.registered_workflows.items()))
    start = hint("runs", "start", name, "--input", shlex.quote(example_input(workflow)))
    return [
        "start a run, from this folder in another terminal:",
        f"    {start}",
        "look at it:",
        f"    {hint('runs', 'list')}",
    ]


def _print(event: Event) -> None:
    time, name = f"{event.at:%H:%M:%S}", clean(f"{event.run} {event.step}")
    line = folded(f"{time} {name}  {clean(event.text)}", sys.stdout, deeper=" " * 9)
    text = line[len(f"{time} {name}") :]
    echo(f"{time} {styled(name, bold=True)}{styled(text, fg=_COLOURS[event.mood])}")
