"""What is happening to the runs of a store, read from it as any program could."""

from __future__ import annotations

from collections import Counter, deque
from datetime import UTC, datetime

from redrive.app import Redrive
from redrive.core.states import FINAL, EntryKind, LetterStatus, RunStatus
from redrive.desk.shapes import AttemptRecord, DeadLetter, Run, StepRecord
from redrive.errors import NotFound
from redrive.frozen import dataclass
from redrive.store.selection import LetterFilter, RunFilter

__all__ = ["Event", "News"]

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
