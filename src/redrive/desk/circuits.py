"""`app.circuits`: which dependencies are not called at the moment, and a person's say in that."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from redrive.clock import Clock
from redrive.core.audit import AuditEvent, read_reason
from redrive.core.circuit import CircuitState, CircuitStatus, close_circuit, open_manually
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.transitions import AuditWrite
from redrive.desk.models import make_reason_fields
from redrive.desk.validation import check_reason, require_actor, require_text
from redrive.duration import to_datetime
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.policy import Circuit
from redrive.reasons import Reason, ReasonCode, quote
from redrive.records import replace
from redrive.settle.circuits import CircuitDecision, make_circuit_update, update_circuit
from redrive.store.circuits import MOST_COUNTED, CircuitCase, CircuitRow, CircuitUpdate
from redrive.store.filters import CircuitFilter
from redrive.store.list_query import Page
from redrive.store.port import DeskStore

_MAX_KEY_LENGTH = 401  # a workflow, a slash and a step


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitRecord:
    """A circuit as it is shown. `until`: when an open one lets probes through, None if a person opened it.

    `settings` are those in force, as far as any code said what they are; `override` is what a person set.
    `parked` counts the runs that wait for it, up to 10,000. `why` is a person's text, or the English sentence
    for `reason_code` and `reason_params`.
    """

    key: str
    tenant: str
    status: CircuitStatus
    generation: int
    until: datetime | None
    parked: int
    settings: Circuit | None
    override: Mapping[str, Any] | None
    why: str | None
    changed_by: str | None
    changed_at: datetime
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)


class Circuits:
    """Circuits of all tenants. One is there once something happened to it; until then it is closed."""

    def __init__(self, store: DeskStore, clock: Clock, on_turn: Callable[[CircuitRow], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_turn = on_turn

    async def list(
        self, filter: CircuitFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[CircuitRecord]:
        """A page of circuits, those heard of last first."""
        page = await self._store.circuits(filter or CircuitFilter(), limit=limit, cursor=cursor)
        return Page([present_circuit(row) for row in page.items], page.next, page.prev)

    async def get(self, key: str, *, tenant: str = DEFAULT_TENANT) -> CircuitRecord:
        """One circuit; NotFound if nothing ever happened to one of this key."""
        row = await self._load_row(_check_key(key), require_text("tenant", tenant))
        if not row.version:
            raise NotFound(Reason(ReasonCode.CIRCUIT_UNKNOWN, circuit=key, tenant=tenant))
        return present_circuit(row)

    async def open(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", reason: str | None = None
    ) -> CircuitRecord:
        """Let no call through until somebody closes or resets it. It need not have been heard of."""

        def decide(case: CircuitCase) -> CircuitUpdate | None:
            if case.row.is_open and case.row.until is None:
                return None
            return make_circuit_update(case, open_manually(case.row.state), why=why, by=by)

        by, why = require_actor(by), check_reason(reason) or f"opened by {by}"
        return await self._change_circuit(key, tenant, decide)

    async def close(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", reason: str | None = None
    ) -> CircuitRecord:
        """Let calls through at once. Runs that wait go on in growing waves."""

        def decide(case: CircuitCase) -> CircuitUpdate | None:
            if case.row.status is CircuitStatus.CLOSED:
                return None
            return make_circuit_update(case, close_circuit(case.row.state), why=why, by=by)

        by, why = require_actor(by), check_reason(reason) or f"closed by {by}"
        return await self._change_circuit(key, tenant, decide)

    async def reset(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", reason: str | None = None
    ) -> CircuitRecord:
        """Close it, and forget what was marked down and what people set: it is as the code has it."""

        def decide(case: CircuitCase) -> CircuitUpdate:
            wanted = make_circuit_update(case, close_circuit(case.row.state), why=why, by=by)
            line = replace(wanted.audit[0], event=AuditEvent.CIRCUIT_RESET.value)
            return replace(wanted, override=None, audit=(line,))

        by, why = require_actor(by), check_reason(reason) or f"reset by {by}"
        return await self._change_circuit(key, tenant, decide)

    async def set(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", **settings: Any
    ) -> CircuitRecord:
        """Set some of `failures, window, open_for, probes, on_open` instead of what the code has.

        What is not named stays as it is. In force from the next failure or call on.
        """
        given = _check_settings(settings)
        by, token = require_actor(by), self._clock.new_id()

        def decide(case: CircuitCase) -> CircuitUpdate:
            override = json.dumps({**json.loads(case.row.override or "{}"), **given})
            return _make_override_change(case, override, AuditEvent.CIRCUIT_SET, by, token)

        return await self._change_circuit(key, tenant, decide)

    async def unset(self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown") -> CircuitRecord:
        """Go back to the settings that the code has."""
        by, token = require_actor(by), self._clock.new_id()

        def decide(case: CircuitCase) -> CircuitUpdate | None:
            if case.row.override is None:
                return None
            return _make_override_change(case, None, AuditEvent.CIRCUIT_UNSET, by, token)

        return await self._change_circuit(key, tenant, decide)

    async def _change_circuit(self, key: str, tenant: str, decide: CircuitDecision) -> CircuitRecord:
        place = (require_text("tenant", tenant), _check_key(key))
        row, _ = await update_circuit(self._store, place, decide)
        self._on_turn(row)
        return present_circuit(await self._load_row(place[1], place[0]))

    async def _load_row(self, key: str, tenant: str) -> CircuitRow:
        return (await self._store.circuit(tenant, key, counted=MOST_COUNTED)).row


def _make_override_change(
    case: CircuitCase, override: str | None, event: AuditEvent, by: str, token: str
) -> CircuitUpdate:
    row = case.row
    line = AuditWrite(
        event=event.value, tenant=row.tenant, by=by, subject=row.key, before=row.override, after=override, token=token
    )
    state: CircuitState = row.state
    return replace(make_circuit_update(case, state), override=override, changed=True, audit=(line,))


def _check_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, checked and as it is kept."""
    if not given:
        raise InputError(Reason(ReasonCode.CIRCUIT_SETTINGS_NEEDED))
    if "name" in given:
        raise InputError(Reason(ReasonCode.CIRCUIT_NAME_FIXED))
    try:
        whole = Circuit.from_json(given).to_json()
    except ConfigurationError as error:
        raise InputError(str(error)) from None
    return {name: whole[name] for name in given}


def _check_key(key: str) -> str:
    """A circuit's name, or a workflow's and a step's."""
    if not isinstance(key, str) or not key.strip() or not key.isprintable() or len(key) > _MAX_KEY_LENGTH:
        raise InputError(Reason(ReasonCode.CIRCUIT_KEY_INVALID, given=quote(key)))
    return key


def present_circuit(row: CircuitRow) -> CircuitRecord:
    """A circuit as it is shown."""
    known = row.settings is not None or row.override is not None
    reason = None if row.why is None else read_reason(row.changed_by, row.why)
    return CircuitRecord(
        key=row.key,
        tenant=row.tenant,
        status=row.status,
        generation=row.generation,
        until=to_datetime(row.until),
        parked=row.parked,
        settings=row.in_force if known else None,
        override=None if row.override is None else json.loads(row.override),
        why=None if reason is None else str(reason),
        **make_reason_fields(reason),
        changed_by=row.changed_by,
        changed_at=to_datetime(row.changed_at),
    )
