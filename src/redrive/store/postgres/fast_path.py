"""The fast path: nearly every commit of a quiet system, in a third of the time.

A batch is sent as arrays, which the server unfolds column by column. The ended entry of a run, its successful end, both
together, or a start without a key is sent as plain values instead. A record with any other field set, now or in a
later version, takes the batch path: `_only_these_fields` checks all fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from redrive.core.states import RunStatus
from redrive.core.transitions import EntryWrite, NewRun, RunWrite, Transition, TransitionResult
from redrive.reasons import Reason, ReasonCode
from redrive.store.postgres.connection import Connection, DatabaseClock, escape_nul
from redrive.store.runs import ENDED_STATUSES
from redrive.store.sql_files import load_numbered_statements
from redrive.store.workers import ReceiptWrite, StaleBatch

STARTS = load_numbered_statements(__package__, "starts.sql")
WRITES = load_numbered_statements(__package__, "writes.sql")


def _only_these_fields(record: type[Any], *allowed: str) -> Callable[[Any], bool]:
    """Return a check that all other fields of a record have their defaults."""
    names, defaults = record.__struct_fields__, record.__struct_defaults__
    default = dict(zip(reversed(names), reversed(defaults), strict=False))  # of the last names
    rest = [name for name in names if name not in allowed]
    read, defaults_of_rest = attrgetter(*rest), tuple(default[name] for name in rest)
    assert msgspec.NODEFAULT not in defaults_of_rest
    return lambda value: read(value) == defaults_of_rest


_has_only_entries = _only_these_fields(Transition, "run", "tenant", "fence", "entries")
_has_only_change = _only_these_fields(Transition, "run", "tenant", "fence", "change")
_is_plain_entry = _only_these_fields(
    EntryWrite, "index", "key", "kind", "name", "status", "attempt", "began_ago", "done", "input", "output", "new"
)
_is_plain_end = _only_these_fields(RunWrite, "status", "take", "output")
_is_plain_run = _only_these_fields(
    NewRun,
    *("public_id", "tenant", "workflow", "input", "options", "queue", "priority", "delay", "timeout"),
    *("deadline", "version", "correlation_id", "parent"),
    "key_keeps",  # without a key it has no meaning
)


async def apply_few(
    connection: Connection,
    clock: DatabaseClock,
    transitions: Sequence[Transition],
    worker: int,
    waiting: set[int],
    receipt: Callable[[Sequence[TransitionResult]], ReceiptWrite] | None = None,
) -> list[TransitionResult] | None:
    """Write an ended entry, the successful end of its run, or both. `waiting` gets the runs that wait for that end.

    Return None, and write nothing, if the batch path is needed. With a `receipt` that is so, too, if the run was lost.
    """
    last = transitions[-1]
    if len(transitions) > 2 or (transitions[0].run, transitions[0].fence) != (last.run, last.fence):
        return None
    entry = _read_plain_entry(transitions[0])
    end = _read_plain_end(last)
    if entry is not None and end is not None:
        statement = "write_entry_and_success"
    elif len(transitions) == 1 and entry is not None:
        statement = "write_entry"
    elif len(transitions) == 1 and end is not None:
        statement = "write_success"
    else:
        return None
    if receipt is not None:
        if entry is None:
            return None
        statement = "write_entry_once" if end is None else "write_entry_and_success_once"
        # Nothing but the whole batch is recorded here, so its answer is known before.
        written = receipt([TransitionResult(True, 0)] * len(transitions))
        entry |= {"number": written.number, "digest": written.digest, "answer": written.answer}
    row = await connection.row(
        WRITES[statement],
        worker=worker,
        now=clock.given(),
        run=last.run,
        fence=last.fence,
        tenant=last.tenant,
        **(entry or {}),
        **(end or {}),
    )
    if row is None:
        raise StaleBatch(Reason(ReasonCode.BATCH_STALE))
    if row["kept"] is None or (receipt is not None and not row["kept"]):
        return None
    now = clock.observe(row["now"])
    if end is not None:
        waiting.update(row["waiting"] or ())
    return [TransitionResult(row["kept"], now)] * len(transitions)


def _read_plain_entry(transition: Transition) -> dict[str, Any] | None:
    """Return the values of a transition that writes one ended entry and nothing else; None for any other."""
    if len(transition.entries) != 1 or not _has_only_entries(transition):
        return None
    entry = transition.entries[0]
    if entry.status not in ENDED_STATUSES or not _is_plain_entry(entry):
        return None
    return {
        "idx": entry.index,
        "key": entry.key,
        "kind": entry.kind._value_,
        "name": entry.name,
        "entry_status": entry.status._value_,
        "attempt": entry.attempt,
        "done": entry.done,
        "began_ago": entry.began_ago,
        "input": escape_nul(entry.input),
        "output": escape_nul(entry.output),
    }


def _read_plain_end(transition: Transition) -> dict[str, Any] | None:
    """Return the values of a transition that ends a run successfully and does nothing else; None for any other."""
    change = transition.change
    if change is None or change.status is not RunStatus.SUCCESS or change.output is None:
        return None
    if not _has_only_change(transition) or not _is_plain_end(change):
        return None
    return {"status": change.status._value_, "take": int(change.take), "result": escape_nul(change.output)}


async def start_single(connection: Connection, clock: DatabaseClock, run: NewRun, worker: int | None) -> Any:
    """Accept a run; return None, and write nothing, if it needs the batch path."""
    if not _is_plain_run(run):
        return None
    return await connection.row(
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
