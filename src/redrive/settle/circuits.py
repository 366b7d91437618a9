"""Turning circuits: read one, let `core` decide, write it if nobody was quicker, otherwise look again.

A worker weighs what its calls came to, a chore does the rest, and people open and close: all of them here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from redrive.clock import MICROS
from redrive.core.audit import ENGINE, Event
from redrive.core.circuit import (
    CircuitRules,
    CircuitState,
    CircuitStatus,
    in_force,
    ripe,
    rules_of,
    wave,
    weigh,
)
from redrive.core.idempotency import encode
from redrive.core.transitions import AuditWrite
from redrive.reasons import Reason, ReasonCode
from redrive.store.circuits import CircuitCase, CircuitPlace, CircuitRow, CircuitTurn
from redrive.store.port import People

__all__ = ["Decide", "advanced", "turn", "turn_to", "weighed"]


WAVE_EVERY = MICROS
"""Microseconds between two waves of parked runs."""

Decide = Callable[[CircuitCase], CircuitTurn | None]
"""What is to become of a circuit; None if it stays as it is."""

_EVENTS = {
    CircuitStatus.OPEN: Event.CIRCUIT_OPENED,
    CircuitStatus.HALF_OPEN: Event.CIRCUIT_HALF_OPENED,
    CircuitStatus.CLOSED: Event.CIRCUIT_CLOSED,
}


async def turn(store: People, place: CircuitPlace, decide: Decide) -> tuple[CircuitRow, int]:
    """Turn a circuit as decided; returns how it stands then, and how many parked runs went on."""
    while True:
        case = await store.circuit(*place)
        wanted = decide(case)
        if wanted is None:
            return case.row, 0
        turned = await store.turn_circuit(wanted)
        if turned.kept:
            return _after(case, wanted), turned.released


def weighed(case: CircuitCase, settings: str | None = None) -> CircuitTurn | None:
    """What the marks make of a circuit. `settings` are those of the code that marked something down."""
    row = case.row
    known = settings or row.settings
    rules = rules_of(in_force(known, row.override))
    state = weigh(row.state, rules, case.marks, case.now)
    if state == row.state and known == row.settings:
        return None
    return turn_to(case, state, settings=known, why=_why(case, state, rules))


def advanced(case: CircuitCase) -> CircuitTurn | None:
    """What marks and time make of a circuit, and how many of the runs that wait for it may go on."""
    row = case.row
    rules = rules_of(row.in_force)
    before = ripe(weigh(row.state, rules, case.marks, case.now), case.now)
    changed = before.generation != row.generation
    if not changed and (not row.parked or case.now < row.next_wave_at):
        return None
    releases, state = wave(before, rules, 0 if changed else case.probing) if row.parked else (0, before)
    if not changed and not releases and state == row.state:
        return None
    wanted = turn_to(case, state, why=_why(case, state, rules))
    return replace(wanted, releases=releases, next_wave_at=case.now + WAVE_EVERY)


def turn_to(
    case: CircuitCase,
    state: CircuitState,
    *,
    settings: str | None = None,
    why: Reason | str | None = None,
    by: str = ENGINE,
) -> CircuitTurn:
    """Return a circuit's new state; if its status changes, the audit log says so.

    `why` is a reason of the engine, or the text of a person.
    """
    row, text = case.row, why.to_text() if isinstance(why, Reason) else why
    changed = state.generation != row.generation
    return CircuitTurn(
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
        audit=(_line(row, state, text, by),) if changed else (),
    )


def _line(row: CircuitRow, state: CircuitState, why: str | None, by: str) -> AuditWrite:
    return AuditWrite(
        event=_EVENTS[state.status].value,
        tenant=row.tenant,
        by=by,
        subject=row.key,
        before=json.dumps({"status": row.status.value, "generation": row.generation}),
        after=json.dumps({"status": state.status.value, "generation": state.generation}),
        reason=why,
        token=encode("circuit", row.tenant, row.key, str(state.generation)),
    )


def _why(case: CircuitCase, state: CircuitState, rules: CircuitRules) -> Reason:
    """Return why the engine turned it."""
    match case.row.status, state.status:
        case CircuitStatus.HALF_OPEN, CircuitStatus.OPEN:
            return Reason(ReasonCode.CIRCUIT_PROBE_FAILED, category=case.category)
        case _, CircuitStatus.OPEN:
            return Reason(
                ReasonCode.CIRCUIT_FAILURES,
                n=rules.failures,
                window=rules.window / MICROS,
                category=case.category,
            )
        case _, CircuitStatus.HALF_OPEN:
            return Reason(ReasonCode.CIRCUIT_OPEN_TIME_OVER, open_for=rules.open_for / MICROS)
        case _:
            return Reason(ReasonCode.CIRCUIT_PROBE_SUCCEEDED)


def _after(case: CircuitCase, wanted: CircuitTurn) -> CircuitRow:
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
