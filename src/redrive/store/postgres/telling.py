"""What transitions say beyond runs and journals: new runs, moved letters, replays, audit lines. As JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from redrive.core.states import CLOSED
from redrive.core.transition import AuditWrite, LetterMove, NewRun, Reopening, RunWrite, Transition
from redrive.store.named import named
from redrive.store.postgres.text import all_stored, as_stored

__all__ = ["audit_lines", "begin", "tell"]

_Row = dict[str, Any]
_Write = Callable[[_Row], _Row]


def tell(transitions: Sequence[Transition]) -> str | None:
    """The rows by kind, each under the number of its transition; None if there are none."""
    told = _told(transitions, _said)
    if not told:
        return None
    text = _json(told)
    return text if all_stored(text) else _json(_told(transitions, _stored))


def begin(transitions: Sequence[Transition]) -> str | None:
    """The runs that transitions start, each under the number of its transition; None if there are none."""
    rows = [{"t": number, **_start(run)} for number, each in enumerate(transitions, 1) for run in each.starts]
    return _json(rows) if rows else None


def audit_lines(lines: Iterable[AuditWrite]) -> str:
    """Audit lines that belong to no transition."""
    return _json({"audit": [{"t": 1, **_stored(named(line))} for line in lines]})


def _told(transitions: Sequence[Transition], write: _Write) -> dict[str, list[_Row]]:
    told: dict[str, list[_Row]] = {}
    for number, transition in enumerate(transitions, 1):
        for kind, row in _rows(transition, write):
            row["t"] = number
            told.setdefault(kind, []).append(row)
    return told


def _rows(transition: Transition, write: _Write) -> Iterator[tuple[str, _Row]]:
    if transition.reopens is not None:
        yield "reopens", write({**_reopening(transition.reopens), **_going_on(transition.change)})
    if transition.move is not None:
        yield "moves", write(_move(transition.move))
    if transition.ends_replay is not None and transition.change is not None:
        yield "ends", {"letter": transition.ends_replay, "outcome": transition.change.status.value}
    if transition.replay is not None:
        yield "replays", {**write(named(transition.replay)), "tenant": transition.tenant}
    for mark in transition.marks:
        yield "marks", {**named(mark), "tenant": transition.tenant}
    for line in transition.audit:
        yield "audit", write(named(line))


def _reopening(reopening: Reopening) -> _Row:
    row = named(reopening)
    del row["index"]  # which is written by statements of its own
    row["new_operation"] = int(reopening.new_operation)
    return row


def _going_on(change: RunWrite | None) -> _Row:
    """What a reopened run becomes, said with the rest: so its row is written once, not twice."""
    if change is None:
        return {}
    return {
        "status": change.status.value,
        "wake_in": change.wake_in,
        "release": change.release,
        "take": int(change.take),
        "deaths": change.deaths,
        "diverged": change.diverged,
        "parked_on": change.parked_on,
    }


def _start(run: NewRun) -> _Row:
    """A run's names stay as they are: one with a NUL in it is refused here as it is by `start`."""
    texts = {name: getattr(run, name) for name in ("input", "options", "correlation_id", "parent")}
    row = named(run)
    del row["index"]
    return {**row, **_stored(texts), "rank": -run.priority}


def _move(move: LetterMove) -> _Row:
    return {**named(move), "status": move.status.value, "closed": move.status in CLOSED}


def _said(row: _Row) -> _Row:
    """What is not there is not said: it would be read for nothing, a thousand times."""
    return {name: value for name, value in row.items() if value is not None}


def _stored(row: _Row) -> _Row:
    return {name: as_stored(value) for name, value in row.items() if value is not None}


def _json(told: dict[str, list[_Row]] | list[_Row]) -> str:
    # Not escaped: a lone surrogate must be refused here, as everywhere else, not smuggled in as \\ud800.
    return json.dumps(told, ensure_ascii=False)
