"""Circuits in the store: their records, and the calls that read, change and ask them for permits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from redrive.clock import MICROS
from redrive.core.circuit import (
    Admission,
    CircuitSample,
    CircuitState,
    CircuitStatus,
    admit,
    build_rules,
    evaluate,
    resolve_circuit,
)
from redrive.core.transitions import AuditWrite
from redrive.policy import MAX_CIRCUIT_TIME, MAX_FAILURES, Circuit
from redrive.records import as_dict
from redrive.store.filters import CircuitFilter
from redrive.store.list_query import PageRequest
from redrive.store.records import Page
from redrive.store.session import Database, Session, Statements, read_call, write_call

SQL = Statements("circuits.sql")

MARK_RETENTION = int(MAX_CIRCUIT_TIME * MICROS)
"""How long marks are kept: as long as the longest window, in microseconds."""

MOST_MARKS = MAX_FAILURES
"""Marks that are read of a circuit: as many as its settings may ask for."""

MOST_COUNTED = 10_000
"""Parked runs are counted up to this many."""

CircuitKey = tuple[str, str]
"""Which circuit: its tenant and its key."""


class CircuitRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One circuit as recorded. Version 0: it has no row yet.

    `settings` are the code's, `override` is what a person set instead; `why` and `changed_by` tell about
    the latest change of status. `parked` counts the runs that wait for it.
    """

    id: int
    tenant: str
    key: str
    status: CircuitStatus
    generation: int
    version: int
    until: int | None
    wave: int
    next_wave_at: int
    settings: str | None
    override: str | None
    why: str | None
    changed_by: str | None
    changed_at: int
    parked: int = 0

    @property
    def place(self) -> CircuitKey:
        """The tenant and the key."""
        return self.tenant, self.key

    @property
    def is_open(self) -> bool:
        """Whether no run may call."""
        return self.status is CircuitStatus.OPEN

    @property
    def state(self) -> CircuitState:
        """The state, for `core.circuit`."""
        return CircuitState(status=self.status, generation=self.generation, until=self.until, wave=self.wave)

    @property
    def in_force(self) -> Circuit:
        """The settings that hold."""
        return resolve_circuit(self.settings, self.override)


class CircuitCase(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A circuit with all that deciding about it takes, as of one moment.

    `marks` are those of its generation, the newest ones if there are many; `category` is the newest
    failure's; `probing` counts the permits that are out.
    """

    row: CircuitRow
    marks: tuple[CircuitSample, ...]
    category: str | None
    probing: int
    now: int


class CircuitUpdate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The new state of a circuit that still has this version. `releases`: so many parked runs become due.

    `next_wave_at` is when more of them may. `why` and `by` are given where the status changes.
    """

    tenant: str
    key: str
    version: int
    state: CircuitState
    next_wave_at: int
    settings: str | None
    override: str | None
    why: str | None
    by: str | None
    changed: bool
    releases: int = 0
    audit: tuple[AuditWrite, ...] = ()


class CircuitUpdateResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a turn: `kept`, or refused because the circuit has another version by now."""

    kept: bool
    released: int = 0


class PermitRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run that asks whether it may call a dependency."""

    tenant: str
    key: str
    settings: str
    run: int
    fence: int
    index: int


class Permit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer: what may be done, and the circuit as it is. `stale`: it is to be weighed first."""

    admission: Admission
    row: CircuitRow
    stale: bool = False


_CIRCUIT_COLUMNS = (
    "id", "tenant", "key", "status", "generation", "version", "until", "wave", "next_wave_at", "settings",
    "override", "why", "changed_by", "changed_at", "parked",
)  # fmt: skip


def _circuit_row(row: Sequence[Any]) -> CircuitRow:
    """Make a record of a row of `circuits`, with or without the number of runs that wait for it."""
    values: dict[str, Any] = dict(zip(_CIRCUIT_COLUMNS, row, strict=False))
    return CircuitRow(**{**values, "status": CircuitStatus(values["status"])})


def _circuit_case(row: Sequence[Any]) -> CircuitCase:
    """Make a record of the row of the statement `circuit`. A circuit without a row of its own is closed."""
    now, *found, probing, bad, good, category = row
    if found[0] is None:
        tenant, key, parked = found[1], found[2], found[-1]
        found = [0, tenant, key, CircuitStatus.CLOSED, 0, 0, None, 0, 0, None, None, None, None, 0, parked]
    circuit = _circuit_row(found)
    marks = [CircuitSample(circuit.generation, False, at) for at in json.loads(bad or "[]")]
    if good is not None:
        marks.append(CircuitSample(circuit.generation, True, good))
    return CircuitCase(row=circuit, marks=tuple(marks), category=category, probing=probing, now=now)


def _decide_permit(case: CircuitCase, ask: PermitRequest, *, permitted: bool, held: bool) -> Permit:
    """Decide whether one more run may call. `permitted`: the asking run has a permit already.

    `held`: the run is still held under the fence it asks with. A circuit whose marks are about to change
    its status admits no run until they were weighed; otherwise a probe that just ended would make room
    for one too many.
    """
    row = case.row
    rules = build_rules(resolve_circuit(row.settings or ask.settings, row.override))
    stale = evaluate(row.state, rules, case.marks, case.now) != row.state
    if stale or not held:
        return Permit(admission=Admission.STAY_OUT, row=row, stale=stale)
    if permitted and row.status is CircuitStatus.HALF_OPEN:
        return Permit(admission=Admission.PROBE, row=row)
    return Permit(admission=admit(row.state, rules, case.probing), row=row)


class CircuitCalls:
    """See `redrive.store.port` for what each call promises."""

    database: Database

    @read_call()
    async def circuit(self, session: Session, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        return await _read_case(session, tenant, key, counted)

    @write_call()
    async def update_circuit(self, session: Session, turn: CircuitUpdate) -> CircuitUpdateResult:
        async with session.transaction():
            now = await session.now()
            changed = await session.rows(
                SQL["update_circuit" if turn.version else "insert_circuit"],
                tenant=turn.tenant,
                key=turn.key,
                version=turn.version,
                status=turn.state.status.value,
                generation=turn.state.generation,
                until=turn.state.until,
                wave=turn.state.wave,
                next_wave_at=turn.next_wave_at,
                settings=turn.settings,
                override=turn.override,
                why=turn.why,
                by=turn.by,
                changed=int(turn.changed),
                now=now,
            )
            if not changed:
                return CircuitUpdateResult(False)
            if turn.audit:
                await session.note(turn.audit)
            if not turn.releases:
                return CircuitUpdateResult(True)
            released = await session.rows(
                SQL["release_parked"], tenant=turn.tenant, key=turn.key, releases=turn.releases, now=now
            )
            return CircuitUpdateResult(True, len(released))

    @write_call()
    async def permit(self, session: Session, ask: PermitRequest) -> Permit:
        async with session.transaction():
            # Of several workers that ask at once, each must see the permits of those before it.
            await session.rows(SQL["lock_circuit"], tenant=ask.tenant, key=ask.key)
            case = await _read_case(session, ask.tenant, ask.key, 1)
            asked = {**as_dict(ask), "generation": case.row.generation, "now": case.now}
            permitted, held = await session.row(SQL["permit_state"], **asked)
            permit = _decide_permit(case, ask, permitted=permitted, held=held)
            if permit.admission is Admission.PROBE:
                await session.rows(SQL["put_permit"], **asked)
            return permit

    @read_call()
    async def circuits_due(self, session: Session, since: int) -> list[CircuitKey]:
        rows = await session.rows(SQL["circuits_due"], since=since)
        return [(tenant, key) for tenant, key in rows]

    @read_call()
    async def circuits_changed_since(self, session: Session, since: int) -> list[CircuitRow]:
        return [_circuit_row(row) for row in await session.rows(SQL["circuits_changed_since"], since=since)]

    @read_call()
    async def circuits(
        self, session: Session, where: CircuitFilter, *, limit: int, cursor: str | None
    ) -> Page[CircuitRow]:
        request = PageRequest.of(limit, cursor)
        window = request.window
        status = None if where.status is None else str(where.status)
        asked = {"tenant": where.tenant, "status": status, "below": window.below, "above": window.above}
        values = {name: value for name, value in asked.items() if value is not None}
        parts = SQL.texts(session.dialect)
        statement = parts["circuits"].format(
            conditions=" AND ".join(parts[f"circuits.{name}"] for name in values) or "true",
            order="DESC" if window.down else "ASC",
        )
        rows = await session.rows(statement, **values, counted=MOST_COUNTED, most=window.most)
        return request.page([_circuit_row(row) for row in rows])


async def _read_case(session: Session, tenant: str, key: str, counted: int) -> CircuitCase:
    """Read a circuit and its marks in one statement, so that both are of the same moment."""
    row = await session.row(SQL["circuit"], tenant=tenant, key=key, counted=counted, most=MOST_MARKS)
    return _circuit_case(row)
