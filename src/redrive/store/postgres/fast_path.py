"""The short ways: what nearly every commit of a quiet system is, in a third of the time.

A batch travels as arrays, which the server unfolds column by column, however few rows there are. One
new entry, one run that ended well, one start without a key are sent as plain values instead. Whoever
takes a short way looks at all the rest: what a record says beyond that, now or one day, goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from redrive.core.states import RunStatus
from redrive.core.transitions import EntryWrite, NewRun, RunWrite, Transition, TransitionResult
from redrive.store.postgres.connection import Connection, DatabaseClock, escape_nul
from redrive.store.runs import ENDED_STATUSES
from redrive.store.sql_files import load_numbered_statements

STARTS, WRITES = (
    load_numbered_statements(__package__, "starts.sql"),
    load_numbered_statements(__package__, "writes.sql"),
)


def _only_these_fields(record: type[Any], *said: str) -> Callable[[Any], bool]:
    """Tells whether a record says nothing beyond these fields: all others are as they are by default."""
    names, defaults = record.__struct_fields__, record.__struct_defaults__
    default = dict(zip(reversed(names), reversed(defaults), strict=False))  # of the last names
    rest = [name for name in names if name not in said]
    look, nothing = attrgetter(*rest), tuple(default[name] for name in rest)
    assert msgspec.NODEFAULT not in nothing
    return lambda given: look(given) == nothing


_has_only_entries = _only_these_fields(Transition, "run", "tenant", "fence", "entries")
_has_only_change = _only_these_fields(Transition, "run", "tenant", "fence", "change")
_is_plain_entry = _only_these_fields(
    EntryWrite, "index", "key", "kind", "name", "status", "attempt", "began_ago", "done", "input", "output"
)
_is_plain_end = _only_these_fields(RunWrite, "status", "take", "output")
_is_plain_run = _only_these_fields(
    NewRun,
    *("public_id", "tenant", "workflow", "input", "options", "queue", "priority", "delay", "timeout"),
    *("deadline", "version", "correlation_id", "parent"),
    "key_keeps",  # says nothing where there is no key
)


async def apply_single(
    line: Connection, clock: DatabaseClock, transition: Transition, worker: int
) -> TransitionResult | None:
    """Write a transition; None if there is no short way for it, and then nothing was written."""
    if transition.entries:
        if not _is_one_ended_entry(transition):
            return None
        now, kept = await _write_entry(line, clock, transition, worker)
    else:
        if not _is_success(transition):
            return None
        now, kept = await _write_success(line, clock, transition, worker)
    return None if kept is None else TransitionResult(kept, clock.heard(now))


def _is_one_ended_entry(transition: Transition) -> bool:
    (entry, *more) = transition.entries
    return not more and entry.status in ENDED_STATUSES and _has_only_entries(transition) and _is_plain_entry(entry)


async def _write_entry(line: Connection, clock: DatabaseClock, transition: Transition, worker: int) -> Any:
    entry = transition.entries[0]
    return await line.row(
        WRITES["write_entry"],
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
        input=escape_nul(entry.input),
        output=escape_nul(entry.output),
    )


def _is_success(transition: Transition) -> bool:
    change = transition.change
    return (
        change is not None
        and change.status is RunStatus.SUCCESS
        and change.output is not None
        and _has_only_change(transition)
        and _is_plain_end(change)
    )


async def _write_success(line: Connection, clock: DatabaseClock, transition: Transition, worker: int) -> Any:
    change = transition.change
    assert change is not None
    return await line.row(
        WRITES["write_success"],
        worker=worker,
        now=clock.given(),
        run=transition.run,
        fence=transition.fence,
        tenant=transition.tenant,
        status=change.status._value_,
        take=int(change.take),
        output=escape_nul(change.output),
    )


async def start_single(line: Connection, clock: DatabaseClock, run: NewRun, worker: int | None) -> Any:
    """Accept a run; None if there is no short way for it, and then nothing was written."""
    if not _is_plain_run(run):
        return None
    return await line.row(
        STARTS["start_single"],
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
        correlation_id=escape_nul(run.correlation_id),
        parent=run.parent,
        input=escape_nul(run.input),
        options=run.options,
    )
