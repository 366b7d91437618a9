"""The short ways: what nearly every commit of a quiet system is, in a third of the time.

A batch travels as arrays, which the server unfolds column by column, however few rows there are. One
new entry, one run that ended well, one start without a key are sent as plain values instead. Whoever
takes a short way looks at all the rest: what a record says beyond that, now or one day, goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from operator import attrgetter
from typing import Any

from redrive.core.states import RunStatus
from redrive.core.transitions import Answer, EntryWrite, NewRun, RunWrite, Transition
from redrive.store.postgres.connection import DatabaseClock, Line, as_stored
from redrive.store.postgres.sql import load
from redrive.store.records import ENDED

__all__ = ["settle_one", "start_one"]


STARTS, WRITES = load("starts.sql"), load("writes.sql")


def _nothing_but(record: type[Any], *said: str) -> Callable[[Any], bool]:
    """Tells whether a record says nothing beyond these fields: all others are as they are by default."""
    rest = [each for each in fields(record) if each.name not in said]
    look, nothing = attrgetter(*(each.name for each in rest)), tuple(each.default for each in rest)
    assert MISSING not in nothing
    return lambda given: look(given) == nothing


_is_about_entries = _nothing_but(Transition, "run", "tenant", "fence", "entries")
_is_about_the_run = _nothing_but(Transition, "run", "tenant", "fence", "change")
_is_plain_entry = _nothing_but(
    EntryWrite, "index", "key", "kind", "name", "status", "attempt", "began_ago", "done", "input", "output"
)
_is_plain_end = _nothing_but(RunWrite, "status", "take", "output")
_is_plain_run = _nothing_but(
    NewRun,
    *("public_id", "tenant", "workflow", "input", "options", "queue", "priority", "delay", "timeout"),
    *("deadline", "version", "correlation_id", "parent"),
    "key_keeps",  # says nothing where there is no key
)


async def settle_one(line: Line, clock: DatabaseClock, transition: Transition, worker: int) -> Answer | None:
    """Write a transition; None if there is no short way for it, and then nothing was written."""
    if transition.entries:
        if not _is_one_ended_entry(transition):
            return None
        now, kept = await _record(line, clock, transition, worker)
    else:
        if not _is_success(transition):
            return None
        now, kept = await _finish(line, clock, transition, worker)
    return None if kept is None else Answer(kept, clock.heard(now))


def _is_one_ended_entry(transition: Transition) -> bool:
    (entry, *more) = transition.entries
    return not more and entry.status in ENDED and _is_about_entries(transition) and _is_plain_entry(entry)


async def _record(line: Line, clock: DatabaseClock, transition: Transition, worker: int) -> Any:
    entry = transition.entries[0]
    return await line.row(
        WRITES["record"],
        worker=worker,
        now=clock.given(),
        run=transition.run,
        fence=transition.fence,
        tenant=transition.tenant,
        idx=entry.index,
        key=entry.key,
        kind=entry.kind._value_,
        name=entry.name,
        status=entry.status._value_,
        attempt=entry.attempt,
        done=entry.done,
        began_ago=entry.began_ago,
        input=as_stored(entry.input),
        output=as_stored(entry.output),
    )


def _is_success(transition: Transition) -> bool:
    change = transition.change
    return (
        change is not None
        and change.status is RunStatus.SUCCESS
        and change.output is not None
        and _is_about_the_run(transition)
        and _is_plain_end(change)
    )


async def _finish(line: Line, clock: DatabaseClock, transition: Transition, worker: int) -> Any:
    change = transition.change
    assert change is not None
    return await line.row(
        WRITES["finish"],
        worker=worker,
        now=clock.given(),
        run=transition.run,
        fence=transition.fence,
        tenant=transition.tenant,
        status=change.status._value_,
        take=int(change.take),
        output=as_stored(change.output),
    )


async def start_one(line: Line, clock: DatabaseClock, run: NewRun, worker: int | None) -> Any:
    """Accept a run; None if there is no short way for it, and then nothing was written."""
    if not _is_plain_run(run):
        return None
    return await line.row(
        STARTS["start_one"],
        now=clock.given(),
        worker=worker,
        public_id=run.public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        queue=run.queue,
        rank=-run.priority,
        delay=run.delay,
        timeout=run.timeout,
        deadline=run.deadline,
        version=run.version,
        correlation_id=as_stored(run.correlation_id),
        parent=run.parent,
        input=as_stored(run.input),
        options=run.options,
    )
