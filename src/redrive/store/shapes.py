"""What both stores make of the port's records before they write them."""

from __future__ import annotations

import json
from functools import lru_cache

from redrive.clock import MICROS
from redrive.core.keys import decode
from redrive.core.options import StepOptions
from redrive.core.quick import quick
from redrive.core.states import StepStatus
from redrive.core.transition import EntryWrite, NewRun
from redrive.errors import DataRefused
from redrive.store.records import Triage
from redrive.store.workers import Claimed

__all__ = ["ENDED", "given_key", "limits", "owner_and_tags", "taken_at_start"]

_Claimed = quick(Claimed)

ENDED = frozenset(
    {StepStatus.SUCCESS, StepStatus.FAILED, StepStatus.DLQ, StepStatus.SKIPPED, StepStatus.CANCELLED}
)
"""An entry in one of these states has ended."""


def limits(entry: EntryWrite) -> tuple[int | None, int | None, int | None]:
    """How long a try may still take, how long it may be silent, and the nearer end of the two.

    Microseconds from the store's now, as everything a transition says about time.
    """
    if entry.status is not StepStatus.RUNNING or entry.limit_in is None:
        return None, None, None
    if entry.options is None or (rule := _heartbeat_rule(entry.options)) is None:
        return entry.limit_in, None, entry.limit_in
    timeout, patience = rule
    timeout_in = timeout - entry.began_ago
    return timeout_in, patience, min(entry.limit_in, timeout_in, patience)


@lru_cache(maxsize=1024)
def _heartbeat_rule(options: str) -> tuple[int, int] | None:
    """A step's timeout and how long it may go without a heartbeat; None if it has no such rule.

    Remembered, because every begin mark of a step brings the same text. Options that other code wrote
    in another form hold no rule for us; the limit that came with them still counts.
    """
    try:
        step = StepOptions.from_json(options)
    except (KeyError, TypeError, ValueError):
        return None
    if step.heartbeat_timeout is None:
        return None
    return int(step.timeout * MICROS), int(step.heartbeat_timeout * MICROS)


def taken_at_start(run: NewRun, id: int, *, version: str, deadline: int | None, now: int) -> Claimed:
    """A run that its worker has from the beginning: what a claim would read is what was just written."""
    return _Claimed(
        id=id,
        public_id=run.public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        fence=1,
        version=version,
        input=run.input,
        options=run.options,
        deadline=deadline,
        deaths=0,
        correlation_id=run.correlation_id,
        root=run.root,
        generation=run.generation,
        created_at=now,
        diverged_at=None,
        letter=run.letter,
        started_at=now,
        handler_for=run.handler_for,
    )


def given_key(key: str) -> str:
    """An idempotency key as the caller gave it, the last part of the encoded one."""
    last = key.rpartition(":")[2]
    if "%" not in last:
        return last  # nothing in it was escaped
    try:
        return decode(key)[1][-1]
    except (ValueError, IndexError):
        return key


def owner_and_tags(triage: Triage) -> tuple[str | None, str | None]:
    """What a person notes on a letter, the tags as a JSON array.

    Both are names to look for. SQLite ends a text in JSON at a NUL, and PostgreSQL fails to read such an
    array at all, whoever looks for whatever tag: so like every other name they hold none.
    """
    for name in (triage.owner or "", *(triage.tags or ())):
        if "\0" in name:
            raise DataRefused(f"the store refused a note: {name!r} contains a NUL character")
    # Not escaped: a lone surrogate must be refused, as everywhere else, not smuggled in as \\ud800.
    tags = None if triage.tags is None else json.dumps(triage.tags, ensure_ascii=False)
    return triage.owner, tags
