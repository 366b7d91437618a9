"""Applying transitions: a batch becomes columns, and one call of the schema's function `apply` writes them.

One call writes no run and no entry twice, and writes nothing after it has taken a run. A batch that needs more is
split into several calls in one transaction. That is rare: only transitions of the reaper and of users take runs.

Rows that few transitions have (reopened and new runs, closed letters, replays, audit lines) are sent as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redrive.core.outbox import SinkLease
from redrive.core.payload.plain_json import to_json_text
from redrive.core.states import CLOSED_LETTER_STATUSES, FINAL_RUN_STATUSES
from redrive.core.transitions import EntryWrite, NewRun, RunWrite, Transition, TransitionResult
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import as_dict
from redrive.store.postgres import published_messages
from redrive.store.postgres.connection import (
    Connection,
    DatabaseClock,
    dense_column,
    escape_fields,
    escape_nul,
    joined_column,
    needs_no_escape,
    sparse_column,
)
from redrive.store.postgres.fast_path import apply_few
from redrive.store.postgres.pool import PostgresSession
from redrive.store.postgres.starts_and_claims import drop_index, put_index
from redrive.store.runs import ENDED_STATUSES, attempt_limits
from redrive.store.sql_files import Statements, load_numbered_statements
from redrive.store.workers import ReceiptWrite, StaleBatch

SQL = load_numbered_statements(__package__, "writes.sql")
WORKERS = Statements("workers.sql")
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
    "c_seen",
)
_RESULTS = ("r_t", "r_tenant", "r_output", "r_failure")
_ENTRIES = (
    "e_t", "e_idx", "e_tenant", "e_key", "e_kind", "e_name", "e_status", "e_attempt", "e_done", "e_began_ago",
    "e_ended", "e_wake_in", "e_timeout_in", "e_patience", "e_limit_in", "e_input", "e_output", "e_failure",
    "e_options",
)  # fmt: skip
_KINDS: dict[str, Callable[[_Row], Sequence[Any] | str | None]] = {
    **dict.fromkeys(("r_output", "e_key", "e_input", "e_output"), joined_column),
    **dict.fromkeys(("c_status", "c_release", "c_take", "c_final", "r_tenant"), dense_column),
    **dict.fromkeys(("e_tenant", "e_kind", "e_name", "e_status", "e_attempt", "e_ended"), dense_column),
}  # fmt: skip
"""How a column is sent: `sparse_column` unless it is named here."""

_RareRow = dict[str, Any]
_RowFilter = Callable[[_RareRow], _RareRow]


async def apply(
    connection: Connection,
    clock: DatabaseClock,
    transitions: Sequence[Transition],
    worker: int | None,
    carriers: Sequence[SinkLease] = (),
    *,
    waiting: set[int] | None = None,
) -> list[TransitionResult]:
    """Write the transitions whose fence holds; return a result for each, in order.

    `waiting` gets the runs that wait for the end of one of these runs. They are woken after the commit, because
    nothing may lock the rows of two runs in another order than that of their ids.
    """
    waiting = set() if waiting is None else waiting
    if not transitions:
        return []
    if len(transitions) <= 2 and worker is not None:
        written = await apply_few(connection, clock, transitions, worker, waiting)
        if written is not None:
            return written
    calls = _split_calls(transitions)
    indexed = [each for each in transitions if _changes_index(each)]
    ends = any(each.change is not None and each.change.ends_as is not None for each in transitions)
    if len(calls) == 1 and not indexed and not ends:
        return await _apply_call(connection, clock, calls[0], worker, carriers, waiting)
    async with connection.transaction():
        results = [
            result for call in calls for result in await _apply_call(connection, clock, call, worker, carriers, waiting)
        ]
        kept = [each for each, result in zip(transitions, results, strict=True) if result.kept]
        if indexed:
            changed = [each for each in kept if _changes_index(each)]
            reopened = [each for each in changed if each.reopens is not None]
            await drop_index(connection, [each.run for each in reopened])
            await put_index(connection, [run for each in changed for run in each.starts], reopened)
        if ends:
            ends_as = {each.run: each.change.ends_as.value for each in kept if each.change and each.change.ends_as}
            if ends_as:
                await connection.rows(
                    SQL["set_end"], runs=sorted(ends_as), ends=[ends_as[run] for run in sorted(ends_as)]
                )
        return results


async def apply_once(
    connection: Connection,
    clock: DatabaseClock,
    transitions: Sequence[Transition],
    worker: int | None,
    receipt: Callable[[Sequence[TransitionResult]], ReceiptWrite],
    *,
    waiting: set[int],
) -> list[TransitionResult]:
    """Apply a batch and record its receipt; raise StaleBatch if it is not the next batch of its worker."""
    if len(transitions) in (1, 2) and worker is not None:
        found = await apply_few(connection, clock, transitions, worker, waiting, receipt)
        if found is not None:
            return found
    async with connection.transaction():
        results = await apply(connection, clock, transitions, worker, waiting=waiting)
        written = as_dict(receipt(results))
        del written["tenant"]
        if not await PostgresSession(connection, clock).rows(WORKERS["put_receipt"], **written):
            raise StaleBatch(Reason(ReasonCode.BATCH_STALE))
    return results


def _changes_index(transition: Transition) -> bool:
    """Return True if a transition changes the searchable values of runs that it starts or reopens."""
    if transition.reopens is not None:
        return transition.reopens.index is not None
    return any(run.index for run in transition.starts)


def _split_calls(transitions: Sequence[Transition]) -> list[Sequence[Transition]]:
    """Split a batch where a transition writes a row again, or writes a run that an earlier one took."""
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


async def _apply_call(
    connection: Connection,
    clock: DatabaseClock,
    transitions: Sequence[Transition],
    worker: int | None,
    carriers: Sequence[SinkLease],
    waiting: set[int],
) -> list[TransitionResult]:
    rest, starts = encode_rare_writes(transitions), encode_starts(transitions)
    sent = published_messages.make_message_columns(transitions)
    is_short = rest is None and starts is None and sent is None
    numbers = _number_runs(transitions) if is_short else range(1, len(transitions) + 1)
    columns = _Columns()
    for number, transition in zip(numbers, transitions, strict=True):
        columns.add(number, transition)
    values = columns.values()
    if is_short:
        row = await connection.row(SQL["apply"], worker=worker, now=clock.given(), **values)
    else:
        values |= (
            published_messages.NO_MESSAGES
            if sent is None
            else sent | published_messages.make_group_columns(transitions, carriers)
        )
        more = {"told": rest or "{}", "begun": starts}
        row = await connection.row(SQL["apply_with_rest"], worker=worker, now=clock.given(), **more, **values)
    now, kept = clock.observe(row[0]), [row[1][number - 1] for number in numbers]
    waiting.update(row[2] or ())
    yes, no = TransitionResult(True, now), TransitionResult(False, now)
    results = [yes if each else no for each in kept]
    if values.get("m_group"):
        for number, taken in enumerate(published_messages.find_bundles(transitions, kept, values, row[-1])):
            if taken:
                results[number] = TransitionResult(True, now, taken)
    return results


def _number_runs(transitions: Sequence[Transition]) -> list[int]:
    """Return a number for each transition. Those of one run under one fence share a number, and one check of the fence.

    Mostly these are the last step of a run and its end.
    """
    numbers: list[int] = []
    found: dict[tuple[int, int], int] = {}
    count = 0
    for each in transitions:
        number = count + 1
        if each.only_if is None and each.expires is None and each.note is None:
            number = found.setdefault((each.run, each.fence), number)
        count = max(count, number)
        numbers.append(number)
    return numbers


class _Columns:
    """The rows of a call by table, each with the number of its transition's run in `_runs`."""

    def __init__(self) -> None:
        self._runs: list[int] = []
        self._fences: list[int] = []
        self._entries: list[tuple[int, int, _Row]] = []
        self._changes: list[tuple[int, _Row]] = []
        self._results: list[_Row] = []
        self._rare: dict[str, list[dict[str, Any]]] = {}
        self._all_new = True

    def add(self, number: int, transition: Transition) -> None:
        """Add the rows of one transition."""
        run, change = transition.run, transition.change
        if number > len(self._runs):
            self._runs.append(run)
            self._fences.append(transition.fence)
        for entry in transition.entries:
            self._entries.append((run, entry.index, _entry_row(number, transition.tenant, entry)))
            self._all_new = self._all_new and entry.new
        if change is not None and transition.reopens is None:  # `_list_rows` has the change of a reopened run
            self._changes.append((run, _change_row(number, transition, change)))
            if change.output is not None or change.failure is not None or change.status in FINAL_RUN_STATUSES:
                self._results.append((number, transition.tenant, escape_nul(change.output), escape_nul(change.failure)))
                # A run that ended before has a result already.
                self._all_new = self._all_new and change.output is not None and transition.ends_replay is None
        if transition.only_if is not None:
            index, attempt = transition.only_if
            self._add_rare("only_if", {"t": number, "idx": index, "attempt": attempt})
        if transition.closes:
            self._add_rare("closes", {"t": number})
        if transition.waits or transition.ended_waits or transition.uses or transition.expires or transition.note:
            self._add_wait(number, transition)
        if transition.questions or transition.question_ends:
            self._add_questions(number, transition)
        clears = change is None and transition.clears_suspicion
        if clears or transition.version is not None:
            self._add_rare("marks", {"t": number, "clears": clears, "version": transition.version})
        for each in transition.attempts:
            shared = {"t": number, "idx": each.index, "tenant": transition.tenant, "ending": each.end._value_}
            texts = {"failure": escape_nul(each.failure), "decision": escape_nul(each.decision)}
            self._add_rare("attempts", {**as_dict(each), **shared, **texts})
        if transition.letter is not None:
            letter = transition.letter
            texts = {name: escape_nul(getattr(letter, name)) for name in ("reason", "message", "failure")}
            self._add_rare("letters", {**as_dict(letter), **texts, "t": number})

    def _add_wait(self, number: int, transition: Transition) -> None:
        """Add the rows about waits, events and the status that the code set."""
        tenant = transition.tenant
        for wait in transition.waits:
            row = {"idx": wait.index, "kind": wait.kind, "subject": escape_nul(wait.subject)}
            self._add_rare("waits", {"t": number, "tenant": tenant, **row})
        for index in transition.ended_waits:
            self._add_rare("ended_waits", {"t": number, "idx": index})
        for use in transition.uses:
            refused = escape_nul(use.refused)
            self._add_rare("uses", {"t": number, "seq": use.seq, "idx": use.index, "refused": refused})
        if transition.expires is not None:
            index, seen = transition.expires
            self._add_rare("expires", {"t": number, "idx": index, "seen": seen})
        if (note := transition.note) is not None:
            texts = {"text": escape_nul(note.text), "data": escape_nul(note.data)}
            self._add_rare("notes", {"t": number, "tenant": tenant, "progress": note.progress, **texts})

    def _add_questions(self, number: int, transition: Transition) -> None:
        for question in transition.questions:
            texts = {name: escape_nul(getattr(question, name)) for name in ("question", "shown", "schema")}
            row = {**as_dict(question), **texts, "kind": question.kind.value, "idx": question.index}
            self._add_rare("questions", {**row, "t": number, "tenant": transition.tenant})
        for end in transition.question_ends:
            texts = {name: escape_nul(getattr(end, name)) for name in ("answer", "note")}
            row = {**as_dict(end), **texts, "status": end.status.value, "idx": end.index}
            self._add_rare("question_ends", {**row, "t": number})

    def _add_rare(self, kind: str, row: dict[str, Any]) -> None:
        self._rare.setdefault(kind, []).append(row)

    def values(self) -> dict[str, Any]:
        """Return the parameters of the call. Rows are in the order in which they are locked."""
        self._entries.sort(key=lambda row: row[:2])
        self._changes.sort(key=lambda row: row[0])
        return {
            "runs": self._runs,
            "fences": dense_column(self._fences),
            **_to_columns(_CHANGES, [row[1] for row in self._changes]),
            **_to_columns(_RESULTS, self._results),
            **_to_columns(_ENTRIES, [row[2] for row in self._entries]),
            # Not escaped: a lone surrogate must be refused, as everywhere else, not stored as \ud800.
            "rare": to_json_text(self._rare) if self._rare else None,
            "all_new": self._all_new,
        }


def _to_columns(names: Sequence[str], rows: Sequence[_Row]) -> dict[str, Sequence[Any] | str | None]:
    if not rows:
        return dict.fromkeys(names)
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {name: _KINDS.get(name, sparse_column)(column) for name, column in columns}


def _entry_row(number: int, tenant: str, entry: EntryWrite) -> _Row:
    timeout_in, patience, limit_in = attempt_limits(entry)
    return (
        number, entry.index, tenant, entry.key, entry.kind._value_, entry.name, entry.status._value_, entry.attempt,
        entry.done, entry.began_ago, entry.status in ENDED_STATUSES, entry.wake_in, timeout_in, patience, limit_in,
        escape_nul(entry.input), escape_nul(entry.output), escape_nul(entry.failure), entry.options,
    )  # fmt: skip


def _change_row(number: int, transition: Transition, change: RunWrite) -> _Row:
    deaths = change.deaths
    if deaths is None and transition.clears_suspicion:
        deaths = 0
    return (
        number, change.status._value_, change.wake_in, change.release, 1 if change.take else 0,
        change.status in FINAL_RUN_STATUSES, deaths, change.diverged, change.parked_on, change.seen,
    )  # fmt: skip


def encode_rare_writes(transitions: Sequence[Transition]) -> str | None:
    """Return the other rows by kind as JSON, each with the number of its transition; None if there are none."""
    rows = _collect_rows(transitions, _drop_none)
    if not rows:
        return None
    text = to_json_text(rows)
    return text if needs_no_escape(text) else to_json_text(_collect_rows(transitions, escape_fields))


def encode_starts(transitions: Sequence[Transition]) -> str | None:
    """Return the runs that transitions start as JSON; None if there are none."""
    rows = [{"t": number, **_make_start_row(run)} for number, each in enumerate(transitions, 1) for run in each.starts]
    return to_json_text(rows) if rows else None


def _collect_rows(transitions: Sequence[Transition], write: _RowFilter) -> dict[str, list[_RareRow]]:
    rows: dict[str, list[_RareRow]] = {}
    for number, transition in enumerate(transitions, 1):
        for kind, row in _list_rows(transition, write):
            row["t"] = number
            rows.setdefault(kind, []).append(row)
    return rows


def _list_rows(transition: Transition, write: _RowFilter) -> Iterator[tuple[str, _RareRow]]:
    if transition.reopens is not None:
        row = {**as_dict(transition.reopens), "new_operation": int(transition.reopens.new_operation)}
        del row["index"]  # other statements write it
        if (change := transition.change) is not None:  # in the same row: so the run is written once, not twice
            row |= {**as_dict(change), "status": change.status.value, "take": int(change.take)}
        yield "reopens", write(row)
    if transition.move is not None:
        status = transition.move.status
        closed = status in CLOSED_LETTER_STATUSES
        yield "moves", write({**as_dict(transition.move), "status": status.value, "closed": closed})
    if transition.ends_replay is not None and transition.change is not None:
        yield "ends", {"letter": transition.ends_replay, "outcome": transition.change.status.value}
    if transition.replay is not None:
        yield "replays", {**write(as_dict(transition.replay)), "tenant": transition.tenant}
    for sample in transition.samples:
        yield "samples", {**as_dict(sample), "tenant": transition.tenant}
    for line in transition.audit:
        yield "audit", write(as_dict(line))


def _make_start_row(run: NewRun) -> _RareRow:
    """Return a run as a row. Its names are not escaped: one with a NUL is refused, as by `start`."""
    texts = {name: getattr(run, name) for name in ("input", "options", "correlation_id", "parent")}
    row = as_dict(run)
    del row["index"]
    return {**row, **escape_fields(texts), "rank": -run.priority}


def _drop_none(row: _RareRow) -> _RareRow:
    """Leave out empty fields, which the server would parse a thousand times for nothing."""
    return {name: value for name, value in row.items() if value is not None}
