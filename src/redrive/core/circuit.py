"""A circuit: whether a dependency may be called, decided from what its callers marked down.

    CLOSED ── too many failures within the window ──> OPEN
       ^                                               │ open_for is over
       │                                               v
       └──────── a probe succeeds ──────────────── HALF_OPEN ── a probe fails ──> OPEN

Each change of status begins a new generation. A mark carries the generation its call was admitted under,
so that a call which took long says nothing about a circuit that has changed since. All times are the
store's, in microseconds.

A circuit's key is its name, or `workflow/step` for one without a name; no name has a slash in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from redrive.core.classify import Category
from redrive.duration import MICROS
from redrive.policy import Circuit
from redrive.records import replace

COUNTED_CATEGORIES = frozenset({Category.TIMEOUT, Category.NETWORK, Category.RATE_LIMIT, Category.SERVER_ERROR})
"""The categories that speak about the dependency; a refused card does not make the bank unavailable."""

_FIRST_RELEASE, _MAX_RELEASE = 10, 1000


class CircuitStatus(StrEnum):
    """Whether calls are let through."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class Admission(StrEnum):
    """What a caller may do: call, call as one of the few probes, or not call at all."""

    CALL = "CALL"
    PROBE = "PROBE"
    STAY_OUT = "STAY_OUT"


class CircuitRules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When a circuit opens, for how long, and how many probes it admits. Times are microseconds."""

    failures: int = 5
    window: int = 60_000_000
    open_for: int = 60_000_000
    probes: int = 3


class CircuitState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a circuit stands. `until`: when an open one admits probes; None for one that a person opened.

    `wave` is how many parked runs were let go with the last wave since it closed.
    """

    status: CircuitStatus = CircuitStatus.CLOSED
    generation: int = 0
    until: int | None = None
    wave: int = 0


class AdmittedCall(msgspec.Struct, frozen=True, gc=False):
    """Which circuit let a call through, in which generation, and whether as one of its few probes.

    `settings` is the circuit as the code has it, for whoever weighs what becomes of the call.
    """

    key: str
    settings: str
    generation: int = 0
    probe: bool = False


class CircuitSample(msgspec.Struct, frozen=True, gc=False):
    """How a call ended that was admitted under a generation. Good ends are marked by probes alone."""

    generation: int
    good: bool
    at: int


def circuit_key(circuit: Circuit, workflow: str, step: str) -> str:
    """The key under which all who call a dependency find its circuit."""
    return circuit.name or f"{workflow}/{step}"


def resolve_circuit(settings: str | None, override: str | None) -> Circuit:
    """The settings of a circuit: as the code has them, except for what a person set."""
    code = Circuit() if settings is None else Circuit.from_stored(json.loads(settings))
    if override is None:
        return code
    return Circuit.from_stored({**code.to_json(), **json.loads(override)})


def build_rules(circuit: Circuit) -> CircuitRules:
    """What weighing needs of a circuit's settings."""
    return CircuitRules(
        failures=circuit.failures,
        window=int(circuit.window * MICROS),
        open_for=int(circuit.open_for * MICROS),
        probes=circuit.probes,
    )


def evaluate(state: CircuitState, rules: CircuitRules, marks: Iterable[CircuitSample], now: int) -> CircuitState:
    """What the marks make of a circuit. Weighing the same marks again changes nothing more."""
    counted = [mark for mark in marks if mark.generation == state.generation]
    match state.status:
        case CircuitStatus.CLOSED:
            recent = [mark for mark in counted if not mark.good and mark.at > now - rules.window]
            return open_circuit(state, rules, now) if len(recent) >= rules.failures else state
        case CircuitStatus.HALF_OPEN if any(not mark.good for mark in counted):
            return open_circuit(state, rules, now)
        case CircuitStatus.HALF_OPEN if counted:
            return close_circuit(state)
        case _:
            return state


def expire(state: CircuitState, now: int) -> CircuitState:
    """An open circuit whose time is over admits probes."""
    if state.status is not CircuitStatus.OPEN or state.until is None or now < state.until:
        return state
    return _change_status(state, CircuitStatus.HALF_OPEN)


def admit(state: CircuitState, rules: CircuitRules, probing: int) -> Admission:
    """Whether one more may call, while `probing` probes are under way."""
    if state.status is CircuitStatus.CLOSED:
        return Admission.CALL
    free = state.status is CircuitStatus.HALF_OPEN and probing < rules.probes
    return Admission.PROBE if free else Admission.STAY_OUT


def release_size(state: CircuitState, rules: CircuitRules, probing: int) -> tuple[int, CircuitState]:
    """How many parked runs may go on now: as many as can probe, and after closing more with every wave."""
    match state.status:
        case CircuitStatus.CLOSED:
            most = min(_MAX_RELEASE, state.wave * 10) or _FIRST_RELEASE
            return most, replace(state, wave=most)
        case CircuitStatus.HALF_OPEN:
            return max(0, rules.probes - probing), state
        case _:
            return 0, state


def open_manually(state: CircuitState) -> CircuitState:
    """A person opens it: no call goes out until a person closes it again."""
    return replace(_change_status(state, CircuitStatus.OPEN), until=None)


def close_circuit(state: CircuitState) -> CircuitState:
    """Calls go out again, and what was marked before is forgotten."""
    return _change_status(state, CircuitStatus.CLOSED)


def open_circuit(state: CircuitState, rules: CircuitRules, now: int) -> CircuitState:
    """No call goes out until its time is over."""
    return replace(_change_status(state, CircuitStatus.OPEN), until=now + rules.open_for)


def _change_status(state: CircuitState, status: CircuitStatus) -> CircuitState:
    return CircuitState(status=status, generation=state.generation + 1)
