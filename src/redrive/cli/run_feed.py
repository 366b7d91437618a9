"""The feed of what happens to the runs of a store, for `redrive dev` and the demonstration."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from collections import Counter, deque
from datetime import UTC, datetime
from typing import Any

import msgspec

from redrive.app import Redrive, Workflow
from redrive.cli.hints import hint
from redrive.cli.output import echo, escape_line, fold_text, style_text
from redrive.cli.worker_process import StopController
from redrive.clock import SystemClock
from redrive.core.payload.pydantic_adapters import FORMAT_EXAMPLES
from redrive.core.states import FINAL_RUN_STATUSES, EntryKind, LetterStatus, RunStatus
from redrive.desk.models import DeadLetter, Run, StepRecord
from redrive.errors import ConfigurationError, NotFound, StoreError
from redrive.store.filters import LetterFilter, RunFilter
from redrive.time_values import to_datetime

_WAITING_STATUSES = frozenset({RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT})
_MAX_LETTERS = 500
_MAX_SHOWN_LETTERS = 20
_UNKNOWN_TIME = datetime.min.replace(tzinfo=UTC)
_POLL_INTERVAL = 0.3
_LEVEL_COLOURS = {"good": "green", "waiting": "yellow", "bad": "red"}
_MAX_EXAMPLE_DEPTH = 4  # types may contain themselves
_EXAMPLES_BY_TYPE = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": [], "null": None}


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Event of a run. `level` is good, waiting or bad."""

    at: datetime
    run: str
    step: str
    text: str
    level: str


class EventFeed:
    """Decisions about the runs of a store, read by polling. `events` holds the latest, newest last.

    With `successes`, steps that succeed at once and runs that succeed are events as well.
    """

    def __init__(self, app: Redrive, *, keeps: int = 50, successes: bool = False) -> None:
        self._successes = successes
        self.statuses: Counter[RunStatus] = Counter()
        self.letters: list[DeadLetter] = []
        self.open_letters = 0
        self.events: deque[FeedEvent] = deque(maxlen=keeps)
        self.fresh: list[FeedEvent] = []
        self._app = app
        self._known: dict[str, RunStatus] = {}
        self._seen: set[tuple[str, int, int, str]] = set()
        self._decided: set[str] = set()
        self._shown: list[tuple[str, int]] = []  # the ids of `letters`, and how often each was replayed

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self._known)

    async def refresh(self) -> None:
        """Read the store again; `fresh` holds the events since the last time."""
        await self._find_new_runs()
        await self._read_letters()
        found: list[FeedEvent] = []
        for run_id, status in list(self._known.items()):
            if status in FINAL_RUN_STATUSES:
                continue
            try:
                run = await self._app.runs.get(run_id)
            except NotFound:  # it was purged meanwhile
                del self._known[run_id]
                continue
            self._known[run_id] = run.status
            found += self._collect_events(run)
        self.statuses = Counter(self._known.values())
        self.fresh = sorted(found, key=lambda event: event.at)
        self.events.extend(self.fresh)

    async def _find_new_runs(self) -> None:
        """Add the runs that are not known yet, oldest first."""
        new: list[str] = []
        cursor: str | None = None
        while True:
            # Rows of the store: to redact the payloads of all runs, several times a second, would keep a core busy.
            page = await self._app.runtime.store.runs(RunFilter(), limit=100, cursor=cursor)
            unknown = [row.public_id for row in page.items if row.public_id not in self._known]
            new += unknown
            cursor = page.next
            # Lists are newest first, so all runs behind a known one are known.
            if cursor is None or len(unknown) < len(page.items):
                break
        self._known.update((run_id, RunStatus.PENDING) for run_id in reversed(new))

    async def _read_letters(self) -> None:
        """Read the open letters. Follow a run again when its letter was closed."""
        where = LetterFilter(status=LetterStatus.OPEN)
        page = await self._app.runtime.store.letters(where, limit=_MAX_LETTERS, cursor=None)
        shown = [(row.public_id, row.replay_count) for row in page.items[:_MAX_SHOWN_LETTERS]]
        if shown != self._shown:  # only then are payloads redacted
            self._shown = shown
            self.letters = (await self._app.dlq.list(where, limit=_MAX_SHOWN_LETTERS)).items
        self.open_letters = len(page.items)
        waiting = {row.run_id for row in page.items}
        for run_id, status in self._known.items():
            if status in _WAITING_STATUSES and run_id not in waiting | self._decided and page.next is None:
                self._decided.add(run_id)
                self._known[run_id] = RunStatus.PENDING
        self._decided -= waiting

    def _collect_events(self, run: Run) -> list[FeedEvent]:
        name = run.correlation_id or run.id
        events: list[FeedEvent] = []

        def add(step: str, at: datetime | None, text: str, level: str) -> None:
            events.append(FeedEvent(at=at or _UNKNOWN_TIME, run=name, step=step, text=text, level=level))

        for step in run.steps:
            if step.kind is EntryKind.SLEEP and self._is_new(run, step, 0, "sleep"):
                until = f", until {step.next_at:%H:%M:%S}" if step.next_at else ""
                add("sleep", step.began_at, f"sleeps{until}", "waiting")
            for number, attempt in enumerate(step.attempts):
                is_new = self._is_new(run, step, number, attempt.status)
                succeeded = attempt.status == "SUCCESS"
                at_once = succeeded and attempt.attempt == 1 and number == 0
                if is_new and (self._successes or not at_once):
                    waits = attempt.next_at is not None or attempt.category is None
                    level = "good" if succeeded else "waiting" if waits else "bad"
                    add(step.name, attempt.ended_at or attempt.began_at, attempt.decision, level)
        if run.status is RunStatus.SUCCESS:
            if self._successes:
                add(run.workflow, run.finished_at, "SUCCESS", "good")
        elif run.status in FINAL_RUN_STATUSES:
            text = f"{run.status}, a dead letter: {run.code}" if run.letter_id else f"{run.status}: {run.error}"
            add(run.workflow, run.finished_at, text, "bad")
        return events

    def _is_new(self, run: Run, step: StepRecord, number: int, what: str) -> bool:
        key = (run.id, step.index, number, what)
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new


def count_by_status(feed: EventFeed) -> list[tuple[RunStatus, int]]:
    """Count runs by status, in the order of a run's life."""
    return [(status, feed.statuses[status]) for status in RunStatus if feed.statuses[status]]


def format_counts(feed: EventFeed) -> str:
    return ", ".join(f"{count} {status}" for status, count in count_by_status(feed))


async def print_events(app: Redrive, stop: StopController) -> None:
    """Print each decision and each end of a run once, until the worker of this process stops."""
    while stop.worker is None:  # noqa: ASYNC110 - the worker sets it, and notifies no listeners
        await asyncio.sleep(_POLL_INTERVAL / 10)
    feed = EventFeed(app, successes=True)
    begun = to_datetime(SystemClock().now())
    name, workflow = next(iter(app.registered_workflows.items()))
    start = hint("runs", "start", name, "--input", shlex.quote(make_example_input(workflow)))
    echo(f"start a run, from this folder in another terminal:\n    {start}")
    echo(f"look at it:\n    {hint('runs', 'list')}")
    while not stop.requested.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.requested.wait(), _POLL_INTERVAL)
        feed.fresh = []
        with contextlib.suppress(StoreError, ConfigurationError):  # the store is busy, or closed already
            await feed.refresh()
        for event in feed.fresh:
            if event.at < begun:
                continue
            head = f"{event.at:%H:%M:%S} {escape_line(f'{event.run} {event.step}')}"
            line = fold_text(f"{head}  {escape_line(event.text)}", sys.stdout, deeper=" " * 9)
            text = style_text(line[len(head) :], fg=_LEVEL_COLOURS[event.level])
            echo(f"{head[:9]}{style_text(head[9:], bold=True)}{text}")


def make_example_input(workflow: Workflow[Any, Any, Any]) -> str:
    """Return an input with a value for each required parameter; {} if the types have no schema."""
    schema = workflow.signature.build_input_schema()
    return json.dumps(_example_value(schema, schema.get("$defs", {})), ensure_ascii=False)


def _example_value(schema: dict[str, Any], named: dict[str, Any], depth: int = 0) -> Any:
    if depth > _MAX_EXAMPLE_DEPTH:
        return None
    match schema:
        case {"default": value} | {"const": value} | {"enum": [value, *_]}:
            return value
        case {"$ref": name}:
            return _example_value(named.get(name.rpartition("/")[2], {}), named, depth + 1)
        case {"anyOf": [first, *_]} | {"oneOf": [first, *_]} | {"allOf": [first, *_]}:
            return _example_value(first, named, depth + 1)
        case {"format": name} if name in FORMAT_EXAMPLES:
            return FORMAT_EXAMPLES[name][1]
        case {"type": name} if name in _EXAMPLES_BY_TYPE:
            return _EXAMPLES_BY_TYPE[name]
    known = schema.get("properties", {})
    return {name: _example_value(known[name], named, depth + 1) for name in schema.get("required", []) if name in known}
