"""Updates of circuits: read the circuit, decide, write the new state; read again if it changed meanwhile.

Workers evaluate the results of their calls, a chore handles time and parked runs, users open and close circuits.
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
from redrive.core.keys_and_ids import encode_key
from redrive.core.transitions import AuditWrite
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.store.circuits import CircuitCase, CircuitKey, CircuitRow, CircuitUpdate
from redrive.store.port import DeskStore

WAVE_INTERVAL = MICROS
"""Microseconds between two releases of parked runs."""

CircuitDecision = Callable[[CircuitCase], CircuitUpdate | None]
"""Returns the update of a circuit, or None if it stays as it is."""

_EVENTS = {
    CircuitStatus.OPEN: AuditEvent.CIRCUIT_OPENED,
    CircuitStatus.HALF_OPEN: AuditEvent.CIRCUIT_HALF_OPENED,
    CircuitStatus.CLOSED: AuditEvent.CIRCUIT_CLOSED,
}


async def update_circuit(store: DeskStore, key: CircuitKey, decide: CircuitDecision) -> tuple[CircuitRow, int]:
    """Update a circuit as `decide` says. Return its new row, and the number of parked runs that were released."""
    while True:
        case = await store.circuit(*key)
        update = decide(case)
        if update is None:
            return case.row, 0
        # The store refuses an update of an older version: another process was first, so read again.
        result = await store.update_circuit(update)
        if result.kept:
            row = replace(
                case.row,
                status=update.state.status,
                generation=update.state.generation,
                version=update.version + 1,
                until=update.state.until,
                wave=update.state.wave,
                next_wave_at=update.next_wave_at,
                settings=update.settings,
                override=update.override,
                why=update.why,
                changed_by=update.by,
                changed_at=case.now if update.changed else case.row.changed_at,
            )
            return row, result.released


def apply_samples(case: CircuitCase, settings: str | None = None) -> CircuitUpdate | None:
    """Return the update that the recorded calls ask for. `settings` are those of the code that made the calls."""
    row = case.row
    known = settings or row.settings
    rules = build_rules(resolve_circuit(known, row.override))
    state = evaluate(row.state, rules, case.samples, case.now)
    if state == row.state and known == row.settings:
        return None
    return make_circuit_update(case, state, settings=known, why=_change_reason(case, state, rules))


def apply_time(case: CircuitCase) -> CircuitUpdate | None:
    """Return the update that recorded calls and time ask for, and release parked runs that may continue."""
    row = case.row
    rules = build_rules(row.in_force)
    before = expire(evaluate(row.state, rules, case.samples, case.now), case.now)
    changed = before.generation != row.generation
    if not changed and (not row.parked or case.now < row.next_wave_at):
        return None
    releases, state = release_size(before, rules, 0 if changed else case.probing) if row.parked else (0, before)
    if not changed and not releases and state == row.state:
        return None
    update = make_circuit_update(case, state, why=_change_reason(case, state, rules))
    return replace(update, releases=releases, next_wave_at=case.now + WAVE_INTERVAL)


def make_circuit_update(
    case: CircuitCase,
    state: CircuitState,
    *,
    settings: str | None = None,
    why: Reason | str | None = None,
    by: str = ENGINE_ACTOR,
) -> CircuitUpdate:
    """Return the update to a new state, with an audit entry if the circuit's status changes.

    `why` is a reason of the engine, or a user's text.
    """
    row, text = case.row, why.to_text() if isinstance(why, Reason) else why
    changed = state.generation != row.generation
    audit = AuditWrite(
        event=_EVENTS[state.status].value,
        tenant=row.tenant,
        by=by,
        subject=row.key,
        before=json.dumps({"status": row.status.value, "generation": row.generation}),
        after=json.dumps({"status": state.status.value, "generation": state.generation}),
        reason=text,
        token=encode_key("circuit", row.tenant, row.key, str(state.generation)),
    )
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
        audit=(audit,) if changed else (),
    )


def _change_reason(case: CircuitCase, state: CircuitState, rules: CircuitRules) -> Reason:
    """Return why the engine changes the circuit."""
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
