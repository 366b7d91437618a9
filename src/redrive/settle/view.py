"""A recorded run as `decide` wants to see it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from redrive.core.journal import EntryRow
from redrive.core.options import RunOptions
from redrive.core.outcome import OpenStep, Place, RunView
from redrive.core.parking import time_parked
from redrive.core.quick import quick
from redrive.core.saga import Try
from redrive.core.states import EXECUTED, RunStatus, StepStatus
from redrive.core.tracing import split
from redrive.store.records import AttemptRow, RunRow
from redrive.store.workers import Claimed

__all__ = [
    "last_tries",
    "open_step",
    "open_steps",
    "options_of",
    "parked_for",
    "readable_options",
    "view_anyway",
    "view_of",
    "view_of_claimed",
]

log = logging.getLogger("redrive.worker")

_RunView = quick(RunView)


def view_of(run: RunRow, *, hears: bool = True) -> RunView:
    """What deciding about a run takes, from its row; its letter too, unless that need not hear of it."""
    return _RunView(
        id=run.id,
        public_id=run.public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        fence=run.fence,
        input=run.input or "null",
        options=RunOptions() if run.options is None else options_of(run.options),
        deaths=run.deaths,
        letter=run.letter if hears else None,
        correlation_id=run.correlation_id,
        started_at=run.started_at,
        handler_for=run.handler_for,
        undoing=run.status is RunStatus.COMPENSATING,
    )


def view_anyway(run: RunRow) -> RunView:
    """The same for those who must decide, whatever was made of the run: options that cannot be read count
    as none, and that is logged."""
    try:
        return view_of(run)
    except Exception as error:
        log.error("the options of run %s cannot be read, it counts as one without: %r", run.public_id, error)
        return view_of(replace(run, options=None))


def view_of_claimed(claimed: Claimed, options: RunOptions, version: str) -> RunView:
    """The same for a run that was claimed just now, by a worker that has this version of the code."""
    # Who undoes need not know the function: what may be missing is known by the version that recorded it.
    undoing = claimed.status is RunStatus.COMPENSATING
    return _RunView(
        id=claimed.id,
        public_id=claimed.public_id,
        tenant=claimed.tenant,
        workflow=claimed.workflow,
        fence=claimed.fence,
        input=claimed.input,
        options=options,
        deaths=claimed.deaths,
        new_version=None if undoing or claimed.version == version else version,
        letter=claimed.letter,
        correlation_id=claimed.correlation_id,
        started_at=claimed.started_at,
        handler_for=claimed.handler_for,
        undoing=undoing,
    )


def options_of(text: str) -> RunOptions:
    """A run's options, from its snapshot."""
    trace, rest = split(text)
    return _options(rest).traced(trace)


def readable_options(text: str) -> RunOptions:
    """The same; none if the snapshot cannot be read."""
    try:
        return options_of(text)
    except Exception:  # whatever is wrong with it
        return RunOptions()


@lru_cache(maxsize=1024)
def _options(text: str) -> RunOptions:
    """Remembered, because the runs of a workflow have the same, but for the trace they belong to."""
    return RunOptions.from_json(text)


def last_tries(attempts: Iterable[AttemptRow]) -> dict[int, Try]:
    """How the latest try of each entry ended that did not succeed, by the entry's index."""
    ordered = sorted(attempts, key=lambda row: (row.attempt, row.ended_at))
    return {row.index: Try(attempt=row.attempt, end=row.end, category=row.category) for row in ordered}


def parked_for(attempts: Iterable[AttemptRow], index: int, until: int) -> int:
    """How long an entry waited for its circuit before `until`, in microseconds."""
    rows = [row for row in attempts if row.index == index and row.began_at <= until]
    return time_parked(((row.end, row.began_at, row.ended_at) for row in rows), until)


def open_step(entry: EntryRow, now: int) -> OpenStep:
    """An entry that has not ended, from its row: an attempt under way, or a wait."""
    return OpenStep(
        place=Place(entry.index, entry.key, entry.kind, entry.name),
        attempt=entry.attempt,
        began_ago=max(0, now - entry.began_at),
        executing=entry.kind in EXECUTED and entry.status is StepStatus.RUNNING,
    )


def open_steps(entries: Iterable[EntryRow], now: int) -> tuple[OpenStep, ...]:
    """All of a run's entries that have not ended."""
    return tuple(open_step(entry, now) for entry in entries)
