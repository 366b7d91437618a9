"""Circuits: which dependencies are not called, and a person's say in that. Each tenant has its own."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from redrive.core.circuit import CircuitStatus
from redrive.core.roles import Permission
from redrive.desk.circuits import CircuitRecord
from redrive.server.asking import Asked, needs
from redrive.server.routes.shared import Body, Cursor, Limit, Reason, Span, router
from redrive.store.records import Page
from redrive.store.selection import CircuitFilter

__all__ = ["circuit_routes"]

circuit_routes = router("circuits")

Key = Annotated[
    str, Path(pattern=r"^[^#\x00-\x1f]{1,401}$", description="A circuit's name, or WORKFLOW/STEP.")
]


class Settings(Body):
    """What is to be in force instead of what the code says; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1})

    failures: int | None = Field(default=None, ge=1)
    window: Span | None = None
    open_for: Span | None = None
    probes: int | None = Field(default=None, ge=1)
    on_open: Literal["park", "fail"] | None = None


@circuit_routes.get("/circuits", **needs(Permission.LOOK, all_workflows=True))
async def list_circuits(
    asked: Asked,
    status: Annotated[CircuitStatus | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[CircuitRecord]:
    """A page of circuits that something ever happened to, those heard of last first."""
    return await asked.desk.circuits.list(CircuitFilter(status=status), limit=limit, cursor=cursor)


@circuit_routes.get("/circuits/{key:path}", **needs(Permission.LOOK, all_workflows=True))
async def show_circuit(asked: Asked, key: Key) -> CircuitRecord:
    """One circuit: how it stands and since when, who waits, and its settings."""
    return await asked.desk.circuits.get(key, tenant=asked.home)


@circuit_routes.post("/circuits/{key:path}/open", **needs(Permission.DECIDE, all_workflows=True))
async def open_circuit(asked: Asked, key: Key, body: Reason | None = None) -> CircuitRecord:
    """Let no call through until somebody closes or resets it."""
    reason = body.reason if body else None
    return await asked.desk.circuits.open(key, tenant=asked.home, by=asked.by, reason=reason)


@circuit_routes.post("/circuits/{key:path}/close", **needs(Permission.DECIDE, all_workflows=True))
async def close_circuit(asked: Asked, key: Key, body: Reason | None = None) -> CircuitRecord:
    """Let calls through at once; runs that wait go on in growing waves."""
    reason = body.reason if body else None
    return await asked.desk.circuits.close(key, tenant=asked.home, by=asked.by, reason=reason)


@circuit_routes.post("/circuits/{key:path}/reset", **needs(Permission.DECIDE, all_workflows=True))
async def reset_circuit(asked: Asked, key: Key, body: Reason | None = None) -> CircuitRecord:
    """Close it, forget its failures, and go back to the settings that the code has."""
    reason = body.reason if body else None
    return await asked.desk.circuits.reset(key, tenant=asked.home, by=asked.by, reason=reason)


@circuit_routes.put("/circuits/{key:path}", **needs(Permission.SET_POLICIES, all_workflows=True))
async def set_circuit(asked: Asked, key: Key, body: Settings) -> CircuitRecord:
    """Set some of a circuit's settings, in force from the next call or failure on."""
    given = body.model_dump(exclude_none=True)
    return await asked.desk.circuits.set(key, tenant=asked.home, by=asked.by, **given)


@circuit_routes.delete("/circuits/{key:path}", **needs(Permission.SET_POLICIES, all_workflows=True))
async def unset_circuit(asked: Asked, key: Key) -> CircuitRecord:
    """Go back to the settings that the code has."""
    return await asked.desk.circuits.unset(key, tenant=asked.home, by=asked.by)
