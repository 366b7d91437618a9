"""From rows to records. The order of columns here is the order in the statements that select them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from redrive.core.journal import EntryRow
from redrive.core.quick import in_order
from redrive.core.states import EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.core.transition import AttemptEnd
from redrive.store.records import AttemptRow, AuditRow, LetterRow, LetterState, PolicyRow, ReplayRow, RunRow

__all__ = [
    "attempt_row",
    "audit_row",
    "entry_row",
    "letter_row",
    "letter_state",
    "policy_row",
    "replay_row",
    "run_row",
]

# A set of letters reads a hundred thousand of each.
_RunRow, _EntryRow = in_order(RunRow), in_order(EntryRow)
_LetterRow, _LetterState = in_order(LetterRow), in_order(LetterState)
_KINDS = {kind.value: kind for kind in EntryKind}
_STEPS = {status.value: status for status in StepStatus}
_RUNS = {status.value: status for status in RunStatus}
_LETTERS = {status.value: status for status in LetterStatus}
_RUN_ENDS, _ENTRY_ENDS = len(fields(RunRow)), len(fields(EntryRow))
_REPLAY = (
    "letter", "number", "mode", "digest", "request", "run_id", "by", "reason", "key", "changes", "at",
    "ended_at", "outcome",
)  # fmt: skip
_AUDIT = ("id", "tenant", "at", "event", "by", "subject", "letter", "before", "after", "reason")


def entry_row(row: Sequence[Any]) -> EntryRow:
    """One row of `entries`, whatever is behind it. Columns are in the order of the record's fields."""
    return _EntryRow(row[0], row[1], _KINDS[row[2]], row[3], _STEPS[row[4]], *row[5:_ENTRY_ENDS])


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
    """One row of `runs`, with or without the payloads behind it; the rank is the priority, turned round."""
    return _RunRow(*row[:5], -row[5], _RUNS[row[6]], *row[7:_RUN_ENDS])


def letter_row(row: Sequence[Any]) -> LetterRow:
    """One row of `letters`."""
    tags = () if row[-1] == "[]" else tuple(json.loads(row[-1]))
    return _LetterRow(*row[:6], _LETTERS[row[6]], *row[7:-1], tags)


def letter_state(row: Sequence[Any]) -> LetterState:
    """The few columns of `letters` that deciding takes."""
    public_id, run_id, tenant, status, closed_by, resolution = row
    return _LetterState(public_id, run_id, tenant, _LETTERS[status], closed_by, resolution)


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
