"""What transitions say beyond runs and journals: new runs, moved letters, replays, audit lines. As JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from redrive.core.states import CLOSED
from redrive.core.transition import AuditWrite, LetterMove, NewRun, Reopening, Transition
from redrive.store.named import named
from redrive.store.postgres.text import as_stored

__all__ = ["audit_lines", "begin", "tell"]

_Row = dict[str, Any]


def tell(transitions: Sequence[Transition]) -> str | None:
    """The rows by kind, each under the number of its transition; None if there are none."""
    told: dict[str, list[_Row]] = {}
    for number, transition in enumerate(transitions, 1):
        for kind, row in _rows(transition):
            told.setdefault(kind, []).append({"t": number, **row})
    return _json(told) if told else None


def begin(transitions: Sequence[Transition]) -> str | None:
    """The runs that transitions start, each under the number of its transition; None if there are none."""
    rows = [{"t": number, **_start(run)} for number, each in enumerate(transitions, 1) for run in each.starts]
    return _json(rows) if rows else None


def audit_lines(lines: Iterable[AuditWrite]) -> str:
    """Audit lines that belong to no transition."""
    return _json({"audit": [{"t": 1, **_stored(named(line))} for line in lines]})


def _rows(transition: Transition) -> Iterator[tuple[str, _Row]]:
    if transition.reopens is not None:
        yield "reopens", _stored(_reopening(transition.reopens))
    if transition.move is not None:
        yield "moves", _stored(_move(transition.move))
    if transition.ends_replay is not None and transition.change is not None:
        yield "ends", {"letter": transition.ends_replay, "outcome": transition.change.status.value}
    if transition.replay is not None:
        yield "replays", {**_stored(named(transition.replay)), "tenant": transition.tenant}
    for mark in transition.marks:
        yield "marks", {**named(mark), "tenant": transition.tenant}
    for line in transition.audit:
        yield "audit", _stored(named(line))


def _reopening(reopening: Reopening) -> _Row:
    row = named(reopening)
    del row["index"]  # which is written by a statement of its own
    return {**row, "new_operation": int(reopening.new_operation)}


def _start(run: NewRun) -> _Row:
    """A run's names stay as they are: one with a NUL in it is refused here as it is by `start`."""
    texts = {name: getattr(run, name) for name in ("input", "options", "correlation_id", "parent")}
    row = named(run)
    del row["index"]
    return {**row, **_stored(texts), "rank": -run.priority}


def _move(move: LetterMove) -> _Row:
    return {**named(move), "status": move.status.value, "closed": move.status in CLOSED}


def _stored(row: _Row) -> _Row:
    return {name: as_stored(value) for name, value in row.items()}


def _json(told: dict[str, list[_Row]] | list[_Row]) -> str:
    # Not escaped: a lone surrogate must be refused here, as everywhere else, not smuggled in as \\ud800.
    return json.dumps(told, ensure_ascii=False)
