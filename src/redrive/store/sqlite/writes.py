"""Applying transitions: each is written whole if its fence still holds, and not at all otherwise.

Rows of all transitions are gathered by table and written by few statements each. That is safe
because a row's meaning never depends on a row of another table, and rows of the same table keep the
order of their transitions.

A batch is made into rows where it comes from, on the loop, as if all its fences held and its turn came at
once, which is nearly always so. All that is left to the writer's thread then is to hand the rows to SQLite,
and the loop can go on meanwhile. See ADR 0033.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from redrive.clock import MICROS
from redrive.core.delivery import Carrier
from redrive.core.transition import Answer, AuditWrite, Transition
from redrive.store.sqlite import messages
from redrive.store.sqlite.many import write_many
from redrive.store.sqlite.rows import Rows, audit_row
from redrive.store.sqlite.telling import says_more, tell
from redrive.store.statements import load

__all__ = ["Batch", "note"]

SQL = load(__package__, "writes.sql")

_FRESH = MICROS // 10  # how long to wait for a turn with a plan: what it says of time counts from its making


def note(con: sqlite3.Connection, now: int, lines: Iterable[AuditWrite]) -> None:
    """Add lines to the audit log."""
    write_many(con, SQL["put_audit"], [audit_row(line, now) for line in lines])


class Batch:
    """Transitions that are to be applied in one transaction."""

    def __init__(
        self,
        clock: Callable[[], int],
        transitions: Sequence[Transition],
        worker: int | None,
        carriers: Sequence[Carrier] = (),
    ) -> None:
        self._clock = clock
        self._transitions = transitions
        self._worker = worker
        self._carriers = carriers
        self._presumed = {each.run: each.fence for each in transitions}
        self._conditional = [each for each in transitions if each.only_if is not None]
        self._plan = _Plan(clock(), worker, transitions, self._presumed)

    def apply(self, con: sqlite3.Connection) -> list[Answer]:
        """Write what may be written, and answer for each transition in turn."""
        fresh = self._clock() - self._plan.now < _FRESH
        plan = self._plan if fresh and self._all_may(con) else self._plan_anew(con)
        for statement, rows in plan.writes:
            con.executemany(statement, rows)
        if plan.more:
            self._say(con, plan)
            tell(con, plan.now, plan.more)
        return plan.answers

    def _all_may(self, con: sqlite3.Connection) -> bool:
        """True if every run carries the fence that is presumed, and every attempt in question goes on."""
        presumed = {"fences": json.dumps(self._presumed), "worker": self._worker}
        (holding,) = con.execute(SQL["fences_hold"], presumed).fetchone()
        return holding == len(self._presumed) and all(_goes_on(con, each) for each in self._conditional)

    def _plan_anew(self, con: sqlite3.Connection) -> _Plan:
        """The plan for those that may be written, by the fences that the runs carry now."""
        runs = {"runs": json.dumps(list(self._presumed)), "worker": self._worker}
        (fences,) = con.execute(SQL["fences"], runs).fetchone()
        those = [each if _goes_on(con, each) else None for each in self._transitions]
        return _Plan(self._clock(), self._worker, those, dict(json.loads(fences)))

    def _say(self, con: sqlite3.Connection, plan: _Plan) -> None:
        """Write the messages of what was kept; the answers tell which of them the carriers have."""
        said = [n for n, each in enumerate(self._transitions) if each.messages and plan.answers[n].kept]
        if said:
            kept = [self._transitions[n] for n in said]
            bundled = iter(messages.publish(con, plan.now, kept, self._carriers))
            for n in said:
                taken = tuple(islice(bundled, len(self._transitions[n].messages)))
                plan.answers[n] = Answer(True, plan.now, taken)


class _Plan:
    """What applying transitions to runs with these fences comes to, now: statements, and an answer for each.

    `more`: those that say something beyond runs and journals.
    """

    def __init__(
        self,
        now: int,
        worker: int | None,
        transitions: Sequence[Transition | None],
        fences: Mapping[int, int],
    ) -> None:
        self.now = now
        rows, carried = Rows(now, worker), dict(fences)
        kept, lost = Answer(True, now), Answer(False, now)
        self.answers: list[Answer] = []
        self.more: list[Transition] = []
        for transition in transitions:
            if transition is None or carried.get(transition.run) != transition.fence:
                self.answers.append(lost)
                continue
            self.answers.append(kept)
            rows.add(transition)
            change = transition.change
            if change is not None and change.take:
                carried[transition.run] += 1
            if transition.messages or says_more(transition):
                self.more.append(transition)
        self.writes = rows.writes()


def _goes_on(con: sqlite3.Connection, transition: Transition) -> bool:
    """True if the attempt that a decision is about, where it names one, has not ended meanwhile."""
    if transition.only_if is None:
        return True
    return con.execute(SQL["under_way"], (transition.run, *transition.only_if)).fetchone() is not None
