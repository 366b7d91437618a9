"""Circuits: their records, and the calls that read them, change them and ask them for permits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

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
from redrive.record_fields import as_dict, replace
from redrive.store.filters import CircuitFilter
from redrive.store.result_page import Page, PageRequest, read_page
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("circuits.sql")
WORKERS = Statements("workers.sql")

MARK_RETENTION = int(MAX_CIRCUIT_TIME * MICROS)
"""Microseconds for which samples are kept: the length of the longest window."""

MOST_MARKS = MAX_FAILURES
"""Samples that are read of a circuit: the largest number that its settings may count."""

SUCCESS_STEP = 5 * MICROS
"""Microseconds in which successes are counted together."""

MOST_COUNTED = 10_000
"""Parked runs are counted up to this many."""

CircuitKey = tuple[str, str]
"""The tenant and the key of a circuit."""


class CircuitRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored circuit; one with version 0 has no row yet.

    `settings` come from the code, `override` from a user. `why` and `changed_by` describe the latest change of
    status. `parked` counts the runs that wait for the circuit.
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
    def circuit_key(self) -> CircuitKey:
        """The tenant and the key, which name the circuit."""
        return self.tenant, self.key

    @property
    def is_open(self) -> bool:
        """True if no run may call."""
        return self.status is CircuitStatus.OPEN

    @property
    def state(self) -> CircuitState:
        """The state as `core.circuit` takes it."""
        return CircuitState(status=self.status, generation=self.generation, until=self.until, wave=self.wave)

    @property
    def in_force(self) -> Circuit:
        """The settings in force: the override, else those of the code."""
        return resolve_circuit(self.settings, self.override)


class CircuitStats(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Calls behind a circuit: failures and successes in its window, and when each happened last.

    Failures are those that count. They are known for the length of the longest window, and the last success for good.
    """

    failures: int = 0
    successes: int = 0
    failed_at: int | None = None
    succeeded_at: int | None = None


class SuccessCount(msgspec.Struct, frozen=True, gc=False):
    """Successful calls behind a circuit that a worker counted. `settings`: the circuit's settings in the code."""

    tenant: str
    key: str
    settings: str
    calls: int
    last_at: int


class CircuitCase(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A circuit with everything that a decision about it depends on, read at one moment.

    `samples` are those of its generation, the newest ones if there are many. `category` is that of the newest
    failure. `probing` counts the permits in use.
    """

    row: CircuitRow
    samples: tuple[CircuitSample, ...]
    category: str | None
    probing: int
    now: int


class CircuitUpdate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The new state of a circuit, written only if the circuit still has this version.

    `releases` parked runs become due; more may be released at `next_wave_at`. `why` and `by` are set if the status
    changes.
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
    """The result of an update. It is not `kept` if the circuit had another version by then."""

    kept: bool
    released: int = 0


class PermitRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run's request to call a dependency."""

    tenant: str
    key: str
    settings: str
    run: int
    fence: int
    index: int


class Permit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a permit request, with the circuit. A `stale` circuit must be evaluated first."""

    admission: Admission
    row: CircuitRow
    stale: bool = False


class CircuitDesk(Protocol):
    """Calls about circuits for users. A tenant view answers them too."""

    async def circuit(self, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        """Return a circuit with everything that a decision about it depends on; an unknown circuit is closed.

        The runs that wait for it are counted up to `counted`.
        """

    async def circuits(self, where: CircuitFilter, *, limit: int, cursor: str | None) -> Page[CircuitRow]:
        """Return a page of circuits, newest first."""

    async def circuit_stats(self, rows: Sequence[CircuitRow]) -> list[CircuitStats]:
        """Return the calls behind each of these circuits, within the window of its settings."""

    async def update_circuit(self, update: CircuitUpdate) -> CircuitUpdateResult:
        """Write a circuit if it still has the version it was read with, and release parked runs.

        The runs that were parked first become due first. Runs that another transaction has locked stay parked.
        """


class CircuitStore(CircuitDesk, Protocol):
    """All calls about circuits."""

    async def permit(self, ask: PermitRequest) -> Permit:
        """Ask for a permit to call a dependency whose circuit may not be closed.

        A permit is valid while the run is held under the fence that got it; asking again under that fence returns
        the same permit. Requests are answered one after the other.
        """

    async def count_successes(self, worker: int, number: int, counts: Sequence[SuccessCount]) -> None:
        """Add successful calls that a worker counted. A circuit without a record gets one.

        Reports of a worker are numbered 1, 2, 3; one that was counted before changes nothing.
        """

    async def circuits_due(self, since: int) -> list[CircuitKey]:
        """Return the circuits that need work.

        Those are circuits whose open time is over, circuits with samples of `since` or later, and circuits that have
        parked runs although calls are allowed.
        """

    async def circuits_changed_since(self, since: int) -> list[CircuitRow]:
        """Return the circuits whose status changed at `since` or later, without counting parked runs."""


def _circuit_row(row: Sequence[Any]) -> CircuitRow:
    return build_record(CircuitRow, row, status=CircuitStatus)


def _decide_permit(case: CircuitCase, ask: PermitRequest, *, permitted: bool, held: bool) -> Permit:
    """Decide if one more run may call.

    `permitted`: the run has a permit already. `held`: the run is still held under the fence it asks with.
    """
    row = case.row
    rules = build_rules(resolve_circuit(row.settings or ask.settings, row.override))
    # While its samples are about to change its status, a circuit admits no run: a probe that just ended would
    # otherwise make room for one run too many.
    stale = evaluate(row.state, rules, case.samples, case.now) != row.state
    if stale or not held:
        return Permit(admission=Admission.STAY_OUT, row=row, stale=stale)
    if permitted and row.status is CircuitStatus.HALF_OPEN:
        return Permit(admission=Admission.PROBE, row=row)
    return Permit(admission=admit(row.state, rules, case.probing), row=row)


class CircuitCalls:
    """Implements `CircuitStore`."""

    database: Database

    @read_call()
    async def circuit(self, session: Session, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        return await _read_case(session, tenant, key, counted)

    @write_call()
    async def update_circuit(self, session: Session, update: CircuitUpdate) -> CircuitUpdateResult:
        async with session.transaction():
            now = await session.now()
            values = {**as_dict(replace(update, audit=())), **as_dict(update.state), "now": now}
            values |= {"status": update.state.status.value, "changed": int(update.changed)}
            changed = await session.rows(SQL["update_circuit" if update.version else "insert_circuit"], **values)
            if not changed:
                return CircuitUpdateResult(False)
            if update.audit:
                await session.note(update.audit)
            if not update.releases:
                return CircuitUpdateResult(True)
            released = await session.rows(
                SQL["release_parked"], tenant=update.tenant, key=update.key, releases=update.releases, now=now
            )
            return CircuitUpdateResult(True, len(released))

    @write_call()
    async def permit(self, session: Session, ask: PermitRequest) -> Permit:
        async with session.transaction():
            # Workers that ask at once wait for each other here, so that each sees the permits given before.
            await session.rows(SQL["lock_circuit"], tenant=ask.tenant, key=ask.key)
            case = await _read_case(session, ask.tenant, ask.key, 1)
            parameters = {**as_dict(ask), "generation": case.row.generation, "now": case.now}
            permitted, held = await session.row(SQL["permit_state"], **parameters)
            permit = _decide_permit(case, ask, permitted=permitted, held=held)
            if permit.admission is Admission.PROBE:
                await session.rows(SQL["put_permit"], **parameters)
            return permit

    @read_call()
    async def circuit_stats(self, session: Session, rows: Sequence[CircuitRow]) -> list[CircuitStats]:
        if not rows:
            return []
        now = await session.now()
        found = await session.rows(
            SQL["circuit_stats"],
            tenants=[row.tenant for row in rows],
            keys=[row.key for row in rows],
            since=[now - build_rules(row.in_force).window for row in rows],
        )
        stats = {(each[0], each[1]): each[2:] for each in found}
        names = ("failures", "successes", "failed_at", "succeeded_at")
        return [CircuitStats(**dict(zip(names, stats[row.circuit_key], strict=True))) for row in rows]

    # SQLite need not wait for the disk here: users see these numbers, and nothing depends on them.
    @write_call(durable=False)
    async def count_successes(self, session: Session, worker: int, number: int, counts: Sequence[SuccessCount]) -> None:
        # Sorted, because workers that lock the same rows must do so in the same order.
        ordered = sorted(counts, key=lambda each: (each.tenant, each.key))
        async with session.transaction():
            if not await session.rows(WORKERS["count_batch"], worker=worker, number=number):
                return
            now = await session.now()
            at = now - now % SUCCESS_STEP
            for each in ordered:
                names = {"tenant": each.tenant, "key": each.key}
                await session.rows(SQL["insert_quiet_circuit"], **names, settings=each.settings, now=now)
                await session.rows(SQL["add_successes"], **names, at=at, calls=each.calls, last_at=each.last_at)

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
        values = {"tenant": where.tenant, "status": None if where.status is None else str(where.status)}
        request = PageRequest.of(limit, cursor)
        return await read_page(session, SQL, "circuits", request, values, _circuit_row, counted=MOST_COUNTED)


async def _read_case(session: Session, tenant: str, key: str, counted: int) -> CircuitCase:
    """Read a circuit and its samples in one statement, so that both are of the same moment.

    A circuit without a row is closed.
    """
    row = await session.row(SQL["circuit"], tenant=tenant, key=key, counted=counted, most=MOST_MARKS)
    now, *found, probing, bad, good, category = row
    if found[0] is None:
        tenant, key, parked = found[1], found[2], found[-1]
        found = [0, tenant, key, CircuitStatus.CLOSED, 0, 0, None, 0, 0, None, None, None, None, 0, parked]
    circuit = _circuit_row(found)
    samples = [CircuitSample(circuit.generation, False, at) for at in json.loads(bad or "[]")]
    if good is not None:
        samples.append(CircuitSample(circuit.generation, True, good))
    return CircuitCase(row=circuit, samples=tuple(samples), category=category, probing=probing, now=now)
