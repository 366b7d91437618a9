"""Causes: failures by cause, the page of one cause, and charts of failures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, time
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.audit import event_label
from redrive.core.roles import Permission
from redrive.core.states import LetterStatus
from redrive.desk.groups import FailureGroup
from redrive.desk.saved_views import SavedView
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.charts import CHART_RANGES, Chart, plot_failures
from redrive.server.pages.forms import Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.texts import N
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import Id
from redrive.store.filters import GroupFilter, LetterFilter
from redrive.store.groups import GroupOrder
from redrive.time_values import to_datetime

cause_routes = make_page_router()
CAUSES_PATH = "/admin/dlq"
CAUSE_PATH = CAUSES_PATH + "/causes/{fingerprint}"
DEFAULT_RANGE = "24h"
_PAGE_SIZE = 25
_MAX_LATEST = 5
_DONE_MESSAGES = {
    "assigned": N("Assigned."),
    "commented": N("Comment added."),
    "muted": N("Muted. It is not counted on the overview, and sends no notifications."),
    "unmuted": N("No longer muted."),
}


def read_range(request: Request) -> str:
    """Return the span of time that the charts of a page show."""
    chosen = request.query_params.get("range", "")
    return chosen if chosen in CHART_RANGES else DEFAULT_RANGE


async def chart_failures(context: RequestContext, chosen: str, fingerprint: str | None = None) -> Chart:
    """Return the chart of the failures of a tenant, or of one cause."""
    wanted = CHART_RANGES[chosen]
    where = GroupFilter(tenant=context.one_tenant, status=None, fingerprint=fingerprint)
    counts = await context.view.failure_counts(where, seconds=wanted.seconds, slots=wanted.slots)
    return plot_failures(counts, wanted, to_datetime(context.view.now()))


def find_highest_trend(groups: Sequence[FailureGroup]) -> int:
    """Return the highest number of failures in an hour, so that all sparklines of a list have one scale."""
    return max((max(group.trend, default=0) for group in groups), default=0)


async def render_causes(request: Request, context: RequestContext, views: list[SavedView]) -> Response:
    """Show failures by cause. The address holds the order, and whether muted causes are shown."""
    given = request.query_params
    sort = given["sort"] if given.get("sort") in set(GroupOrder) else GroupOrder.COUNT.value
    muted = given.get("muted") == "yes"
    before = int(given["before"]) if given.get("before", "").isdecimal() and len(given["before"]) < 7 else 0
    groups = await context.desk.dlq.groups(
        context.one_tenant, muted=muted, sort=sort, limit=_PAGE_SIZE, cursor=given.get("cursor")
    )
    totals = await context.view.group_totals(GroupFilter(tenant=context.one_tenant))
    return await render_page(
        request,
        "groups.html",
        groups=groups,
        totals=totals,
        highest=find_highest_trend(groups.items),
        sort=sort,
        muted=muted,
        size=_PAGE_SIZE,
        before=before,
        more=max(0, groups.total - before - len(groups.items)),
        path=CAUSES_PATH,
        views=views,
        query={},
    )


@cause_routes.get(CAUSE_PATH, **requires(Permission.LOOK))
async def show_cause(request: Request, context: Context, fingerprint: Id) -> Response:
    """Show one cause: its error, its failures over time, who works on it, and what was done about it."""
    return await _render_cause(request, context, fingerprint)


async def _render_cause(
    request: Request, context: RequestContext, fingerprint: str, wrong: Reason | None = None, form: Form | None = None
) -> Response:
    cause = await context.desk.dlq.group(fingerprint, tenant=context.one_tenant)
    chosen = read_range(request)
    # A token for some workflows must name one; a cause has one.
    where = LetterFilter(fingerprint=fingerprint, workflow=cause.workflows[0], status=LetterStatus.OPEN)
    latest = await context.desk.dlq.list(where, limit=_MAX_LATEST)
    return await render_page(
        request,
        "cause.html",
        status=200 if wrong is None else 422,
        cause=cause,
        failures=await chart_failures(context, chosen, fingerprint),
        range=chosen,
        latest=latest.items,
        path=CAUSES_PATH,
        here=CAUSE_PATH.format(fingerprint=fingerprint),
        done=_DONE_MESSAGES.get(request.query_params.get("done", "")),
        wrong=wrong,
        label=event_label,
        typed=form or Form([]),
    )


def _redirect_to_cause(request: Request, fingerprint: str, done: str) -> Response:
    return redirect_to(make_view(request).url(CAUSE_PATH.format(fingerprint=fingerprint), done=done))


@cause_routes.post(CAUSE_PATH + "/assign", **requires(Permission.NOTE))
async def assign_cause(request: Request, context: Context, fingerprint: Id, form: SentForm) -> Response:
    to = context.by if form.get("do") == "me" else form.maybe("to")
    await context.desk.dlq.assign_group(fingerprint, to=to, **_make_options(context))
    return _redirect_to_cause(request, fingerprint, "assigned")


@cause_routes.post(CAUSE_PATH + "/comment", **requires(Permission.NOTE))
async def comment_cause(request: Request, context: Context, fingerprint: Id, form: SentForm) -> Response:
    await context.desk.dlq.comment_group(fingerprint, form.get("text"), **_make_options(context))
    return _redirect_to_cause(request, fingerprint, "commented")


@cause_routes.post(CAUSE_PATH + "/mute", **requires(Permission.DECIDE))
async def mute_cause(request: Request, context: Context, fingerprint: Id, form: SentForm) -> Response:
    """Mute a cause until it grows, or until a date. A date that is not valid is shown again with the reason."""
    try:
        until = _read_date(form) if form.get("how") == "date" else None
        await context.desk.dlq.mute_group(
            fingerprint, until=until, reason=form.maybe("reason"), **_make_options(context)
        )
    except InputError as error:
        return await _render_cause(request, context, fingerprint, Reason.of_error(error), form)
    return _redirect_to_cause(request, fingerprint, "muted")


@cause_routes.post(CAUSE_PATH + "/unmute", **requires(Permission.DECIDE))
async def unmute_cause(request: Request, context: Context, fingerprint: Id) -> Response:
    await context.desk.dlq.unmute_group(fingerprint, **_make_options(context))
    return _redirect_to_cause(request, fingerprint, "unmuted")


def _make_options(context: RequestContext) -> dict[str, Any]:
    return {"by": context.by, "tenant": context.one_tenant}


def _read_date(form: Form) -> datetime:
    """Return the beginning of the day that was typed, in UTC."""
    try:
        day = datetime.strptime(form.get("until"), "%Y-%m-%d").date()  # noqa: DTZ007 - a day has no zone
    except ValueError:
        raise InputError(Reason(ReasonCode.MUTE_DATE_INVALID)) from None
    return datetime.combine(day, time(), UTC)
