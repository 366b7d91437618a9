"""Circuits: reading and turning them, giving out permits, letting parked runs go on."""

from __future__ import annotations

from redrive.core.circuit import Admission, Mark
from redrive.store import statements
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
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.desk import note
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import load, prepare
from redrive.store.postgres.text import as_given, as_stored
from redrive.store.records import Page
from redrive.store.selection import CircuitFilter

__all__ = ["circuit", "circuits", "circuits_due", "circuits_since", "permit", "purge", "turn_circuit"]

SQL = load("circuits.sql")
PARTS = statements.load(__package__, "circuits.sql")
MOMENT = load("chores.sql")["moment"]


async def circuit(line: Line, clock: DatabaseClock, tenant: str, key: str, counted: int) -> CircuitCase:
    """A circuit with all that deciding about it takes, seen by one statement and so as of one moment."""
    row = await line.row(
        SQL["circuit"], now=clock.given(), tenant=tenant, key=key, counted=counted, most=MOST_MARKS
    )
    now, *circuit, probing, bad, good, category = as_given(row)
    generation = circuit[4] or 0
    marks = [Mark(generation, False, at) for at in bad]
    marks += [] if good is None else [Mark(generation, True, good)]
    return case_of(circuit, marks, category, probing, clock.heard(now))


async def turn_circuit(line: Line, clock: DatabaseClock, turn: CircuitTurn) -> Turned:
    """Write a circuit if nobody was quicker, say so in the audit log, and let parked runs go on.

    Runs that are locked are passed over, so that nobody waits for a run while holding the circuit.
    """
    async with line.transaction():
        now = clock.heard(await line.value(MOMENT, now=clock.given()))
        values = {name: as_stored(value) for name, value in fields_of(turn, now).items()}
        name = "turn_circuit" if turn.version else "new_circuit"
        if not await line.rows(SQL[name], **values):
            return Turned(False)
        if turn.audit:
            await note(line, clock, turn.audit)
        if not turn.releases:
            return Turned(True)
        wanted = {"tenant": turn.tenant, "key": turn.key, "releases": turn.releases, "now": now}
        return Turned(True, len(await line.rows(SQL["release_parked"], **wanted)))


async def permit(line: Line, clock: DatabaseClock, ask: Ask) -> Permit:
    """Give out a permit if one is left. The circuit's row is locked, so nobody else is being answered."""
    async with line.transaction():
        await line.rows(SQL["lock_circuit"], tenant=ask.tenant, key=ask.key)
        case = await circuit(line, clock, ask.tenant, ask.key, 1)
        values = {**named(ask), "generation": case.row.generation, "now": case.now}
        mine = await line.row(SQL["my_permit"], **values) is not None
        lost = await line.row(SQL["asker"], **values) is None
        given = answer(case, ask, mine=mine, lost=lost)
        if given.admission is Admission.PROBE:
            await line.rows(SQL["put_permit"], **values)
        return given


async def circuits_due(line: Line, clock: DatabaseClock, since: int) -> list[CircuitPlace]:
    """Circuits that something is to be done about."""
    rows = await line.rows(SQL["circuits_due"], now=clock.given(), since=since)
    return [(row[0], row[1]) for row in rows]


async def circuits_since(line: Line, since: int) -> list[CircuitRow]:
    """Circuits that were changed lately."""
    return [circuit_row(as_given(row)) for row in await line.rows(SQL["circuits_since"], since=since)]


async def circuits(line: Line, where: CircuitFilter, limit: int, cursor: str | None) -> Page[CircuitRow]:
    """A page of circuits, those heard of last first."""
    request = Request.of(limit, cursor)
    window = request.window
    values = list_values(where, window)
    wanted = " AND ".join(PARTS[f"circuits.{name}"] for name in values) or "true"
    order = "DESC" if window.down else "ASC"
    statement = prepare(PARTS["circuits"].format(conditions=wanted, order=order))
    rows = await line.rows(statement, **values, counted=MOST_COUNTED, most=window.most)
    return request.page([circuit_row(as_given(row)) for row in rows])


async def purge(line: Line, now: int, limit: int) -> int:
    """Remove marks and permits that mean nothing any more; return how many."""
    old = {"before": now - MARKS_KEPT, "most": limit}
    return sum([len(await line.rows(SQL[name], **old)) for name in ("old_marks", "old_probes")])
