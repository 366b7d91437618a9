"""Applying transitions: a batch is turned into columns and written by one call of the schema's `apply`.

Within one call no run and no entry is written twice, and nothing follows the taking of a run. A batch
that asks for more is cut into several calls, which share one transaction; that is rare, and only the
reaper's and people's transitions take runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redrive.core.outbox import Carrier
from redrive.core.states import FINAL
from redrive.core.transitions import Answer, AttemptWrite, EntryWrite, LetterWrite, RunWrite, Transition
from redrive.store.postgres import messages
from redrive.store.postgres.connection import DatabaseClock, Line, always, as_stored, seldom
from redrive.store.postgres.fast_path import settle_one
from redrive.store.postgres.messages import begin, tell
from redrive.store.postgres.runs import drop_index, put_index
from redrive.store.postgres.sql import load
from redrive.store.records import ENDED, limits

__all__ = ["apply"]


SQL = load("writes.sql")
_Row = tuple[Any, ...]
_CHANGES = (
    "c_t",
    "c_status",
    "c_wake_in",
    "c_release",
    "c_take",
    "c_final",
    "c_deaths",
    "c_diverged",
    "c_parked_on",
)
_RESULTS = ("r_t", "r_tenant", "r_output", "r_failure")
_ENTRIES = (
    "e_t", "e_idx", "e_tenant", "e_key", "e_kind", "e_name", "e_status", "e_attempt", "e_done", "e_began_ago",
    "e_ended", "e_wake_in", "e_timeout_in", "e_patience", "e_limit_in", "e_input", "e_output", "e_failure",
    "e_options",
)  # fmt: skip
_ALWAYS = frozenset(
    {"c_status", "c_release", "c_take", "c_final", "r_tenant", "e_tenant", "e_kind", "e_name", "e_status",
     "e_attempt", "e_ended"}
)  # fmt: skip


async def apply(
    line: Line,
    clock: DatabaseClock,
    transitions: Sequence[Transition],
    worker: int | None,
    carriers: Sequence[Carrier] = (),
) -> list[Answer]:
    """Write what may be written, and answer for each transition in turn."""
    if not transitions:
        return []
    if len(transitions) == 1 and worker is not None:
        answer = await settle_one(line, clock, transitions[0], worker)
        if answer is not None:
            return [answer]
    calls = _calls(transitions)
    indexed = [each for each in transitions if _is_indexed(each)]
    ends = any(each.change is not None and each.change.ends_as is not None for each in transitions)
    if len(calls) == 1 and not indexed and not ends:
        return await _call(line, clock, calls[0], worker, carriers)
    async with line.transaction():
        answers = [answer for call in calls for answer in await _call(line, clock, call, worker, carriers)]
        if indexed:
            pairs = zip(transitions, answers, strict=True)
            await _index(line, [each for each, answer in pairs if answer.kept and _is_indexed(each)])
        if ends:
            pairs = zip(transitions, answers, strict=True)
            await _set_end(line, [each for each, answer in pairs if answer.kept])
        return answers


async def _set_end(line: Line, transitions: Sequence[Transition]) -> None:
    ends = {
        each.run: each.change.ends_as.value
        for each in transitions
        if each.change is not None and each.change.ends_as is not None
    }
    if ends:
        await line.rows(SQL["set_end"], runs=sorted(ends), ends=[ends[run] for run in sorted(ends)])


def _is_indexed(transition: Transition) -> bool:
    """True if the runs that a transition starts or reopens are found by other values from now on."""
    if transition.reopens is not None:
        return transition.reopens.index is not None
    return any(run.index for run in transition.starts)


async def _index(line: Line, transitions: Sequence[Transition]) -> None:
    reopened = [each for each in transitions if each.reopens is not None]
    await drop_index(line, [each.run for each in reopened])
    await put_index(line, [run for each in transitions for run in each.starts], reopened)


def _calls(transitions: Sequence[Transition]) -> list[Sequence[Transition]]:
    """Cut a batch where a transition writes again what an earlier one of its call wrote or took."""
    if len(transitions) == 1:
        return [transitions]
    changed: set[int] = set()
    taken: set[int] = set()
    written: set[tuple[int, int]] = set()
    cuts = [0]
    for number, transition in enumerate(transitions):
        run, change = transition.run, transition.change
        entries = {(run, entry.index) for entry in transition.entries}
        again = run in taken or (change is not None and run in changed) or not written.isdisjoint(entries)
        if again:
            cuts.append(number)
            changed.clear()
            taken.clear()
            written.clear()
        written |= entries
        if change is not None:
            changed.add(run)
            if change.take:
                taken.add(run)
    if len(cuts) == 1:
        return [transitions]
    return [transitions[start:end] for start, end in zip(cuts, [*cuts[1:], len(transitions)], strict=True)]


async def _call(
    line: Line,
    clock: DatabaseClock,
    transitions: Sequence[Transition],
    worker: int | None,
    carriers: Sequence[Carrier],
) -> list[Answer]:
    columns = _Columns()
    for number, transition in enumerate(transitions, 1):
        columns.add(number, transition)
    values = columns.values(transitions)
    told, begun, said = tell(transitions), begin(transitions), messages.columns(transitions)
    if told is None and begun is None and said is None:
        row = await line.row(SQL["apply"], worker=worker, now=clock.given(), **values)
    else:
        values |= messages.NOTHING if said is None else said | messages.grouped(transitions, carriers)
        more = {"told": told or "{}", "begun": begun}
        row = await line.row(SQL["apply_and_tell"], worker=worker, now=clock.given(), **more, **values)
    now, kept = clock.heard(row[0]), row[1]
    yes, no = Answer(True, now), Answer(False, now)
    answers = [yes if each else no for each in kept]
    if values.get("m_group"):
        for number, taken in enumerate(messages.bundled(transitions, kept, values, row[-1])):
            if taken:
                answers[number] = Answer(True, now, taken)
    return answers


class _Columns:
    """The rows of a call by table, each under the number of its transition."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, _Row]] = []
        self._changes: list[tuple[int, _Row]] = []
        self._results: list[_Row] = []
        self._rare: dict[str, list[dict[str, Any]]] = {}

    def add(self, number: int, transition: Transition) -> None:
        """Gather the rows of one transition."""
        run, change = transition.run, transition.change
        for entry in transition.entries:
            self._entries.append((run, entry.index, _entry(number, transition.tenant, entry)))
        if change is not None and transition.reopens is None:  # which is told, with what it becomes
            self._changes.append((run, _change(number, transition, change)))
            if change.output is not None or change.failure is not None or change.status in FINAL:
                self._results.append(
                    (number, transition.tenant, as_stored(change.output), as_stored(change.failure))
                )
        if transition.only_if is not None:
            index, attempt = transition.only_if
            self._seldom("only_if", {"t": number, "idx": index, "attempt": attempt})
        if transition.closes:
            self._seldom("closes", {"t": number})
        clears = change is None and transition.clears_suspicion
        if clears or transition.version is not None:
            self._seldom("marks", {"t": number, "clears": clears, "version": transition.version})
        for each in transition.attempts:
            self._seldom("attempts", _attempt(number, transition.tenant, each))
        if transition.letter is not None:
            self._seldom("letters", _letter(number, transition.letter))

    def _seldom(self, kind: str, row: dict[str, Any]) -> None:
        self._rare.setdefault(kind, []).append(row)

    def values(self, transitions: Sequence[Transition]) -> dict[str, Any]:
        """The parameters of the call. Rows come in the order in which they are to be locked."""
        self._entries.sort(key=lambda row: row[:2])
        self._changes.sort(key=lambda row: row[0])
        return {
            "runs": [transition.run for transition in transitions],
            "fences": always(transition.fence for transition in transitions),
            **_transposed(_CHANGES, [row[1] for row in self._changes]),
            **_transposed(_RESULTS, self._results),
            **_transposed(_ENTRIES, [row[2] for row in self._entries]),
            "rare": self._rest(),
        }

    def _rest(self) -> str | None:
        if not self._rare:
            return None
        # Not escaped: a lone surrogate must be refused here, as everywhere else, not smuggled in as \ud800.
        return json.dumps(self._rare, ensure_ascii=False)


def _transposed(names: Sequence[str], rows: Sequence[_Row]) -> dict[str, Sequence[Any] | None]:
    if not rows:
        return dict.fromkeys(names)
    columns = zip(*rows, strict=True)
    return {
        name: always(column) if name in _ALWAYS else seldom(column)
        for name, column in zip(names, columns, strict=True)
    }


def _entry(number: int, tenant: str, entry: EntryWrite) -> _Row:
    timeout_in, patience, limit_in = limits(entry)
    return (
        number,
        entry.index,
        tenant,
        entry.key,
        entry.kind._value_,
        entry.name,
        entry.status._value_,
        entry.attempt,
        entry.done,
        entry.began_ago,
        entry.status in ENDED,
        entry.wake_in,
        timeout_in,
        patience,
        limit_in,
        as_stored(entry.input),
        as_stored(entry.output),
        as_stored(entry.failure),
        entry.options,
    )


def _change(number: int, transition: Transition, change: RunWrite) -> _Row:
    deaths = change.deaths
    if deaths is None and transition.clears_suspicion:
        deaths = 0
    return (
        number,
        change.status._value_,
        change.wake_in,
        change.release,
        1 if change.take else 0,
        change.status in FINAL,
        deaths,
        change.diverged,
        change.parked_on,
    )


def _attempt(number: int, tenant: str, attempt: AttemptWrite) -> dict[str, Any]:
    return {
        "t": number,
        "idx": attempt.index,
        "attempt": attempt.attempt,
        "tenant": tenant,
        "ending": attempt.end._value_,
        "began_ago": attempt.began_ago,
        "category": attempt.category,
        "failure": as_stored(attempt.failure),
        "decision": as_stored(attempt.decision),
        "next_in": attempt.next_in,
    }


def _letter(number: int, letter: LetterWrite) -> dict[str, Any]:
    return {
        "t": number,
        "public_id": letter.public_id,
        "code": letter.code,
        "stage": letter.stage,
        "category": letter.category,
        "reason": as_stored(letter.reason),
        "failure": as_stored(letter.failure),
        "fingerprint": letter.fingerprint,
        "payload_hash": letter.payload_hash,
        "step": letter.step,
        "step_index": letter.step_index,
        "attempts": letter.attempts,
        "expires_in": letter.expires_in,
    }
