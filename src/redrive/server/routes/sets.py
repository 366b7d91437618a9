"""Decisions on many letters, and how far they are."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from redrive.core.roles import Permission
from redrive.desk.sets import DryRunOfMany, LetterSet, SetItem
from redrive.errors import InputError
from redrive.server.asking import Asked, Asking, needs
from redrive.server.routes.letters import Mode
from redrive.server.routes.shared import Body, Cursor, Id, Limit, Reason, Text, policy_of, router, searched
from redrive.store.bulk import SetItemStatus
from redrive.store.records import Page
from redrive.store.selection import LetterFilter

__all__ = ["bulk_routes"]

bulk_routes = router("decisions on many")


class Filter(Body):
    """Which letters are meant: those that are open and match. An empty one means all that are open."""

    code: Text | None = None
    stage: Text | None = None
    category: Text | None = None
    workflow: Text | None = None
    step: Text | None = None
    fingerprint: Text | None = None
    owner: Text | None = None
    tag: Text | None = None
    text: Text | None = None
    index: dict[str, str | int | float | bool] | None = None
    since: datetime | None = None
    until: datetime | None = None


RateText = Annotated[
    str,
    Field(
        max_length=40,
        description="At most so many letters per second, minute or hour.",
        examples=["50/s", "600/m", "100/h"],
    ),
]


class Pace(Body):
    """How fast a decision may go on; null is as fast as it can."""

    rate: RateText | None


class Many(Reason):
    """Letters by a filter or by their ids: one of the two."""

    filter: Filter | None = None
    ids: list[Annotated[str, Field(max_length=200)]] | None = Field(default=None, max_length=10_000)
    rate: RateText | None = None

    def letters(self, asked: Asking) -> LetterFilter | list[str]:
        """The letters that are meant."""
        if (self.filter is None) == (self.ids is None):
            raise InputError("give either a filter or ids; an empty filter means all letters that are open")
        if self.filter is None:
            return self.ids or []
        searched(asked, self.filter.text)
        return LetterFilter(**self.filter.model_dump())


class ReplayMany(Many):
    """How many letters are to be replayed."""

    mode: Mode = "FROM_FAILED"
    from_step_index: int | None = Field(default=None, ge=0, le=10_000)
    patch: dict[str, Any] | None = None
    output: Any = None
    override_retry_policy: dict[str, Any] | None = None
    new_operation: bool = False
    dry_run: bool = False


@bulk_routes.post("/workflow-dlq/replay", status_code=202, **needs(Permission.DECIDE))
async def replay_letters(asked: Asked, body: ReplayMany) -> LetterSet | DryRunOfMany:
    """Replay many letters, each at most once; workers carry it out. `dry_run` counts and checks."""
    return await asked.desk.dlq.replay_many(
        body.letters(asked),
        mode=body.mode,
        dry_run=body.dry_run,
        by=asked.by,
        reason=body.reason,
        tenant=asked.one_tenant,
        rate=body.rate,
        from_step=body.from_step_index,
        patch=body.patch,
        output=body.output,
        retry=policy_of(body.override_retry_policy),
        new_operation=body.new_operation,
    )


@bulk_routes.post("/workflow-dlq/resolve", status_code=202, **needs(Permission.DECIDE))
async def resolve_letters(asked: Asked, body: Many) -> LetterSet:
    """Resolve many letters."""
    return await asked.desk.dlq.resolve_many(
        body.letters(asked), by=asked.by, reason=body.reason, tenant=asked.one_tenant, rate=body.rate
    )


@bulk_routes.post("/workflow-dlq/ignore", status_code=202, **needs(Permission.DECIDE))
async def ignore_letters(asked: Asked, body: Many) -> LetterSet:
    """Ignore many letters."""
    return await asked.desk.dlq.ignore_many(
        body.letters(asked), by=asked.by, reason=body.reason, tenant=asked.one_tenant, rate=body.rate
    )


@bulk_routes.get("/bulk-replays", **needs(Permission.LOOK))
async def list_sets(asked: Asked, limit: Limit = 50, cursor: Cursor = None) -> Page[LetterSet]:
    """A page of decisions on many letters, the newest first."""
    return await asked.desk.dlq.sets(limit=limit, cursor=cursor)


@bulk_routes.get("/bulk-replays/{id}", **needs(Permission.LOOK))
async def show_set(asked: Asked, id: Id) -> LetterSet:
    """A decision on many letters and how far it is."""
    return await asked.desk.dlq.set(id)


@bulk_routes.get("/bulk-replays/{id}/items", **needs(Permission.LOOK))
async def list_set_items(
    asked: Asked,
    id: Id,
    status: Annotated[SetItemStatus | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[SetItem]:
    """A page of the letters of such a decision, with what became of each."""
    return await asked.desk.dlq.set_items(id, status=status, limit=limit, cursor=cursor)


@bulk_routes.post("/bulk-replays/{id}/stop", **needs(Permission.DECIDE))
async def stop_set(asked: Asked, id: Id) -> LetterSet:
    """Decide on no further letter. What was decided stays so."""
    return await asked.desk.dlq.stop_set(id, by=asked.by)


@bulk_routes.post("/bulk-replays/{id}/pause", **needs(Permission.DECIDE))
async def pause_set(asked: Asked, id: Id) -> LetterSet:
    """Decide on no further letter until it is resumed. What is in hand is finished."""
    return await asked.desk.dlq.pause_set(id, by=asked.by)


@bulk_routes.post("/bulk-replays/{id}/resume", **needs(Permission.DECIDE))
async def resume_set(asked: Asked, id: Id) -> LetterSet:
    """Go on where it was paused."""
    return await asked.desk.dlq.resume_set(id, by=asked.by)


@bulk_routes.post("/bulk-replays/{id}/rate", **needs(Permission.DECIDE))
async def rate_set(asked: Asked, id: Id, body: Pace) -> LetterSet:
    """Let it decide on at most so many letters from now on."""
    return await asked.desk.dlq.rate_set(id, body.rate, by=asked.by)
