"""Circuits: the decision whether a dependency may be called, from samples of earlier calls.

    CLOSED ── too many failures within the window ──> OPEN
       ^                                               │ open_for is over
       │                                               v
       └──────── a probe succeeds ──────────────── HALF_OPEN ── a probe fails ──> OPEN

Each change of status begins a new generation. A sample carries the generation in which its call was admitted, so that
a slow call says nothing about a circuit that has changed since. All times are the store's, in microseconds.

The key of a circuit is its name, or `workflow/step` if it has none. A name contains no slash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from redrive.core.classify import Category
from redrive.policy import Circuit
from redrive.record_fields import replace
from redrive.time_values import MICROS

COUNTED_CATEGORIES = frozenset({Category.TIMEOUT, Category.NETWORK, Category.RATE_LIMIT, Category.SERVER_ERROR})
"""The categories that say something about the dependency: a refused card does not make the bank unavailable."""

_FIRST_RELEASE, _MAX_RELEASE = 10, 1000


class CircuitStatus(StrEnum):
    """The status of a circuit: calls are admitted, refused, or admitted as probes."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class Admission(StrEnum):
    """The answer to a caller: call, call as one of the few probes, or do not call."""

    CALL = "CALL"
    PROBE = "PROBE"
    STAY_OUT = "STAY_OUT"


class CircuitRules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The settings by which samples are evaluated: `failures` within `window` open a circuit for `open_for`."""

    failures: int = 5
    window: int = 60_000_000
    open_for: int = 60_000_000
    probes: int = 3


class CircuitState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of a circuit.

    `until`: the time at which an open circuit admits probes; None if a user opened it. `wave`: the number of parked
    runs in the last release since it closed.
    """

    status: CircuitStatus = CircuitStatus.CLOSED
    generation: int = 0
    until: int | None = None
    wave: int = 0


class AdmittedCall(msgspec.Struct, frozen=True, gc=False):
    """A call that a circuit admitted. `settings`: the circuit's settings in the code, as JSON."""

    key: str
    settings: str
    generation: int = 0
    probe: bool = False


class CircuitSample(msgspec.Struct, frozen=True, gc=False):
    """The end of an admitted call. Only probes report a good end."""

    generation: int
    good: bool
    at: int


def circuit_key(circuit: Circuit, workflow: str, step: str) -> str:
    return circuit.name or f"{workflow}/{step}"


def resolve_circuit(settings: str | None, override: str | None) -> Circuit:
    """Return the settings of a circuit: those in the code, except for those that a user overrides."""
    code = Circuit() if settings is None else Circuit.from_stored(json.loads(settings))
    if override is None:
        return code
    return Circuit.from_stored({**code.to_json(), **json.loads(override)})


def build_rules(circuit: Circuit) -> CircuitRules:
    """Return the settings that `evaluate` needs."""
    return CircuitRules(
        failures=circuit.failures,
        window=int(circuit.window * MICROS),
        open_for=int(circuit.open_for * MICROS),
        probes=circuit.probes,
    )


def evaluate(state: CircuitState, rules: CircuitRules, samples: Iterable[CircuitSample], now: int) -> CircuitState:
    """Return the state that the samples lead to. Evaluating the same samples again changes nothing."""
    counted = [sample for sample in samples if sample.generation == state.generation]
    failed = [sample for sample in counted if not sample.good]
    match state.status:
        case CircuitStatus.CLOSED:
            recent = sum(sample.at > now - rules.window for sample in failed)
            return open_circuit(state, rules, now) if recent >= rules.failures else state
        case CircuitStatus.HALF_OPEN if failed:
            return open_circuit(state, rules, now)
        case CircuitStatus.HALF_OPEN if counted:
            return close_circuit(state)
        case _:
            return state


def expire(state: CircuitState, now: int) -> CircuitState:
    """Let an open circuit whose time is over admit probes."""
    if state.status is not CircuitStatus.OPEN or state.until is None or now < state.until:
        return state
    return _change_status(state, CircuitStatus.HALF_OPEN)


def admit(state: CircuitState, rules: CircuitRules, probing: int) -> Admission:
    """Decide whether another call is admitted while `probing` probes are executing."""
    if state.status is CircuitStatus.CLOSED:
        return Admission.CALL
    free = state.status is CircuitStatus.HALF_OPEN and probing < rules.probes
    return Admission.PROBE if free else Admission.STAY_OUT


def release_size(state: CircuitState, rules: CircuitRules, probing: int) -> tuple[int, CircuitState]:
    """Return the number of parked runs to release now, and the new state.

    A half-open circuit releases as many runs as can probe. A closed one releases ten times more with each wave.
    """
    match state.status:
        case CircuitStatus.CLOSED:
            size = min(_MAX_RELEASE, state.wave * 10) or _FIRST_RELEASE
            return size, replace(state, wave=size)
        case CircuitStatus.HALF_OPEN:
            return max(0, rules.probes - probing), state
        case _:
            return 0, state


def open_manually(state: CircuitState) -> CircuitState:
    """Open a circuit until a user closes it."""
    return replace(_change_status(state, CircuitStatus.OPEN), until=None)


def close_circuit(state: CircuitState) -> CircuitState:
    """Close a circuit. Samples of earlier generations no longer count."""
    return _change_status(state, CircuitStatus.CLOSED)


def open_circuit(state: CircuitState, rules: CircuitRules, now: int) -> CircuitState:
    """Open a circuit until its time is over."""
    return replace(_change_status(state, CircuitStatus.OPEN), until=now + rules.open_for)


def _change_status(state: CircuitState, status: CircuitStatus) -> CircuitState:
    return CircuitState(status=status, generation=state.generation + 1)
