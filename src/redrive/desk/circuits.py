"""`app.circuits`: circuits that protect dependencies, and changes that users make to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Unpack

from redrive.clock import Clock
from redrive.core.audit import AuditEvent, read_reason
from redrive.core.circuit import CircuitState, CircuitStatus, close_circuit, open_manually
from redrive.core.roles import DEFAULT_TENANT, Permission
from redrive.desk.actor import Acting, Actor
from redrive.desk.api_operations import operation
from redrive.desk.presenter import make_reason_fields, present_row
from redrive.desk.validation import require_text
from redrive.errors import ConfigurationError, InputError, NotFound
from redrive.policy import Circuit
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.settle.circuits import CircuitDecision, make_circuit_update, update_circuit
from redrive.store.circuits import MOST_COUNTED, CircuitCase, CircuitRow, CircuitStats, CircuitUpdate
from redrive.store.filters import CircuitFilter, require_filter
from redrive.store.port import DeskStore
from redrive.store.result_page import Page
from redrive.time_values import to_datetime

_MAX_KEY_LENGTH = 401  # a workflow, a slash and a step


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitRecord:
    """A circuit. `until` is when an open one allows probes, None if a user opened it.

    `settings` are those in force, None if no code has declared any; `override` holds those that a user set.
    `parked` counts the runs that wait for it, up to 10,000. `why` is the text of a user, or the English sentence
    for `reason_code` and `reason_params`. `failures` and `successes` count the calls within the window of the settings;
    successes arrive some seconds late. `failed_at` and `succeeded_at` are the times of the last ones.
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
    failures: int = 0
    successes: int = 0
    failed_at: datetime | None = None
    succeeded_at: datetime | None = None


class Circuits:
    """Circuits of all tenants. One without a record, which no failure and no user has changed yet, is closed."""

    def __init__(self, store: DeskStore, clock: Clock, on_change: Callable[[CircuitRow], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_change = on_change

    @operation("GET /circuits", Permission.LOOK, id="list_circuits", all_workflows=True)
    async def list(
        self, filter: CircuitFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[CircuitRecord]:
        """Return a page of circuits, those recorded last first."""
        page = await self._store.circuits(require_filter(filter, CircuitFilter), limit=limit, cursor=cursor)
        stats = await self._store.circuit_stats(page.items)
        items = [present_circuit(row, each) for row, each in zip(page.items, stats, strict=True)]
        return Page(items, page.next, page.prev)

    @operation("GET /circuits/{key:path}", Permission.LOOK, id="show_circuit", all_workflows=True)
    async def get(self, key: str, *, tenant: str = DEFAULT_TENANT) -> CircuitRecord:
        """Return one circuit: its state, the runs that wait for it, and its settings; NotFound if it has no record."""
        row = await self._load_row(_check_key(key), require_text("tenant", tenant))
        if not row.version:
            raise NotFound(Reason(ReasonCode.CIRCUIT_UNKNOWN, circuit=key, tenant=tenant))
        return await self._present(row)

    @operation("POST /circuits/{key:path}/open", Permission.DECIDE, id="open_circuit", all_workflows=True)
    async def open(self, key: str, *, tenant: str = DEFAULT_TENANT, **acting: Unpack[Acting]) -> CircuitRecord:
        """Refuse all calls until a user closes or resets the circuit. A circuit without a record can be opened, too."""
        actor = Actor(**acting)

        def decide(case: CircuitCase) -> CircuitUpdate | None:
            opened_before = case.row.is_open and case.row.until is None
            return None if opened_before else _change_state(case, open_manually, actor)

        return await self._change_circuit(key, tenant, decide)

    @operation("POST /circuits/{key:path}/close", Permission.DECIDE, id="close_circuit", all_workflows=True)
    async def close(self, key: str, *, tenant: str = DEFAULT_TENANT, **acting: Unpack[Acting]) -> CircuitRecord:
        """Allow calls at once. Waiting runs continue in growing groups."""
        actor = Actor(**acting)

        def decide(case: CircuitCase) -> CircuitUpdate | None:
            closed_before = case.row.status is CircuitStatus.CLOSED
            return None if closed_before else _change_state(case, close_circuit, actor)

        return await self._change_circuit(key, tenant, decide)

    @operation("POST /circuits/{key:path}/reset", Permission.DECIDE, id="reset_circuit", all_workflows=True)
    async def reset(self, key: str, *, tenant: str = DEFAULT_TENANT, **acting: Unpack[Acting]) -> CircuitRecord:
        """Close the circuit, forget its failures, and return to the settings that the code has."""
        actor = Actor(**acting)

        def decide(case: CircuitCase) -> CircuitUpdate:
            update = _change_state(case, close_circuit, actor)
            line = replace(update.audit[0], event=AuditEvent.CIRCUIT_RESET.value)
            return replace(update, override=None, audit=(line,))

        return await self._change_circuit(key, tenant, decide)

    @operation("PUT /circuits/{key:path}", Permission.SET_POLICIES, all_workflows=True)
    async def set(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", **settings: Any
    ) -> CircuitRecord:
        """Set some of `failures, window, open_for, probes, on_open` instead of the values that the code has.

        Settings that are not given stay as they are. In force from the next failure or call on.
        """
        if not settings:
            raise InputError(Reason(ReasonCode.CIRCUIT_SETTINGS_NEEDED))
        if "name" in settings:
            raise InputError(Reason(ReasonCode.CIRCUIT_NAME_FIXED))
        try:
            whole = Circuit.from_json(settings).to_json()
        except ConfigurationError as error:
            raise InputError(Reason.of_error(error)) from None
        checked = {name: whole[name] for name in settings}
        return await self._override(
            key, tenant, by, AuditEvent.CIRCUIT_SET, lambda old: json.dumps({**json.loads(old or "{}"), **checked})
        )

    @operation("DELETE /circuits/{key:path}", Permission.SET_POLICIES, id="unset_circuit", all_workflows=True)
    async def unset(self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown") -> CircuitRecord:
        """Return to the settings that the code has."""
        return await self._override(key, tenant, by, AuditEvent.CIRCUIT_UNSET, lambda _: None)

    async def _override(
        self, key: str, tenant: str, by: str, event: AuditEvent, edit: Callable[[str | None], str | None]
    ) -> CircuitRecord:
        line = Actor(by).make_audit(self._clock, event, tenant, key)

        def decide(case: CircuitCase) -> CircuitUpdate | None:
            before = case.row.override
            after = edit(before)
            if before is None and after is None:
                return None
            audit = (replace(line, before=before, after=after),)
            return replace(make_circuit_update(case, case.row.state), override=after, changed=True, audit=audit)

        return await self._change_circuit(key, tenant, decide)

    async def _change_circuit(self, key: str, tenant: str, decide: CircuitDecision) -> CircuitRecord:
        tenant, key = require_text("tenant", tenant), _check_key(key)
        row, _ = await update_circuit(self._store, (tenant, key), decide)
        self._on_change(row)
        return await self._present(await self._load_row(key, tenant))

    async def _present(self, row: CircuitRow) -> CircuitRecord:
        (stats,) = await self._store.circuit_stats([row])
        return present_circuit(row, stats)

    async def _load_row(self, key: str, tenant: str) -> CircuitRow:
        return (await self._store.circuit(tenant, key, counted=MOST_COUNTED)).row


def _change_state(case: CircuitCase, change: Callable[[CircuitState], CircuitState], actor: Actor) -> CircuitUpdate:
    return make_circuit_update(case, change(case.row.state), why=actor.reason or None, by=actor.by)


def _check_key(key: str) -> str:
    """Return a valid key: the name of a circuit, or `WORKFLOW/STEP`."""
    if not isinstance(key, str) or not key.strip() or not key.isprintable() or len(key) > _MAX_KEY_LENGTH:
        raise InputError(Reason(ReasonCode.CIRCUIT_KEY_INVALID, given=quote(key)))
    return key


def present_circuit(row: CircuitRow, stats: CircuitStats | None = None) -> CircuitRecord:
    known = row.settings is not None or row.override is not None
    reason = None if row.why is None else read_reason(row.changed_by, row.why)
    return present_row(
        CircuitRecord,
        row,
        settings=row.in_force if known else None,
        override=None if row.override is None else json.loads(row.override),
        failures=0 if stats is None else stats.failures,
        successes=0 if stats is None else stats.successes,
        failed_at=None if stats is None else to_datetime(stats.failed_at),
        succeeded_at=None if stats is None else to_datetime(stats.succeeded_at),
        **make_reason_fields(reason, "why"),
    )
