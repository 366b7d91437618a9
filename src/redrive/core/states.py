"""The states of runs, steps and dead letters, and every legal move between them.

    run      PENDING ──> RUNNING ──> SUCCESS
                ^          │ ^  ├──> FAILED         (no dead letter wanted)
                │          v │  ├──> DLQ_PENDING ──> FAILED (letter closed) | PENDING (replayed)
                └───── SLEEPING ├──> TIMED_OUT | CANCELLED | PARTIAL
                                └──> COMPENSATING ──> COMPENSATED | DLQ_PENDING | TIMED_OUT | CANCELLED

    step     PENDING ──> RUNNING ──> SUCCESS | FAILED ──> DLQ
                            │ ^  └─> SKIPPED | CANCELLED
                            v │
                          RETRYING

    letter   OPEN ──> REPLAYING ──> RESOLVED | OPEN
              └─────> RESOLVED | IGNORED | EXPIRED

The tables below are the truth; the documentation's copy is compared with them by a test.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "FINAL",
    "LETTER_MOVES",
    "RUN_MOVES",
    "STEP_MOVES",
    "EntryKind",
    "LetterStatus",
    "RunStatus",
    "StepStatus",
    "may_move",
]


class RunStatus(StrEnum):
    """Where a run stands."""

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
    """Where one journal entry stands. Timers and notes use the same words as steps."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    DLQ = "DLQ"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


class LetterStatus(StrEnum):
    """Where a dead letter stands."""

    OPEN = "OPEN"
    REPLAYING = "REPLAYING"
    RESOLVED = "RESOLVED"
    IGNORED = "IGNORED"
    EXPIRED = "EXPIRED"


class EntryKind(StrEnum):
    """What a journal entry records."""

    STEP = "step"
    SLEEP = "sleep"
    TIMER = "timer"
    NOTE = "note"
    START = "start"


_R, _S, _L = RunStatus, StepStatus, LetterStatus

_ENDINGS = frozenset({_R.SUCCESS, _R.PARTIAL, _R.FAILED, _R.DLQ_PENDING, _R.TIMED_OUT, _R.CANCELLED})

RUN_MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    _R.PENDING: frozenset({_R.RUNNING, _R.DLQ_PENDING, _R.FAILED, _R.TIMED_OUT, _R.CANCELLED}),
    _R.RUNNING: _ENDINGS | {_R.PENDING, _R.SLEEPING, _R.COMPENSATING},
    _R.SLEEPING: frozenset(
        {_R.RUNNING, _R.COMPENSATING, _R.DLQ_PENDING, _R.FAILED, _R.TIMED_OUT, _R.CANCELLED}
    ),
    _R.COMPENSATING: frozenset({_R.COMPENSATED, _R.DLQ_PENDING, _R.FAILED, _R.TIMED_OUT, _R.CANCELLED}),
    _R.DLQ_PENDING: frozenset({_R.PENDING, _R.FAILED, _R.COMPENSATING}),
    _R.FAILED: frozenset({_R.PENDING, _R.COMPENSATING}),
    _R.TIMED_OUT: frozenset({_R.PENDING, _R.COMPENSATING}),
    _R.PARTIAL: frozenset({_R.PENDING, _R.COMPENSATING}),
    _R.SUCCESS: frozenset(),
    _R.CANCELLED: frozenset(),
    _R.COMPENSATED: frozenset(),
}

STEP_MOVES: dict[StepStatus, frozenset[StepStatus]] = {
    _S.PENDING: frozenset({_S.RUNNING, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.SUCCESS, _S.RETRYING, _S.FAILED, _S.SKIPPED, _S.CANCELLED}),
    _S.RETRYING: frozenset({_S.RUNNING, _S.FAILED, _S.CANCELLED}),
    _S.FAILED: frozenset({_S.DLQ}),
    _S.DLQ: frozenset({_S.PENDING, _S.SKIPPED, _S.SUCCESS}),
    _S.SUCCESS: frozenset(),
    _S.SKIPPED: frozenset(),
    _S.CANCELLED: frozenset(),
}

LETTER_MOVES: dict[LetterStatus, frozenset[LetterStatus]] = {
    _L.OPEN: frozenset({_L.REPLAYING, _L.RESOLVED, _L.IGNORED, _L.EXPIRED}),
    _L.REPLAYING: frozenset({_L.RESOLVED, _L.OPEN}),
    _L.RESOLVED: frozenset(),
    _L.IGNORED: frozenset(),
    _L.EXPIRED: frozenset(),
}

FINAL: frozenset[RunStatus] = _ENDINGS | {_R.COMPENSATED}
"""A run in one of these has ended; only a person's decision moves it again."""


def may_move(old: StrEnum, new: StrEnum) -> bool:
    """Tell whether the tables allow this move. Staying where one is, is no move and always allowed."""
    match old:
        case RunStatus():
            return new is old or new in RUN_MOVES[old]
        case StepStatus():
            return new is old or new in STEP_MOVES[old]
        case LetterStatus():
            return new is old or new in LETTER_MOVES[old]
        case _:
            raise TypeError(f"{old!r} is no state of a run, a step or a dead letter")
