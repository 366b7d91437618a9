"""The states of runs, steps, dead letters and message deliveries, and every legal move between them.

    run      PENDING ──> RUNNING ──> SUCCESS
                ^          │ ^  ├──> FAILED         (without a dead letter)
                │          v │  ├──> DLQ_PENDING ──> FAILED (letter closed) | PENDING (replayed)
                └───── SLEEPING ├──> TIMED_OUT | CANCELLED | PARTIAL
                                └──> COMPENSATING ──> COMPENSATED | DLQ_PENDING | TIMED_OUT | CANCELLED

             The rollback of a parent takes a child from SUCCESS to COMPENSATING. It is SUCCESS again if nothing may be
             undone.

             A run without a worker can be claimed, cancelled, timed out or rolled back. Only its worker
             can report that it failed.

    step     PENDING ──> RUNNING ──> SUCCESS | FAILED ──> DLQ ──> SKIPPED | SUCCESS (by a user)
                ^           │ ^  └─> SKIPPED | CANCELLED
                │           v │
                └──────── RETRYING

             A step whose circuit is open waits as PENDING: before its first attempt, between two attempts,
             or after an interrupted one.

    letter   OPEN ──> REPLAYING ──> RESOLVED | OPEN
              └─────> RESOLVED | IGNORED | EXPIRED

    delivery PENDING ──> DELIVERED | DEAD ──> PENDING (retried) | SKIPPED
                └──────> SKIPPED

The tables below are authoritative, and a test compares the documentation with them. Of two moves in one commit the
row shows only the second: an attempt that began and ended, or a wait that the ending function gave up.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class RunStatus(StrEnum):
    """The status of a run."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SLEEPING = "SLEEPING"
    COMPENSATING = "COMPENSATING"
    SUCCESS = "SUCCESS"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    DLQ_PENDING = "DLQ_PENDING"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    COMPENSATED = "COMPENSATED"


class StepStatus(StrEnum):
    """The status of a journal entry: a step, a timer or a note."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    DLQ = "DLQ"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


class LetterStatus(StrEnum):
    """The status of a dead letter."""

    OPEN = "OPEN"
    REPLAYING = "REPLAYING"
    RESOLVED = "RESOLVED"
    IGNORED = "IGNORED"
    EXPIRED = "EXPIRED"


class DeliveryStatus(StrEnum):
    """The status of the delivery of one message to one sink."""

    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"
    SKIPPED = "SKIPPED"


class EntryKind(StrEnum):
    """The kind of a journal entry."""

    STEP = "step"
    SLEEP = "sleep"
    TIMER = "timer"
    NOTE = "note"
    PATCH = "patch"
    START = "start"
    PUBLISH = "publish"
    WAIT = "wait"
    SEND = "send"
    UNDO = "undo"
    CONFIRM = "confirm"


_R, _S, _L, _D = RunStatus, StepStatus, LetterStatus, DeliveryStatus

_RUN_END_STATUSES = frozenset({_R.SUCCESS, _R.PARTIAL, _R.FAILED, _R.DLQ_PENDING, _R.TIMED_OUT, _R.CANCELLED})

RUN_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    _R.PENDING: frozenset({_R.RUNNING, _R.COMPENSATING, _R.TIMED_OUT, _R.CANCELLED}),
    _R.RUNNING: _RUN_END_STATUSES | {_R.PENDING, _R.SLEEPING, _R.COMPENSATING},
    _R.SLEEPING: frozenset({_R.PENDING, _R.RUNNING, _R.COMPENSATING, _R.TIMED_OUT, _R.CANCELLED}),
    _R.COMPENSATING: _RUN_END_STATUSES - {_R.PARTIAL} | {_R.COMPENSATED},
    _R.DLQ_PENDING: frozenset({_R.PENDING, _R.FAILED, _R.COMPENSATING}),
    _R.FAILED: frozenset({_R.PENDING, _R.COMPENSATING, _R.DLQ_PENDING}),
    _R.TIMED_OUT: frozenset({_R.PENDING, _R.COMPENSATING}),
    _R.PARTIAL: frozenset({_R.PENDING, _R.COMPENSATING}),
    _R.SUCCESS: frozenset({_R.COMPENSATING}),
    _R.CANCELLED: frozenset(),
    _R.COMPENSATED: frozenset(),
}

STEP_MOVES: dict[StepStatus, frozenset[StepStatus]] = {
    _S.PENDING: frozenset({_S.RUNNING, _S.FAILED, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.SUCCESS, _S.RETRYING, _S.FAILED, _S.SKIPPED, _S.CANCELLED, _S.PENDING}),
    _S.RETRYING: frozenset({_S.RUNNING, _S.FAILED, _S.CANCELLED, _S.PENDING}),
    _S.FAILED: frozenset({_S.DLQ}),
    _S.DLQ: frozenset({_S.SKIPPED, _S.SUCCESS}),
    _S.SUCCESS: frozenset(),
    _S.SKIPPED: frozenset(),
    _S.CANCELLED: frozenset(),
}

LETTER_MOVES: dict[LetterStatus, frozenset[LetterStatus]] = {
    _L.OPEN: frozenset({_L.REPLAYING, _L.RESOLVED, _L.IGNORED, _L.EXPIRED}),
    _L.REPLAYING: frozenset({_L.RESOLVED, _L.OPEN}),
    _L.RESOLVED: frozenset({_L.OPEN}),
    _L.IGNORED: frozenset({_L.OPEN}),
    _L.EXPIRED: frozenset(),
}

DELIVERY_MOVES: dict[DeliveryStatus, frozenset[DeliveryStatus]] = {
    _D.PENDING: frozenset({_D.DELIVERED, _D.DEAD, _D.SKIPPED}),
    _D.DEAD: frozenset({_D.PENDING, _D.SKIPPED}),
    _D.DELIVERED: frozenset(),
    _D.SKIPPED: frozenset(),
}

_MOVES: dict[type[StrEnum], Mapping[Any, frozenset[StrEnum]]] = {
    RunStatus: RUN_MOVES,
    StepStatus: STEP_MOVES,
    LetterStatus: LETTER_MOVES,
    DeliveryStatus: DELIVERY_MOVES,
}

FINAL_RUN_STATUSES: frozenset[RunStatus] = _RUN_END_STATUSES | {_R.COMPENSATED}
"""A run in one of these has ended. Only a user's decision changes its status again."""

FOLLOW_UP_KINDS: frozenset[EntryKind] = frozenset({EntryKind.UNDO, EntryKind.CONFIRM})
"""Actions about steps after the workflow function has ended. The function never requests them."""

EXECUTED_KINDS: frozenset[EntryKind] = FOLLOW_UP_KINDS | {EntryKind.STEP}
"""Entries with a function to call."""

CLOSED_LETTER_STATUSES: frozenset[LetterStatus] = frozenset({_L.RESOLVED, _L.IGNORED, _L.EXPIRED})
"""A letter in one of these needs no decision any more."""


def is_legal_move(old: StrEnum, new: StrEnum) -> bool:
    """Return True if the tables allow this move. An unchanged status is always allowed."""
    moves = _MOVES.get(type(old))
    # Members of two of these enums compare equal if their texts do, so the types are compared as well.
    if moves is None or type(new) is not type(old):
        raise TypeError(f"{old!r} and {new!r} are not statuses of the same kind")
    return new is old or new in moves[old]
