"""Circuits as stores keep them: what goes in, what comes out, and what both stores do with it alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.clock import MICROS
from redrive.core.circuit import (
    Admission,
    CircuitState,
    CircuitStatus,
    Mark,
    admit,
    in_force,
    rules_of,
    weigh,
)
from redrive.core.transition import AuditWrite
from redrive.frozen import dataclass
from redrive.policy import DAY, MOST_FAILURES, Circuit
from redrive.store.pages import Window
from redrive.store.selection import CircuitFilter

__all__ = [
    "MARKS_KEPT",
    "MOST_COUNTED",
    "MOST_MARKS",
    "Ask",
    "CircuitCase",
    "CircuitPlace",
    "CircuitRow",
    "CircuitTurn",
    "Permit",
    "Turned",
    "answer",
    "case_of",
    "circuit_row",
    "fields_of",
    "list_values",
]

MARKS_KEPT = int(DAY * MICROS)
"""How long marks are kept: as long as the longest window, in microseconds."""

MOST_MARKS = MOST_FAILURES
"""More marks than a circuit may ask for are never looked at."""

MOST_COUNTED = 10_000
"""Parked runs are counted up to this many."""

CircuitPlace = tuple[str, str]
"""Which circuit: its tenant and its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitRow:
    """One circuit as recorded. Version 0: there is no row yet, because nothing ever happened to it.

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
    def place(self) -> CircuitPlace:
        """Which circuit it is."""
        return self.tenant, self.key

    @property
    def is_open(self) -> bool:
        """Whether nobody may call."""
        return self.status is CircuitStatus.OPEN

    @property
    def state(self) -> CircuitState:
        """Where it stands, for `core.circuit`."""
        return CircuitState(status=self.status, generation=self.generation, until=self.until, wave=self.wave)

    @property
    def in_force(self) -> Circuit:
        """The settings that hold."""
        return in_force(self.settings, self.override)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitCase:
    """A circuit with all that deciding about it takes, as of one moment.

    `marks` are those of its generation, the newest ones if there are many; `category` is the newest
    failure's; `probing` counts the permits that are out.
    """

    row: CircuitRow
    marks: tuple[Mark, ...]
    category: str | None
    probing: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitTurn:
    """A circuit as it shall stand, if it still has this version. `releases`: so many parked runs go on.

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


@dataclass(frozen=True, slots=True)
class Turned:
    """What became of a turn: `kept`, or refused because somebody else was quicker."""

    kept: bool
    released: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A run's wish to call a dependency that may be out of order."""

    tenant: str
    key: str
    settings: str
    run: int
    fence: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """The answer: what may be done, and the circuit as it is. `stale`: it is to be weighed first."""

    admission: Admission
    row: CircuitRow
    stale: bool = False


_FIELDS = (
    "id", "tenant", "key", "status", "generation", "version", "until", "wave", "next_wave_at", "settings",
    "override", "why", "changed_by", "changed_at",
)  # fmt: skip


def circuit_row(row: Sequence[Any]) -> CircuitRow:
    """One row of `circuits`, with or without the number of runs that wait for it."""
    values: dict[str, Any] = dict(zip((*_FIELDS, "parked"), row, strict=False))
    return CircuitRow(**{**values, "status": CircuitStatus(values["status"])})


def case_of(
    row: Sequence[Any], marks: Sequence[Mark], category: str | None, probing: int, now: int
) -> CircuitCase:
    """A circuit as it was read; where there is no row, nothing ever happened to it."""
    tenant, key, parked = row[1], row[2], row[-1]
    unheard_of = (0, tenant, key, CircuitStatus.CLOSED, 0, 0, None, 0, 0, None, None, None, None, 0, parked)
    found = circuit_row(unheard_of if row[0] is None else row)
    return CircuitCase(row=found, marks=tuple(marks), category=category, probing=probing, now=now)


def list_values(where: CircuitFilter, window: Window) -> dict[str, Any]:
    """What a list of circuits is narrowed down by, by the names of the conditions."""
    status = None if where.status is None else str(where.status)
    values = {"tenant": where.tenant, "status": status, "below": window.below, "above": window.above}
    return {name: value for name, value in values.items() if value is not None}


def fields_of(turn: CircuitTurn, now: int) -> dict[str, Any]:
    """The parameters of the statements that turn a circuit."""
    return {
        "tenant": turn.tenant,
        "key": turn.key,
        "version": turn.version,
        "status": turn.state.status.value,
        "generation": turn.state.generation,
        "until": turn.state.until,
        "wave": turn.state.wave,
        "next_wave_at": turn.next_wave_at,
        "settings": turn.settings,
        "override": turn.override,
        "why": turn.why,
        "by": turn.by,
        "changed": int(turn.changed),
        "now": now,
    }


def answer(case: CircuitCase, ask: Ask, *, mine: bool, lost: bool) -> Permit:
    """Whether one more may call, given who does already. `mine`: the asker has a permit.

    `lost`: the asker's run is another's by now. A circuit that marks are about to turn admits nobody
    until they were weighed, or a probe that ended would make room for one too many.
    """
    row = case.row
    rules = rules_of(in_force(row.settings or ask.settings, row.override))
    stale = weigh(row.state, rules, case.marks, case.now) != row.state
    if lost or stale:
        return Permit(admission=Admission.STAY_OUT, row=row, stale=stale)
    if mine and row.status is CircuitStatus.HALF_OPEN:
        return Permit(admission=Admission.PROBE, row=row)
    return Permit(admission=admit(row.state, rules, case.probing), row=row)
