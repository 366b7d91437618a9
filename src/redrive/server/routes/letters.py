"""Routes for dead letters and for bulk actions on them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field

from redrive.core.roles import Permission
from redrive.core.states import LetterStatus
from redrive.desk.bulk import BulkAction, DryRunOfMany
from redrive.desk.groups import GroupList
from redrive.desk.letters import DeadLetters
from redrive.desk.models import DeadLetter
from redrive.desk.preview import DryRun
from redrive.desk.replays import Replay
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import (
    Body,
    Cursor,
    DryRunBody,
    Id,
    Key,
    Limit,
    ReasonBody,
    ReplayBody,
    Text,
    add_operations,
    check_index,
    check_search_text,
    make_router,
    read_filter,
    serve,
)
from redrive.store.bulk import BulkItemStatus
from redrive.store.filters import LetterFilter
from redrive.store.groups import GroupOrder

letter_routes = make_router("dead letters")
bulk_routes = make_router("decisions on many")
LongText = Annotated[str, Field(min_length=1, max_length=10_000)]
Mode = Literal["FROM_FAILED", "STEP_ONLY", "FROM_STEP", "SKIP", "FULL"]
StepIndex = Annotated[int | None, Field(ge=0, le=10_000)]


class Decision(ReplayBody):
    """A replay of a dead letter."""

    mode: Mode = "FROM_FAILED"
    from_step_index: StepIndex = None
    input: dict[str, Any] | None = None


class Output(DryRunBody):
    """The failed step's result, given by hand."""

    output: Any


_TEXT_HELP = (
    "Part of the error message, the reason, the correlation id or a search field. Needs the permission to see payloads."
)
# Before `/workflow-dlq/{id}`, which would take these paths.
add_operations(
    letter_routes,
    lambda context: context.desk.dlq,
    *(DeadLetters.list, DeadLetters.count, DeadLetters.facets),
    types={
        "filter": read_filter(
            LetterFilter,
            status=Annotated[list[LetterStatus] | None, Query(max_length=20)],
            text=Annotated[Text | None, Query(description=_TEXT_HELP)],
        )
    },
)


@serve(letter_routes, DeadLetters.groups)
async def list_groups(
    context: Context,
    status: Literal["OPEN", "ALL"] = "OPEN",
    muted: bool | None = None,
    sort: GroupOrder = GroupOrder.COUNT,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> GroupList:
    """Return a page of failures grouped by their cause, the one with most open letters first."""
    options: dict[str, Any] = {"status": None if status == "ALL" else status, "muted": muted, "sort": sort.value}
    return await context.desk.dlq.groups(context.one_tenant, limit=limit, cursor=cursor, **options)


add_operations(
    letter_routes,
    lambda context: context.desk.dlq,
    *(DeadLetters.group, DeadLetters.assign_group, DeadLetters.comment_group),
    *(DeadLetters.mute_group, DeadLetters.unmute_group),
    types={"text": LongText, "fingerprint": Id},
)


@serve(letter_routes, DeadLetters.get)
async def show_letter(context: Context, id: Id) -> DeadLetter:
    """Return one dead letter with its run's steps, every attempt, its replays and its history."""
    return await context.desk.dlq.get(id)


@letter_routes.post("/workflow-dlq/{id}/reveal", **requires(Permission.SEE_PAYLOADS, **{"x-own-key": True}))
async def reveal_letter(context: Context, id: Id) -> DeadLetter:
    """Return one dead letter without redaction; the audit log records who saw it."""
    return await context.desk.dlq.get(id, reveal=True, by=context.by)


@serve(letter_routes, DeadLetters.replay)
async def replay_letter(context: Context, id: Id, body: Decision | None = None, key: Key = None) -> Replay | DryRun:
    """Replay a dead-lettered run. The same decision sent again gets the same answer."""
    body = body or Decision()
    options = {"from_step": body.from_step_index, "idempotency_key": key, **body.read_options(context)}
    return await context.desk.dlq.replay(id, body.mode, dry_run=body.dry_run, **options)


@serve(letter_routes, DeadLetters.complete)
async def complete_letter(context: Context, id: Id, body: Output, key: Key = None) -> Replay | DryRun:
    """Give the failed step's result by hand, and continue the run with it."""
    options = {"output": body.output, "idempotency_key": key, **body.read_options(context)}
    return await context.desk.dlq.replay(id, "COMPLETE", dry_run=body.dry_run, **options)


add_operations(
    letter_routes,
    lambda context: context.desk.dlq,
    *(DeadLetters.resolve, DeadLetters.ignore, DeadLetters.reopen),
    *(DeadLetters.assign, DeadLetters.escalate, DeadLetters.comment, DeadLetters.tag),
    types={"text": LongText, "tags": Annotated[list[Text], Field(max_length=100)]},
)


class Filter(Body):
    """A filter of open letters. An empty one means all open letters."""

    code: Text | None = None
    stage: Text | None = None
    category: Text | None = None
    workflow: Text | None = None
    step: Text | None = None
    fingerprint: Text | None = None
    owner: Text | None = None
    tag: Text | None = None
    escalated: Text | None = None
    text: Text | None = None
    index: dict[str, str | int | float | bool | list[str]] | None = None
    since: datetime | None = None
    until: datetime | None = None


RateText = Annotated[
    str,
    Field(
        max_length=40, description="The most letters per second, minute or hour.", examples=["50/s", "600/m", "100/h"]
    ),
]


class Many(ReasonBody):
    """Letters by a filter or by their ids: one of the two."""

    filter: Filter | None = None
    ids: list[Annotated[str, Field(max_length=200)]] | None = Field(default=None, max_length=10_000)
    rate: RateText | None = None

    def letters(self, context: RequestContext) -> LetterFilter | list[str]:
        if (self.filter is None) == (self.ids is None):
            raise InputError(Reason(ReasonCode.LETTER_CHOICE_NEEDED))
        if self.filter is None:
            return self.ids or []
        check_search_text(context, self.filter.text)
        check_index(context, self.filter.index)
        return LetterFilter(**self.filter.model_dump())

    def read_options(self, context: RequestContext) -> dict[str, Any]:
        return {**super().read_options(context), "tenant": context.one_tenant, "rate": self.rate}


class ReplayMany(Many, ReplayBody):
    """A replay of many letters."""

    mode: Mode = "FROM_FAILED"
    from_step_index: StepIndex = None


@serve(bulk_routes, DeadLetters.replay_many)
async def replay_letters(context: Context, body: ReplayMany) -> BulkAction | DryRunOfMany:
    """Replay many letters, each at most once; workers execute it. `dry_run` counts and checks."""
    options = {"mode": body.mode, "from_step": body.from_step_index, **body.read_options(context)}
    return await context.desk.dlq.replay_many(body.letters(context), dry_run=body.dry_run, **options)


@serve(bulk_routes, DeadLetters.resolve_many)
async def resolve_letters(context: Context, body: Many) -> BulkAction:
    """Resolve many letters."""
    return await context.desk.dlq.resolve_many(body.letters(context), **body.read_options(context))


@serve(bulk_routes, DeadLetters.ignore_many)
async def ignore_letters(context: Context, body: Many) -> BulkAction:
    """Ignore many letters."""
    return await context.desk.dlq.ignore_many(body.letters(context), **body.read_options(context))


add_operations(
    bulk_routes,
    lambda context: context.desk.dlq,
    *(DeadLetters.sets, DeadLetters.set, DeadLetters.set_items),
    *(DeadLetters.stop_set, DeadLetters.pause_set, DeadLetters.resume_set, DeadLetters.rate_set),
    types={"status": Annotated[BulkItemStatus | None, Query()], "rate": RateText | None},
)
