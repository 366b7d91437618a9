"""Applying transitions, with the messages that they publish: each is written whole if its fence holds, or not at all.

Nearly all transitions write entries and changes of runs only. The rows that few transitions have (reopened and new
runs, closed letters, replays) are written last, one kind after the other.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from redrive.clock import MICROS
from redrive.core.outbox import Bundle, SinkLease
from redrive.core.states import CLOSED_LETTER_STATUSES, FINAL_RUN_STATUSES, DeliveryStatus, RunStatus
from redrive.core.transitions import (
    AttemptWrite,
    AuditWrite,
    EntryWrite,
    LetterStatusWrite,
    MessageWrite,
    ReopenWrite,
    RunWrite,
    Transition,
    TransitionResult,
)
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import as_dict
from redrive.store.children import WokenRun
from redrive.store.runs import ENDED_STATUSES, attempt_limits
from redrive.store.sql_files import Statements, load_statements
from redrive.store.sqlite.connection import Row, Write, multi_row_statements, write_many
from redrive.store.sqlite.starts_and_claims import drop_index, put_index, start
from redrive.store.workers import ReceiptWrite, StaleBatch

SQL = load_statements(__package__, "writes.sql")
OUTBOX = load_statements(__package__, "outbox.sql")
WORKERS = Statements("workers.sql").texts("sqlite")
CHILDREN = Statements("children.sql").texts("sqlite")

# A plan that waited longer for the write lock is made again: its times count from the moment it was made.
_PLAN_LIFETIME = MICROS // 10
_NumberedMessage = tuple[int, str, MessageWrite, Bundle | None]


# The statements that write rows of a batch, after `change_run`, in the lock order of the architecture.
_STATEMENTS = (
    "set_end", "clear_suspicion", "set_version", "put_result", "put_entry", "close_entries", "drop_waits",
    "withdraw_questions", "put_question", "end_question", "end_wait", "put_wait", "use_event", "put_note",
    "put_attempt",
    "put_letter", "put_letter_texts", "insert_circuit_if_new", "put_sample", "drop_probe", "put_audit",
)  # fmt: skip
_Row = dict[str, Any]
_CHANGED = ("status", "wake_in", "release", "take", "deaths", "diverged", "parked_on")  # columns of a reopened run


class TransitionRows:
    """The rows of a batch, by the statement that writes them."""

    def __init__(self, now: int, worker: int | None) -> None:
        self._now = now
        self._worker = worker
        # Nearly every transition has rows of the first three kinds, so these are not looked up by name.
        self._entries: list[Row] = []
        self._changes: list[Row] = []
        self._results: list[Row] = []
        self._rows: defaultdict[str, list[Row]] = defaultdict(list)

    def add(self, transition: Transition) -> None:
        """Add the rows of one transition."""
        now, change = self._now, transition.change
        for entry in transition.entries:
            self._entries.append(_entry_row(transition, entry, now))
        for attempt in transition.attempts:
            self._rows["put_attempt"].append(_attempt_row(transition, attempt, now, self._worker))
        if change is not None:
            if transition.reopens is None:  # `write_rare` writes the change of a reopened run
                self._changes.append(_change_row(transition, change, now))
            if change.ends_as is not None:
                self._rows["set_end"].append((change.ends_as._value_, transition.run))
            if change.output is not None or change.failure is not None or change.status in FINAL_RUN_STATUSES:
                self._results.append((transition.run, transition.tenant, change.output, change.failure))
            # A run that succeeds has withdrawn its open questions before: its branches were cancelled.
            if change.status in FINAL_RUN_STATUSES and change.status is not RunStatus.SUCCESS:
                self._rows["withdraw_questions"].append((transition.run,))
        elif transition.clears_suspicion:
            self._rows["clear_suspicion"].append((transition.run,))
        if transition.closes:
            self._rows["close_entries"].append((now, transition.run))
            self._rows["drop_waits"].append((transition.run,))
            self._rows["withdraw_questions"].append((transition.run,))
        if transition.waits or transition.ended_waits or transition.uses or transition.note:
            self._add_wait(transition)
        if transition.questions or transition.question_ends:
            self._add_questions(transition)
        if transition.version is not None:
            self._rows["set_version"].append((transition.version, transition.run))
        if (letter := transition.letter) is not None:
            self._rows["put_letter"].append((
                letter.public_id, letter.code, letter.stage, letter.category, letter.reason, letter.message,
                letter.fingerprint, letter.payload_hash, letter.step, letter.step_index, letter.attempts, now, now,
                now + letter.expires_in, transition.run,
            ))  # fmt: skip
            self._rows["put_letter_texts"].append((letter.failure, transition.run))
        for sample in transition.samples:
            circuit = (transition.tenant, sample.key)
            self._rows["insert_circuit_if_new"].append((*circuit, sample.settings, now))
            if sample.good is not None:
                key = (transition.run, sample.index, sample.attempt, transition.fence)
                values = (*circuit, sample.generation, sample.good, sample.category, now)
                self._rows["put_sample"].append((*key, *values))
            if sample.probe:
                self._rows["drop_probe"].append(
                    (*circuit, sample.generation, transition.run, transition.fence, sample.index)
                )
        if transition.audit:
            self._rows["put_audit"].extend(_audit_row(line, now) for line in transition.audit)

    def _add_wait(self, transition: Transition) -> None:
        """Add the rows about waits, events and the status that the code set."""
        run, tenant = transition.run, transition.tenant
        for wait in transition.waits:
            self._rows["put_wait"].append((run, wait.index, wait.kind, wait.subject, tenant, self._now))
        self._rows["end_wait"].extend((run, index) for index in transition.ended_waits)
        self._rows["use_event"].extend((use.index, use.refused, run, use.seq) for use in transition.uses)
        if (note := transition.note) is not None:
            self._rows["put_note"].append((run, tenant, self._now, note.progress, note.text, note.data))

    def _add_questions(self, transition: Transition) -> None:
        now, run = self._now, transition.run
        for q in transition.questions:
            due_at, next_at = (None if delay is None else now + delay for delay in (q.due_in, q.next_in))
            self._rows["put_question"].append((
                q.public_id, transition.tenant, run, q.index, q.run_id, q.workflow, q.key, q.kind.value, q.role,
                q.people, q.apart_from, q.question, q.shown, q.schema, now, due_at, next_at, q.plan, q.notify,
            ))  # fmt: skip
        self._rows["end_question"].extend(
            (end.status.value, None if end.by is None else now, end.by, end.answer, end.note, run, end.index)
            for end in transition.question_ends
        )

    def writes(self) -> list[Write]:
        """Return the statements for all rows, in the lock order of the architecture."""
        changes, rows = self._changes, {**self._rows, "put_entry": self._entries, "put_result": self._results}
        # Of two changes to one run the later one must win, so these are written one after the other.
        if len({run for *_, run in changes}) == len(changes):
            writes = multi_row_statements(SQL["change_run"], changes)
        else:
            writes = [(SQL["change_run"], changes)]
        for name in _STATEMENTS:
            if found := rows.get(name):
                writes += multi_row_statements(SQL[name], found)
        return writes


def _entry_row(transition: Transition, entry: EntryWrite, now: int) -> Row:
    began_at = now - entry.began_ago
    timeout_in, patience, limit_in = attempt_limits(entry) if entry.limit_in is not None else (None, None, None)
    return (
        transition.run, entry.index, transition.tenant, entry.key, entry.kind._value_, entry.name,
        entry.status._value_, entry.attempt, transition.fence, entry.done, began_at, began_at,
        now if entry.status in ENDED_STATUSES else None, None if entry.wake_in is None else now + entry.wake_in,
        None if timeout_in is None else now + timeout_in, patience, None if limit_in is None else now + limit_in,
        entry.input, entry.output, entry.failure, entry.options,
    )  # fmt: skip


def _attempt_row(transition: Transition, attempt: AttemptWrite, now: int, worker: int | None) -> Row:
    return (
        transition.run, attempt.index, attempt.attempt, transition.fence, transition.tenant, attempt.end._value_,
        now - attempt.began_ago, now, attempt.category, attempt.failure, attempt.decision,
        None if attempt.next_in is None else now + attempt.next_in, worker,
    )  # fmt: skip


def _change_row(transition: Transition, change: RunWrite, now: int) -> Row:
    deaths = change.deaths
    if deaths is None and transition.clears_suspicion:
        deaths = 0
    return (
        change.status._value_, None if change.wake_in is None else now + change.wake_in, change.release,
        change.take, change.status in FINAL_RUN_STATUSES, now, deaths, change.diverged, change.parked_on, change.seen,
        transition.run,
    )  # fmt: skip


def _audit_row(line: AuditWrite, now: int) -> Row:
    return (
        line.tenant, now, line.event, line.by, line.subject, line.letter, line.before, line.after, line.reason,
        line.token,
    )  # fmt: skip


def write_audit(con: sqlite3.Connection, now: int, lines: Iterable[AuditWrite]) -> None:
    """Add lines to the audit log."""
    write_many(con, SQL["put_audit"], [_audit_row(line, now) for line in lines])


class TransitionBatch:
    """Transitions to apply in one transaction.

    The plan is made before the write lock is taken, for the fences that the transitions presume.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        transitions: Sequence[Transition],
        worker: int | None,
        carriers: Sequence[SinkLease] = (),
    ) -> None:
        self._clock = clock
        self._transitions = transitions
        self._worker = worker
        self._carriers = carriers
        self._presumed = {each.run: each.fence for each in transitions}
        self._conditional = [each for each in transitions if each.only_if is not None or each.expires is not None]
        self._plan = _WritePlan(clock(), worker, transitions, self._presumed)
        self.woken: list[WokenRun] = []

    def apply(self, con: sqlite3.Connection) -> list[TransitionResult]:
        """Write the transitions whose fence holds; return a result for each, in order."""
        plan = self._plan
        self.woken = []
        if self._clock() - plan.now >= _PLAN_LIFETIME or not self._all_fences_hold(con):
            runs = {"runs": json.dumps(list(self._presumed)), "worker": self._worker}
            (fences,) = con.execute(SQL["fences"], runs).fetchone()
            open_ones = [each if self._condition_holds(con, each) else None for each in self._transitions]
            plan = _WritePlan(self._clock(), self._worker, open_ones, dict(json.loads(fences)))
        for statement, rows in plan.writes:
            con.executemany(statement, rows)
        if plan.rest:
            self._publish_messages(con, plan)
            write_rare(con, plan.now, plan.rest)
        if plan.ended and con.execute(SQL["any_run_wait"]).fetchone() is not None:
            self._wake_waiting(con, plan)
        return plan.results

    def _wake_waiting(self, con: sqlite3.Connection, plan: _WritePlan) -> None:
        """Wake the runs that wait for the end of a run of this batch, in the same commit."""
        found = con.execute(SQL["waiting_for"], {"runs": json.dumps(plan.ended)}).fetchall()
        for run in sorted({row[0] for row in found}):
            rows = con.execute(CHILDREN["wake_waiting"], {"run": run, "now": plan.now, "asleep": False}).fetchall()
            self.woken += [WokenRun(run, wakeups, bool(due)) for run, wakeups, due in rows]

    def _all_fences_hold(self, con: sqlite3.Connection) -> bool:
        """Return True if every run carries the presumed fence, and every `only_if` attempt is still open."""
        presumed = {"fences": json.dumps(self._presumed), "worker": self._worker}
        (holding,) = con.execute(SQL["count_held_fences"], presumed).fetchone()
        return holding == len(self._presumed) and all(self._condition_holds(con, each) for each in self._conditional)

    def _condition_holds(self, con: sqlite3.Connection, transition: Transition) -> bool:
        """Return True unless the attempt that the transition ends is over, or its wait has not expired."""
        if transition.only_if is not None:
            return con.execute(SQL["open_attempt"], (transition.run, *transition.only_if)).fetchone() is not None
        if transition.expires is not None:
            wait = (transition.run, *transition.expires, self._clock(), transition.fence)
            return con.execute(SQL["expired_wait"], wait).fetchone() is not None
        return True

    def _publish_messages(self, con: sqlite3.Connection, plan: _WritePlan) -> None:
        """Write the messages of kept transitions; add to their results which messages the carriers have claimed."""
        numbers = [n for n, each in enumerate(self._transitions) if each.messages and plan.results[n].kept]
        if numbers:
            kept = [self._transitions[n] for n in numbers]
            bundled = iter(publish_messages(con, plan.now, kept, self._carriers, self._worker))
            for n in numbers:
                taken = tuple(islice(bundled, len(self._transitions[n].messages)))
                plan.results[n] = TransitionResult(True, plan.now, taken)


class _WritePlan:
    """The statements that apply transitions to runs with these fences, and a result for each transition.

    `rest`: transitions that write more than runs and journals. `ended`: the runs that end.
    """

    def __init__(
        self, now: int, worker: int | None, transitions: Sequence[Transition | None], fences: Mapping[int, int]
    ) -> None:
        self.now = now
        rows, carried = TransitionRows(now, worker), dict(fences)
        kept, lost = TransitionResult(True, now), TransitionResult(False, now)
        self.results: list[TransitionResult] = []
        self.rest: list[Transition] = []
        self.ended: list[int] = []
        for transition in transitions:
            if transition is None or carried.get(transition.run) != transition.fence:
                self.results.append(lost)
                continue
            self.results.append(kept)
            rows.add(transition)
            change = transition.change
            if change is not None:
                if change.take:
                    carried[transition.run] += 1
                if change.status in FINAL_RUN_STATUSES:
                    self.ended.append(transition.run)
            moves = transition.move or transition.reopens or transition.starts
            if moves or transition.messages or transition.replay or transition.ends_replay:
                self.rest.append(transition)
        self.writes = rows.writes()


def apply_once(
    con: sqlite3.Connection, batch: TransitionBatch, receipt: Callable[[Sequence[TransitionResult]], ReceiptWrite]
) -> list[TransitionResult]:
    """Apply a batch and record its receipt; raise StaleBatch if it is not the next batch of its worker."""
    results = batch.apply(con)
    if not con.execute(WORKERS["put_receipt"], as_dict(receipt(results))).fetchall():
        raise StaleBatch(Reason(ReasonCode.BATCH_STALE))
    return results


def write_rare(con: sqlite3.Connection, now: int, transitions: Sequence[Transition]) -> None:
    """Write the rest of transitions, one kind after the other, as the PostgreSQL store does."""
    _reopen_runs(con, now, [each for each in transitions if each.reopens])
    if begun := [run for each in transitions for run in each.starts]:
        start(con, now, begun)
        replaced = [{"old": run.replay_of, "new": run.public_id} for run in begun if run.replay_of is not None]
        for name in ("copy_events", "copy_wakeups", "replace_run", "copy_owner", "move_children"):
            con.executemany(SQL[name], replaced)
    moves = [each.move for each in transitions if each.move]
    con.executemany(SQL["move_letter_to_run"], [{"letter": m.letter, "run": m.run} for m in moves if m.run])
    _write_grouped(con, "move_letter", [(_make_move_values(move, now), move.letter) for move in moves])
    _write_grouped(
        con,
        "end_replay",
        [
            ({"outcome": each.change.status.value, "now": now}, each.ends_replay)
            for each in transitions
            if each.ends_replay and each.change
        ],
    )
    replays = [({**as_dict(each.replay), "tenant": each.tenant, "now": now}) for each in transitions if each.replay]
    _write_grouped(con, "count_replay", [({}, row["letter"]) for row in replays])
    _write_grouped(con, "put_replay", [(row, [row.pop("letter"), row.pop("run_id")]) for row in replays])


def _write_grouped(con: sqlite3.Connection, statement: str, rows: Iterable[tuple[_Row, Any]]) -> None:
    """Run a statement once for all rows with equal values; `:these` is the list of their keys."""
    groups: dict[tuple[tuple[str, Any], ...], list[Any]] = {}
    for values, key in rows:
        groups.setdefault(tuple(values.items()), []).append(key)
    for items, keys in groups.items():
        con.execute(SQL[statement], {**dict(items), "these": json.dumps(keys)})


def _reopen_runs(con: sqlite3.Connection, now: int, transitions: Sequence[Transition]) -> None:
    pairs = [(each, each.reopens) for each in transitions if each.reopens]
    _write_grouped(
        con, "reopen_run", [(_make_reopened_values(r, each.change, now), [each.run, r.letter]) for each, r in pairs]
    )
    edited = [
        {"run": each.run, "input": r.input, "options": r.options}
        for each, r in pairs
        if r.input is not None or r.options is not None
    ]
    con.executemany(SQL["edit_input"], edited)
    for name, field in (
        ("supersede", "supersedes"),
        ("return_events", "supersedes"),
        ("drop_superseded_waits", "supersedes"),
        ("loosen", "loosens"),
    ):
        indexes = [(getattr(r, field), each.run) for each, r in pairs]
        _write_grouped(con, name, [({"indexes": json.dumps(found)}, run) for found, run in indexes if found])
    for each, r in pairs:
        if r.index is not None:
            drop_index(con, [each.run])
            put_index(con, each.run, each.tenant, r.index)


def _make_reopened_values(reopening: ReopenWrite, change: RunWrite | None, now: int) -> _Row:
    """Return the values of a reopened run, its change included, so that its row is written once."""
    values = {"sole_step": reopening.sole_step, "new_operation": reopening.new_operation, "now": now}
    if change is None:
        return {**values, **dict.fromkeys(_CHANGED), "release": False, "take": False}
    return {**values, **{name: getattr(change, name) for name in _CHANGED}}


def _make_move_values(move: LetterStatusWrite, now: int) -> _Row:
    closed = move.status in CLOSED_LETTER_STATUSES
    change = {"by": move.by, "resolution": move.resolution, "expires_in": move.expires_in}
    return {"status": move.status._value_, "closed": closed, **change, "now": now}


def publish_messages(
    con: sqlite3.Connection,
    now: int,
    transitions: Iterable[Transition],
    carriers: Sequence[SinkLease] = (),
    worker: int | None = None,
) -> list[tuple[int, Bundle] | None]:
    """Write the messages of kept transitions, with a bundle or a delivery for each sink of their topics.

    Return the messages that the carriers, of this worker, have claimed; none if some messages were written before.
    """
    (last,) = con.execute(OUTBOX["last_message"]).fetchone()
    messages = [(each.tenant, m) for each in transitions for m in each.messages]
    sinks = {
        topic: [name for (name,) in con.execute(OUTBOX["sinks_for"], {"topic": topic})]
        for topic in {m.topic for _, m in messages}
    }
    rows = _assign_bundles(messages, last + 1, sinks, [each.sink for each in carriers])
    new = _insert_messages(con, now, rows)
    until = {each.sink: now + each.lease for each in carriers}
    bundled: dict[int, tuple[str, Bundle, list[int]]] = {}
    for id, tenant, _, bundle in new:
        if bundle is not None:
            bundled.setdefault(bundle.id, (tenant, bundle, []))[2].append(id)
    bundles = [
        (bundle.id, sink, tenant, ids[0], ids[-1], len(ids), until[sink], worker)
        for tenant, bundle, ids in bundled.values()
        for sink in bundle.sinks
    ]
    write_many(con, OUTBOX["put_bundle"], bundles)
    others = [
        (id, sink, tenant, m.key, DeliveryStatus.PENDING._value_, now)
        for id, tenant, m, bundle in new
        for sink in sinks[m.topic]
        if bundle is None or sink not in bundle.sinks
    ]
    write_many(con, OUTBOX["put_delivery"], others)
    if len(new) < len(rows):
        con.execute(OUTBOX["clear_bundles"], {"messages": json.dumps([m.public_id for _, m in messages])})
        return []
    return [None if bundle is None else (id, bundle) for id, _, _, bundle in rows]


def _insert_messages(con: sqlite3.Connection, now: int, rows: list[_NumberedMessage]) -> list[_NumberedMessage]:
    """Write messages; return those that did not exist before."""
    before = con.total_changes
    write_many(
        con,
        OUTBOX["put_message"],
        [
            (id, m.public_id, tenant, m.topic, m.key, m.run_id, m.correlation_id, now, m.payload, m.trace,
             None if bundle is None else bundle.id)
            for id, tenant, m, bundle in rows
        ],
    )  # fmt: skip
    if con.total_changes - before == len(rows):
        return rows
    first, last = rows[0][0], rows[-1][0]
    there = {id for (id,) in con.execute(OUTBOX["messages_between"], {"first": first, "last": last})}
    return [row for row in rows if row[0] in there]


def _assign_bundles(
    messages: Sequence[tuple[str, MessageWrite]], first: int, sinks: Mapping[str, list[str]], carriers: list[str]
) -> list[_NumberedMessage]:
    """Return the messages with ids and bundles. A bundle has the id of its first message."""
    carried = {topic: tuple(sink for sink in names if sink in carriers) for topic, names in sinks.items()}
    bundles: dict[tuple[str, str], Bundle] = {}
    rows: list[_NumberedMessage] = []
    for id, (tenant, m) in enumerate(messages, first):
        bundle = None
        if m.key is None and carried[m.topic]:
            lane = (tenant, m.topic)
            if lane not in bundles:
                names = carried[m.topic]
                bundles[lane] = Bundle(id, names, len(names) == len(sinks[m.topic]))
            bundle = bundles[lane]
        rows.append((id, tenant, m, bundle))
    return rows
