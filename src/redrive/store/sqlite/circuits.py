"""Circuits: reading and turning them, giving out permits, letting parked runs go on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from redrive.core.circuit import Admission, Mark
from redrive.store.circuits import (
    MARKS_KEPT,
    MOST_COUNTED,
    MOST_MARKS,
    Ask,
    CircuitCase,
    CircuitPlace,
    CircuitRow,
    CircuitTurn,
    Permit,
    Turned,
    answer,
    case_of,
    circuit_row,
    fields_of,
    list_values,
)
from redrive.store.named import named
from redrive.store.pages import Request
from redrive.store.records import Page
from redrive.store.selection import CircuitFilter
from redrive.store.sqlite.writes import note
from redrive.store.statements import load

__all__ = ["circuit", "circuits", "circuits_due", "circuits_since", "permit", "purge", "turn_circuit"]

SQL = load(__package__, "circuits.sql")


def circuit(con: sqlite3.Connection, now: int, tenant: str, key: str, counted: int) -> CircuitCase:
    """A circuit with all that deciding about it takes."""
    wanted = {"tenant": tenant, "key": key, "counted": counted, "most": MOST_MARKS}
    row: Sequence[Any] = con.execute(SQL["circuit"], wanted).fetchone()
    *circuit, probing, bad, good, category = row
    generation = circuit[4] or 0
    marks = [Mark(generation, False, at) for at in json.loads(bad)]
    marks += [] if good is None else [Mark(generation, True, good)]
    return case_of(circuit, marks, category, probing, now)


def turn_circuit(con: sqlite3.Connection, now: int, turn: CircuitTurn) -> Turned:
    """Write a circuit if nobody was quicker, say so in the audit log, and let parked runs go on."""
    values = fields_of(turn, now)
    name = "turn_circuit" if turn.version else "new_circuit"
    if not con.execute(SQL[name], values).fetchall():
        return Turned(False)
    note(con, now, turn.audit)
    if not turn.releases:
        return Turned(True)
    wanted = {"tenant": turn.tenant, "key": turn.key, "releases": turn.releases, "now": now}
    return Turned(True, len(con.execute(SQL["release_parked"], wanted).fetchall()))


def permit(con: sqlite3.Connection, now: int, ask: Ask) -> Permit:
    """Give out a permit if one is left. Whoever writes is alone, so nobody else is asking."""
    case = circuit(con, now, ask.tenant, ask.key, 1)
    values = {**named(ask), "generation": case.row.generation, "now": now}
    mine = con.execute(SQL["my_permit"], values).fetchone() is not None
    lost = con.execute(SQL["asker"], values).fetchone() is None
    given = answer(case, ask, mine=mine, lost=lost)
    if given.admission is Admission.PROBE:
        con.execute(SQL["put_permit"], values)
    return given


def circuits_due(con: sqlite3.Connection, now: int, since: int) -> list[CircuitPlace]:
    """Circuits that something is to be done about."""
    return [(row[0], row[1]) for row in con.execute(SQL["circuits_due"], {"now": now, "since": since})]


def circuits_since(con: sqlite3.Connection, since: int) -> list[CircuitRow]:
    """Circuits that were changed lately."""
    return [circuit_row(row) for row in con.execute(SQL["circuits_since"], {"since": since})]


def circuits(
    con: sqlite3.Connection, where: CircuitFilter, limit: int, cursor: str | None
) -> Page[CircuitRow]:
    """A page of circuits, those heard of last first."""
    request = Request.of(limit, cursor)
    window = request.window
    values = list_values(where, window)
    wanted = " AND ".join(SQL[f"circuits.{name}"] for name in values) or "true"
    order = "DESC" if window.down else "ASC"
    statement = SQL["circuits"].format(conditions=wanted, order=order)
    rows = con.execute(statement, {**values, "counted": MOST_COUNTED, "most": window.most})
    return request.page([circuit_row(row) for row in rows])


def purge(con: sqlite3.Connection, now: int, limit: int) -> int:
    """Remove marks and permits that mean nothing any more; return how many."""
    old = {"before": now - MARKS_KEPT, "most": limit}
    return sum(len(con.execute(SQL[name], old).fetchall()) for name in ("old_marks", "old_probes"))
