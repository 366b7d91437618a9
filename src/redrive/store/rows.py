"""From rows to records. The order of columns here is the order in the statements that select them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redrive.core.journal import EntryRow
from redrive.core.quick import quick
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transition import AttemptEnd
from redrive.store.records import (
    AttemptRow,
    AuditRow,
    KnownItem,
    LetterRow,
    PolicyRow,
    ReplayRow,
    RunRow,
    WorkerRow,
)

__all__ = [
    "attempt_row",
    "audit_row",
    "entry_row",
    "known_item",
    "letter_row",
    "policy_row",
    "replay_row",
    "run_row",
    "worker_row",
]

# A set of letters reads a hundred thousand of each.
_RunRow, _LetterRow, _EntryRow = quick(RunRow), quick(LetterRow), quick(EntryRow)
_KINDS = {kind.value: kind for kind in EntryKind}
_STEPS = {status.value: status for status in StepStatus}
_RUNS = {status.value: status for status in RunStatus}
_LETTERS = {status.value: status for status in LetterStatus}
_RUN = (
    "id", "public_id", "tenant", "workflow", "queue", "rank", "status", "fence", "worker", "available_at",
    "deadline", "deaths", "version", "created_at", "started_at", "finished_at", "correlation_id", "parent",
    "root", "replay_of", "generation", "parked_on", "diverged_at", "letter", "handler_for", "timeout",
    "input", "options", "output", "failure",
)  # fmt: skip
_LETTER = (
    "id", "public_id", "tenant", "run", "run_id", "workflow", "status", "code", "stage", "category", "reason",
    "failure", "fingerprint", "payload_hash", "input", "options", "step", "step_index", "attempts",
    "replay_count", "owner", "correlation_id", "version", "created_at", "failed_at", "closed_at", "closed_by",
    "resolution", "expires_at", "tags",
)  # fmt: skip

_REPLAY = (
    "letter", "number", "mode", "digest", "request", "run_id", "by", "reason", "key", "changes", "at",
    "ended_at", "outcome",
)  # fmt: skip
_AUDIT = ("id", "tenant", "at", "event", "by", "subject", "letter", "before", "after", "reason")
_KNOWN = ("kind", "name", "version", "options", "schema_in", "schema_out")


def entry_row(row: Sequence[Any]) -> EntryRow:
    """One row of `entries`. Written out, because claims make many of these."""
    return _EntryRow(
        index=row[0],
        key=row[1],
        kind=_KINDS[row[2]],
        name=row[3],
        status=_STEPS[row[4]],
        attempt=row[5],
        done=row[6],
        first_at=row[7],
        began_at=row[8],
        ended_at=row[9],
        wake_at=row[10],
        limit_at=row[11],
        input=row[12],
        output=row[13],
        failure=row[14],
        options=row[15],
        superseded=row[16],
        loose=row[17],
        heartbeat_at=row[18],
        heartbeat=row[19],
    )


def attempt_row(row: Sequence[Any]) -> AttemptRow:
    """One row of `attempts`."""
    index, attempt, fence, end, *rest = row
    began_at, ended_at, category, failure, decision, next_at, worker = rest
    return AttemptRow(
        index=index,
        attempt=attempt,
        fence=fence,
        end=AttemptEnd(end),
        began_at=began_at,
        ended_at=ended_at,
        category=category,
        failure=failure,
        decision=decision,
        next_at=next_at,
        worker=worker,
    )


def run_row(row: Sequence[Any]) -> RunRow:
    """One row of `runs`, with or without the payloads behind it."""
    values: dict[str, Any] = dict(zip(_RUN, row, strict=False))
    values["status"] = _RUNS[values["status"]]
    values["priority"] = -values.pop("rank")
    return _RunRow(**values)


def letter_row(row: Sequence[Any]) -> LetterRow:
    """One row of `letters`."""
    values: dict[str, Any] = dict(zip(_LETTER, row, strict=True))
    values["status"] = _LETTERS[values["status"]]
    values["tags"] = () if values["tags"] == "[]" else tuple(json.loads(values["tags"]))
    return _LetterRow(**values)


def worker_row(row: Sequence[Any]) -> WorkerRow:
    """One row of `workers`."""
    id, name, version, state, workflows, started_at, beat_at, lease_until = row
    return WorkerRow(
        id=id,
        name=name,
        version=version,
        state=state,
        workflows=tuple(json.loads(workflows)),
        started_at=started_at,
        beat_at=beat_at,
        lease_until=lease_until,
    )


def policy_row(row: Sequence[Any]) -> PolicyRow:
    """One row of `policies`."""
    tenant, workflow, step, policy, updated_at, updated_by = row
    return PolicyRow(
        tenant=tenant,
        workflow=workflow,
        step=step,
        policy=policy,
        updated_at=updated_at,
        updated_by=updated_by,
    )


def replay_row(row: Sequence[Any]) -> ReplayRow:
    """One row of `replays`."""
    return ReplayRow(**dict(zip(_REPLAY, row, strict=True)))


def audit_row(row: Sequence[Any]) -> AuditRow:
    """One row of `audit`."""
    return AuditRow(**dict(zip(_AUDIT, row, strict=True)))


def known_item(row: Sequence[Any]) -> KnownItem:
    """One row of `catalogue`."""
    return KnownItem(**dict(zip(_KNOWN, row, strict=True)))
