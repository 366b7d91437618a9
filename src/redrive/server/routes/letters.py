"""Dead letters: looking, deciding, noting; one at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import Field

from redrive.core.roles import Permission
from redrive.core.states import LetterStatus
from redrive.desk.bulk import DryRunOfMany, LetterSet, SetItem
from redrive.desk.decisions import Replay
from redrive.desk.models import DeadLetter
from redrive.desk.presenter import GroupList
from redrive.desk.preview import DryRun
from redrive.errors import InputError
from redrive.server.request import Context, RequestContext, requires
from redrive.server.routes.common import (
    Body,
    Cursor,
    Id,
    Index,
    Key,
    Limit,
    Reason,
    Since,
    Text,
    Until,
    check_search_text,
    make_router,
    parse_policy,
)
from redrive.server.routes.runs import parse_index
from redrive.store.bulk import SetItemStatus
from redrive.store.filters import LetterFilter
from redrive.store.letters import Facets
from redrive.store.list_query import Page

# -- Dead letters: looking, deciding, noting; one at a time ----------------------------------------------


letter_routes = make_router("dead letters")
Mode = Literal["FROM_FAILED", "STEP_ONLY", "FROM_STEP", "SKIP", "FULL"]


class Decision(Reason):
    """How a dead letter is to be replayed."""

    mode: Mode = "FROM_FAILED"
    from_step_index: int | None = Field(default=None, ge=0, le=10_000)
    input: dict[str, Any] | None = None
    patch: dict[str, Any] | None = None
    output: Any = None
    override_retry_policy: dict[str, Any] | None = None
    new_operation: bool = False
    dry_run: bool = False


class Assignment(Body):
    """Who looks after a letter; null says nobody."""

    to: Text | None


class Comment(Body):
    """What somebody says about a letter."""

    text: str = Field(min_length=1, max_length=10_000)


class Tags(Body):
    """Words to mark a letter with, in place of those it has."""

    tags: list[Text] = Field(max_length=100)


class Output(Reason):
    """The failed step's result, given by hand."""

    output: Any
    dry_run: bool = False


class Count(Body):
    """A number of letters."""

    total: int


def _make_filter(
    asked: Context,
    status: Annotated[list[LetterStatus] | None, Query(max_length=20)] = None,
    code: Text | None = None,
    stage: Text | None = None,
    category: Text | None = None,
    workflow: Text | None = None,
    step: Text | None = None,
    fingerprint: Text | None = None,
    owner: Text | None = None,
    tag: Text | None = None,
    text: Annotated[Text | None, Query(description="Needs the permission to see payloads.")] = None,
    index: Index = None,
    since: Since = None,
    until: Until = None,
) -> LetterFilter:
    return LetterFilter(
        status=tuple(status) if status else None,
        code=code,
        stage=stage,
        category=category,
        workflow=workflow,
        step=step,
        fingerprint=fingerprint,
        owner=owner,
        tag=tag,
        text=check_search_text(asked, text),
        index=parse_index(index),
        since=since,
        until=until,
    )


LetterQuery = Annotated[LetterFilter, Depends(_make_filter)]
"""The letters that a query names."""


@letter_routes.get("/workflow-dlq", **requires(Permission.LOOK))
async def list_letters(
    asked: Context, where: LetterQuery, limit: Limit = 50, cursor: Cursor = None
) -> Page[DeadLetter]:
    """A page of dead letters, newest first."""
    return await asked.desk.dlq.list(where, limit=limit, cursor=cursor)


@letter_routes.get("/workflow-dlq/count", **requires(Permission.LOOK))
async def count_letters(asked: Context, where: LetterQuery) -> Count:
    """How many dead letters match."""
    return Count(total=await asked.desk.dlq.count(where))


@letter_routes.get("/workflow-dlq/facets", **requires(Permission.LOOK))
async def show_facets(asked: Context, where: LetterQuery) -> Facets:
    """How the newest 2,000 letters that match are spread over codes, stages, workflows, steps, owners."""
    return await asked.desk.dlq.facets(where)


@letter_routes.get("/workflow-dlq/groups", **requires(Permission.LOOK))
async def list_groups(
    asked: Context, status: Literal["OPEN", "ALL"] = "OPEN", limit: Limit = 50, cursor: Cursor = None
) -> GroupList:
    """A page of failures with one cause each, the one seen last first."""
    wanted = None if status == "ALL" else status
    return await asked.desk.dlq.groups(asked.one_tenant, status=wanted, limit=limit, cursor=cursor)


@letter_routes.get("/workflow-dlq/{id}", **requires(Permission.LOOK))
async def show_letter(asked: Context, id: Id) -> DeadLetter:
    """One dead letter with its run's steps, every attempt, its replays and its history."""
    return await asked.desk.dlq.get(id)


@letter_routes.post("/workflow-dlq/{id}/reveal", **requires(Permission.SEE_PAYLOADS, **{"x-own-key": True}))
async def reveal_letter(asked: Context, id: Id) -> DeadLetter:
    """The same with nothing hidden; the audit log says who looked."""
    return await asked.desk.dlq.get(id, reveal=True, by=asked.by)


@letter_routes.post("/workflow-dlq/{id}/replay", **requires(Permission.DECIDE))
async def replay_letter(asked: Context, id: Id, body: Decision | None = None, key: Key = None) -> Replay | DryRun:
    """Run a dead-lettered run again. The same decision sent again gets the same answer."""
    body = body or Decision()
    return await asked.desk.dlq.replay(
        id,
        body.mode,
        from_step=body.from_step_index,
        input=body.input,
        patch=body.patch,
        output=body.output,
        retry=parse_policy(body.override_retry_policy),
        new_operation=body.new_operation,
        dry_run=body.dry_run,
        by=asked.by,
        reason=body.reason,
        idempotency_key=key,
    )


@letter_routes.post("/workflow-dlq/{id}/complete", **requires(Permission.DECIDE))
async def complete_letter(asked: Context, id: Id, body: Output, key: Key = None) -> Replay | DryRun:
    """Give the failed step's result by hand, and let the run go on with it."""
    return await asked.desk.dlq.replay(
        id, "COMPLETE", output=body.output, dry_run=body.dry_run, by=asked.by, reason=body.reason, idempotency_key=key
    )


@letter_routes.post("/workflow-dlq/{id}/resolve", **requires(Permission.DECIDE))
async def resolve_letter(asked: Context, id: Id, body: Reason | None = None) -> DeadLetter:
    """Close a letter whose cause was dealt with outside."""
    return await asked.desk.dlq.resolve(id, by=asked.by, reason=body.reason if body else None)


@letter_routes.post("/workflow-dlq/{id}/ignore", **requires(Permission.DECIDE))
async def ignore_letter(asked: Context, id: Id, body: Reason | None = None) -> DeadLetter:
    """Close a letter that needs nothing done."""
    return await asked.desk.dlq.ignore(id, by=asked.by, reason=body.reason if body else None)


@letter_routes.post("/workflow-dlq/{id}/assign", **requires(Permission.NOTE))
async def assign_letter(asked: Context, id: Id, body: Assignment) -> DeadLetter:
    """Say who looks after a letter."""
    return await asked.desk.dlq.assign(id, to=body.to, by=asked.by)


@letter_routes.post("/workflow-dlq/{id}/comment", **requires(Permission.NOTE))
async def comment_letter(asked: Context, id: Id, body: Comment) -> DeadLetter:
    """Say something about a letter."""
    return await asked.desk.dlq.comment(id, body.text, by=asked.by)


@letter_routes.post("/workflow-dlq/{id}/tag", **requires(Permission.NOTE))
async def tag_letter(asked: Context, id: Id, body: Tags) -> DeadLetter:
    """Mark a letter with words."""
    return await asked.desk.dlq.tag(id, body.tags, by=asked.by)


# -- Decisions on many letters, and how far they are -----------------------------------------------------


bulk_routes = make_router("decisions on many")


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

    def letters(self, asked: RequestContext) -> LetterFilter | list[str]:
        """The letters that are meant."""
        if (self.filter is None) == (self.ids is None):
            raise InputError("give either a filter or ids; an empty filter means all letters that are open")
        if self.filter is None:
            return self.ids or []
        check_search_text(asked, self.filter.text)
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


@bulk_routes.post("/workflow-dlq/replay", status_code=202, **requires(Permission.DECIDE))
async def replay_letters(asked: Context, body: ReplayMany) -> LetterSet | DryRunOfMany:
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
        retry=parse_policy(body.override_retry_policy),
        new_operation=body.new_operation,
    )


@bulk_routes.post("/workflow-dlq/resolve", status_code=202, **requires(Permission.DECIDE))
async def resolve_letters(asked: Context, body: Many) -> LetterSet:
    """Resolve many letters."""
    return await asked.desk.dlq.resolve_many(
        body.letters(asked), by=asked.by, reason=body.reason, tenant=asked.one_tenant, rate=body.rate
    )


@bulk_routes.post("/workflow-dlq/ignore", status_code=202, **requires(Permission.DECIDE))
async def ignore_letters(asked: Context, body: Many) -> LetterSet:
    """Ignore many letters."""
    return await asked.desk.dlq.ignore_many(
        body.letters(asked), by=asked.by, reason=body.reason, tenant=asked.one_tenant, rate=body.rate
    )


@bulk_routes.get("/bulk-replays", **requires(Permission.LOOK))
async def list_sets(asked: Context, limit: Limit = 50, cursor: Cursor = None) -> Page[LetterSet]:
    """A page of decisions on many letters, the newest first."""
    return await asked.desk.dlq.sets(limit=limit, cursor=cursor)


@bulk_routes.get("/bulk-replays/{id}", **requires(Permission.LOOK))
async def show_set(asked: Context, id: Id) -> LetterSet:
    """A decision on many letters and how far it is."""
    return await asked.desk.dlq.set(id)


@bulk_routes.get("/bulk-replays/{id}/items", **requires(Permission.LOOK))
async def list_set_items(
    asked: Context,
    id: Id,
    status: Annotated[SetItemStatus | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[SetItem]:
    """A page of the letters of such a decision, with what became of each."""
    return await asked.desk.dlq.set_items(id, status=status, limit=limit, cursor=cursor)


@bulk_routes.post("/bulk-replays/{id}/stop", **requires(Permission.DECIDE))
async def stop_set(asked: Context, id: Id) -> LetterSet:
    """Decide on no further letter. What was decided stays so."""
    return await asked.desk.dlq.stop_set(id, by=asked.by)


@bulk_routes.post("/bulk-replays/{id}/pause", **requires(Permission.DECIDE))
async def pause_set(asked: Context, id: Id) -> LetterSet:
    """Decide on no further letter until it is resumed. What is in hand is finished."""
    return await asked.desk.dlq.pause_set(id, by=asked.by)


@bulk_routes.post("/bulk-replays/{id}/resume", **requires(Permission.DECIDE))
async def resume_set(asked: Context, id: Id) -> LetterSet:
    """Go on where it was paused."""
    return await asked.desk.dlq.resume_set(id, by=asked.by)


@bulk_routes.post("/bulk-replays/{id}/rate", **requires(Permission.DECIDE))
async def rate_set(asked: Context, id: Id, body: Pace) -> LetterSet:
    """Let it decide on at most so many letters from now on."""
    return await asked.desk.dlq.rate_set(id, body.rate, by=asked.by)
