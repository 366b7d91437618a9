"""Applying transitions: each is written whole if its fence still holds, and not at all otherwise.

Rows of all transitions are gathered by table and written by few statements each. That is safe
because a row's meaning never depends on a row of another table, and rows of the same table keep the
order of their transitions.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import islice

from redrive.core.delivery import Carrier
from redrive.core.states import FINAL
from redrive.core.transition import (
    Answer,
    AttemptWrite,
    AuditWrite,
    CircuitMark,
    EntryWrite,
    LetterWrite,
    RunWrite,
    Transition,
)
from redrive.store.shapes import ENDED, limits
from redrive.store.sqlite import messages
from redrive.store.sqlite.many import write_many
from redrive.store.sqlite.telling import says_more, tell
from redrive.store.statements import load

__all__ = ["apply", "note"]

SQL = load(__package__, "writes.sql")

_Row = tuple[object, ...]
# Rows take an enum's `_value_`, a plain string: the driver is several times slower to bind anything else.


def apply(
    con: sqlite3.Connection,
    now: int,
    transitions: Sequence[Transition],
    worker: int | None,
    carriers: Sequence[Carrier] = (),
) -> list[Answer]:
    """Write what may be written, and answer for each transition in turn."""
    fences = _fences(con, transitions, worker)
    rows = _Rows(now, worker)
    kept, lost = Answer(True, now), Answer(False, now)
    answers, more = [], []
    for transition in transitions:
        if fences.get(transition.run) != transition.fence or not _still_holds(con, transition):
            answers.append(lost)
            continue
        answers.append(kept)
        rows.add(transition)
        change = transition.change
        if change is not None and change.take:
            fences[transition.run] += 1
        if transition.messages or says_more(transition):
            more.append(transition)
    rows.write(con)
    if more:
        _say(con, now, transitions, answers, carriers)
        tell(con, now, more)
    return answers


def _say(
    con: sqlite3.Connection,
    now: int,
    transitions: Sequence[Transition],
    answers: list[Answer],
    carriers: Sequence[Carrier],
) -> None:
    """Write the messages of what was kept; the answers tell which of them the carriers have."""
    said = [n for n, each in enumerate(transitions) if each.messages and answers[n].kept]
    if said:
        bundled = iter(messages.publish(con, now, [transitions[n] for n in said], carriers))
        for n in said:
            answers[n] = Answer(True, now, tuple(islice(bundled, len(transitions[n].messages))))


def note(con: sqlite3.Connection, now: int, lines: Iterable[AuditWrite]) -> None:
    """Add lines to the audit log."""
    write_many(con, SQL["put_audit"], [_audit_row(line, now) for line in lines])


def _still_holds(con: sqlite3.Connection, transition: Transition) -> bool:
    """True if the attempt that a decision is about, where it names one, has not ended meanwhile."""
    if transition.only_if is None:
        return True
    return con.execute(SQL["under_way"], (transition.run, *transition.only_if)).fetchone() is not None


def _fences(con: sqlite3.Connection, transitions: Sequence[Transition], worker: int | None) -> dict[int, int]:
    """The fences that the runs carry now. None, for a worker that is dead: it may not write."""
    runs = json.dumps(list({transition.run for transition in transitions}))
    (fences,) = con.execute(SQL["fences"], {"runs": runs, "worker": worker}).fetchone()
    return dict(json.loads(fences))


class _Rows:
    """The rows of a batch, by the statement that writes them."""

    def __init__(self, now: int, worker: int | None) -> None:
        self._now = now
        self._worker = worker
        self._entries: list[_Row] = []
        self._attempts: list[_Row] = []
        self._changes: list[_Row] = []
        self._ends: list[_Row] = []
        self._closed: list[_Row] = []
        self._cleared: list[_Row] = []
        self._versions: list[_Row] = []
        self._results: list[_Row] = []
        self._letters: list[_Row] = []
        self._circuits: list[_Row] = []
        self._marks: list[_Row] = []
        self._probes: list[_Row] = []
        self._audit: list[_Row] = []

    def add(self, transition: Transition) -> None:
        """Gather the rows of one transition."""
        now = self._now
        for entry in transition.entries:
            self._entries.append(_entry_row(transition, entry, now))
        for attempt in transition.attempts:
            self._attempts.append(_attempt_row(transition, attempt, now, self._worker))
        if transition.change is not None:
            self._add_change(transition, transition.change)
        elif transition.clears_suspicion:
            self._cleared.append((transition.run,))
        if transition.closes:
            self._closed.append((self._now, transition.run))
        if transition.version is not None:
            self._versions.append((transition.version, transition.run))
        if transition.letter is not None:
            self._letters.append(_letter_row(transition.run, transition.letter, self._now))
        for mark in transition.marks:
            self._add_mark(transition, mark)
        if transition.audit:
            self._audit.extend(_audit_row(line, self._now) for line in transition.audit)

    def _add_mark(self, transition: Transition, mark: CircuitMark) -> None:
        place = (transition.tenant, mark.key)
        self._circuits.append((*place, mark.settings, self._now))
        if mark.good is not None:
            self._marks.append(_mark_row(transition, mark, self._now))
        if mark.probe:
            self._probes.append((*place, mark.generation, transition.run, transition.fence, mark.index))

    def _add_change(self, transition: Transition, change: RunWrite) -> None:
        if transition.reopens is None:  # a reopened run is told what it becomes with the rest
            self._changes.append(_change_row(transition, change, self._now))
        if change.ends_as is not None:
            self._ends.append((change.ends_as._value_, transition.run))
        if change.output is not None or change.failure is not None or change.status in FINAL:
            self._results.append((transition.run, transition.tenant, change.output, change.failure))

    def write(self, con: sqlite3.Connection) -> None:
        """Write everything, in the lock order of the architecture."""
        _change_runs(con, self._changes)
        for name, rows in (
            ("set_end", self._ends),
            ("clear_suspicion", self._cleared),
            ("set_version", self._versions),
            ("put_result", self._results),
            ("put_entry", self._entries),
            ("close_entries", self._closed),
            ("put_attempt", self._attempts),
            ("put_letter", self._letters),
            ("know_circuit", self._circuits),
            ("put_mark", self._marks),
            ("drop_probe", self._probes),
            ("put_audit", self._audit),
        ):
            if rows:
                write_many(con, SQL[name], rows)


def _change_runs(con: sqlite3.Connection, changes: Sequence[_Row]) -> None:
    """Of two changes to the same run the later one stands, so each has a statement of its own."""
    if len({run for *_, run in changes}) == len(changes):
        write_many(con, SQL["change_run"], changes)
    else:
        con.executemany(SQL["change_run"], changes)


# -- rows ------------------------------------------------------------------------------------------------


def _entry_row(transition: Transition, entry: EntryWrite, now: int) -> _Row:
    began_at = now - entry.began_ago
    timeout_in, patience, limit_in = limits(entry) if entry.limit_in is not None else (None, None, None)
    return (
        transition.run,
        entry.index,
        transition.tenant,
        entry.key,
        entry.kind._value_,
        entry.name,
        entry.status._value_,
        entry.attempt,
        transition.fence,
        entry.done,
        began_at,
        began_at,
        now if entry.status in ENDED else None,
        None if entry.wake_in is None else now + entry.wake_in,
        None if timeout_in is None else now + timeout_in,
        patience,
        None if limit_in is None else now + limit_in,
        entry.input,
        entry.output,
        entry.failure,
        entry.options,
    )


def _attempt_row(transition: Transition, attempt: AttemptWrite, now: int, worker: int | None) -> _Row:
    return (
        transition.run,
        attempt.index,
        attempt.attempt,
        transition.fence,
        transition.tenant,
        attempt.end._value_,
        now - attempt.began_ago,
        now,
        attempt.category,
        attempt.failure,
        attempt.decision,
        _after(now, attempt.next_in),
        worker,
    )


def _change_row(transition: Transition, change: RunWrite, now: int) -> _Row:
    deaths = change.deaths
    if deaths is None and transition.clears_suspicion:
        deaths = 0
    return (
        change.status._value_,
        _after(now, change.wake_in),
        change.release,
        change.take,
        change.status in FINAL,
        now,
        deaths,
        change.diverged,
        change.parked_on,
        transition.run,
    )


def _letter_row(run: int, letter: LetterWrite, now: int) -> _Row:
    return (
        letter.public_id,
        letter.code,
        letter.stage,
        letter.category,
        letter.reason,
        letter.failure,
        letter.fingerprint,
        letter.payload_hash,
        letter.step,
        letter.step_index,
        letter.attempts,
        now,
        now,
        now + letter.expires_in,
        run,
    )


def _mark_row(transition: Transition, mark: CircuitMark, now: int) -> _Row:
    return (
        transition.run,
        mark.index,
        mark.attempt,
        transition.fence,
        transition.tenant,
        mark.key,
        mark.generation,
        mark.good,
        mark.category,
        now,
    )


def _audit_row(line: AuditWrite, now: int) -> _Row:
    return (
        line.tenant,
        now,
        line.event,
        line.by,
        line.subject,
        line.letter,
        line.before,
        line.after,
        line.reason,
        line.token,
    )


def _after(now: int, delay: int | None) -> int | None:
    return None if delay is None else now + delay
