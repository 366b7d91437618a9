"""Turning circuits: read one, let `core` decide, write it if nobody was quicker, otherwise look again.

A worker weighs what its calls came to, a chore does the rest, and people open and close: all of them here.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from redrive.clock import MICROS
from redrive.core.audit import ENGINE_ACTOR, AuditEvent
from redrive.core.circuit import (
    CircuitRules,
    CircuitState,
    CircuitStatus,
    build_rules,
    evaluate,
    expire,
    release_size,
    resolve_circuit,
)
from redrive.core.idempotency import encode_key
from redrive.core.transitions import AuditWrite
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.store.circuits import CircuitCase, CircuitKey, CircuitRow, CircuitUpdate
from redrive.store.port import DeskStore

WAVE_INTERVAL = MICROS
"""Microseconds between two waves of parked runs."""

CircuitDecision = Callable[[CircuitCase], CircuitUpdate | None]
"""What is to become of a circuit; None if it stays as it is."""

_EVENTS = {
    CircuitStatus.OPEN: AuditEvent.CIRCUIT_OPENED,
    CircuitStatus.HALF_OPEN: AuditEvent.CIRCUIT_HALF_OPENED,
    CircuitStatus.CLOSED: AuditEvent.CIRCUIT_CLOSED,
}


async def update_circuit(store: DeskStore, place: CircuitKey, decide: CircuitDecision) -> tuple[CircuitRow, int]:
    """Turn a circuit as decided; returns how it stands then, and how many parked runs went on."""
    while True:
        case = await store.circuit(*place)
        wanted = decide(case)
        if wanted is None:
            return case.row, 0
        turned = await store.update_circuit(wanted)
        if turned.kept:
            return _apply_update(case, wanted), turned.released


def after_marks(case: CircuitCase, settings: str | None = None) -> CircuitUpdate | None:
    """What the marks make of a circuit. `settings` are those of the code that marked something down."""
    row = case.row
    known = settings or row.settings
    rules = build_rules(resolve_circuit(known, row.override))
    state = evaluate(row.state, rules, case.marks, case.now)
    if state == row.state and known == row.settings:
        return None
    return make_circuit_update(case, state, settings=known, why=_change_reason(case, state, rules))


def after_time(case: CircuitCase) -> CircuitUpdate | None:
    """What marks and time make of a circuit, and how many of the runs that wait for it may go on."""
    row = case.row
    rules = build_rules(row.in_force)
    before = expire(evaluate(row.state, rules, case.marks, case.now), case.now)
    changed = before.generation != row.generation
    if not changed and (not row.parked or case.now < row.next_wave_at):
        return None
    releases, state = release_size(before, rules, 0 if changed else case.probing) if row.parked else (0, before)
    if not changed and not releases and state == row.state:
        return None
    wanted = make_circuit_update(case, state, why=_change_reason(case, state, rules))
    return replace(wanted, releases=releases, next_wave_at=case.now + WAVE_INTERVAL)


def make_circuit_update(
    case: CircuitCase,
    state: CircuitState,
    *,
    settings: str | None = None,
    why: Reason | str | None = None,
    by: str = ENGINE_ACTOR,
) -> CircuitUpdate:
    """Return a circuit's new state; if its status changes, the audit log says so.

    `why` is a reason of the engine, or the text of a person.
    """
    row, text = case.row, why.to_text() if isinstance(why, Reason) else why
    changed = state.generation != row.generation
    return CircuitUpdate(
        tenant=row.tenant,
        key=row.key,
        version=row.version,
        state=state,
        next_wave_at=case.now if changed else row.next_wave_at,
        settings=settings or row.settings,
        override=row.override,
        why=text if changed else row.why,
        by=by if changed else row.changed_by,
        changed=changed,
        audit=(_make_audit_entry(row, state, text, by),) if changed else (),
    )


def _make_audit_entry(row: CircuitRow, state: CircuitState, why: str | None, by: str) -> AuditWrite:
    return AuditWrite(
        event=_EVENTS[state.status].value,
        tenant=row.tenant,
        by=by,
        subject=row.key,
        before=json.dumps({"status": row.status.value, "generation": row.generation}),
        after=json.dumps({"status": state.status.value, "generation": state.generation}),
        reason=why,
        token=encode_key("circuit", row.tenant, row.key, str(state.generation)),
    )


def _change_reason(case: CircuitCase, state: CircuitState, rules: CircuitRules) -> Reason:
    """Return why the engine turned it."""
    match case.row.status, state.status:
        case CircuitStatus.HALF_OPEN, CircuitStatus.OPEN:
            return Reason(ReasonCode.CIRCUIT_PROBE_FAILED, category=case.category)
        case _, CircuitStatus.OPEN:
            return Reason(
                ReasonCode.CIRCUIT_FAILURES, n=rules.failures, window=rules.window / MICROS, category=case.category
            )
        case _, CircuitStatus.HALF_OPEN:
            return Reason(ReasonCode.CIRCUIT_OPEN_TIME_OVER, open_for=rules.open_for / MICROS)
        case _:
            return Reason(ReasonCode.CIRCUIT_PROBE_SUCCEEDED)


def _apply_update(case: CircuitCase, wanted: CircuitUpdate) -> CircuitRow:
    return replace(
        case.row,
        status=wanted.state.status,
        generation=wanted.state.generation,
        version=wanted.version + 1,
        until=wanted.state.until,
        wave=wanted.state.wave,
        next_wave_at=wanted.next_wave_at,
        settings=wanted.settings,
        override=wanted.override,
        why=wanted.why,
        changed_by=wanted.by,
        changed_at=case.now if wanted.changed else case.row.changed_at,
    )
