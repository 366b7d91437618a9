"""Failures (dead letters): the list by cause, the list of all, and the page of one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.audit import REPLAY_EVENTS, event_label
from redrive.core.roles import Permission
from redrive.core.states import EXECUTED_KINDS, EntryKind, LetterStatus
from redrive.desk.models import AuditRecord, DeadLetter, LetterOutcome, ReplayRecord, Run, find_letter_outcome
from redrive.desk.saga import Ledger
from redrive.desk.saved_views import FILTER_FIELDS, ListName
from redrive.errors import InputError, NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages import lists
from redrive.server.pages.causes import CAUSES_PATH, render_causes
from redrive.server.pages.charts import plot_waterfall
from redrive.server.pages.forms import SentForm, make_page_router, redirect_to
from redrive.server.pages.render import add_list_columns, make_view, render_page
from redrive.server.pages.texts import N
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import Id, check_search_text, parse_index
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.letters import count_facets
from redrive.store.list_query import parse_states
from redrive.time_values import to_datetime

letter_routes = make_page_router()
LETTERS_PATH = CAUSES_PATH  # without a filter, failures are listed by cause
LETTER_PATH = LETTERS_PATH + "/{id}"
ALL_STATUSES = "ALL"
_MAX_WAITING = 5  # runs that wait for that of a failure, on its page
UNDO_SECONDS = 60
"""Seconds after the closing of a failure in which its page offers to undo that."""

FILTER_NAMES = FILTER_FIELDS[ListName.LETTERS]
"""The query parameters that filter a list of failures."""

DONE_MESSAGES = {
    "replayed": N("Retry started. This page updates as it runs."),
    "resolved": N("Marked as resolved."),
    "ignored": N("Marked as ignored."),
    "decided": N("The rollback continues. This page updates as it runs."),
    "reopened": N("Reopened. This failure needs a decision again."),
    "assigned": N("Assigned."),
    "escalated": N("Escalation saved."),
    "commented": N("Comment added."),
    "tagged": N("Tags saved."),
}
"""The message after an action, by the query parameter `done`."""

add_list_columns(
    "letters",
    ("status", "code", "failed_at", "attempts", "owner"),
    {
        "status": N("State"),
        "code": N("Reason"),
        "failed_at": N("Failed at"),
        "attempts": N("Attempts"),
        "owner": N("Assignee"),
        "correlation_id": N("Reference"),
        "category": N("Category"),
        "stage": N("Stage"),
        "version": N("Code version"),
        "id": N("ID"),
    },
)

_FILE_COLUMNS = lists.make_columns(
    *("id", "status", "workflow", "step", "code", "stage", "category", "reason", "error_type", "message", "failed_at"),
    *("attempts", "max_retries", "retry_policy_override", "error_code", "duration_ms", "replay_count"),
    *("failed_replays", "payload_hash", "owner", "tags", "tenant", "correlation_id", "run_id", "fingerprint"),
    *("version", "escalated_to", "closed_at", "closed_by", "resolution"),
)
_SORTS: dict[str, Callable[[DeadLetter], Any]] = {
    "name": lambda letter: (letter.step or letter.workflow, letter.workflow),
    **{name: attrgetter(name) for name in ("status", "code", "attempts", "owner", "correlation_id", "category")},
}
_OUTCOME_SENTENCES = {
    LetterOutcome.SUCCEEDED: N("The retry succeeded. Nothing more to do."),
    LetterOutcome.PARTLY_SUCCEEDED: N("The step was retried alone and succeeded. The run is not finished."),
    LetterOutcome.UNDONE: N("The run was rolled back. Nothing more to do."),
    LetterOutcome.CANCELLED: N("The retry was cancelled. Start a new run if the work is still needed."),
    LetterOutcome.REPLAY_RUNNING: N("A retry is running."),
    LetterOutcome.FAILED_AGAIN: N("The retry failed."),
    LetterOutcome.EXPIRED: N("No decision was made in time, so this failure expired. The work was not done."),
}
_OUTCOME_TITLES = {
    LetterOutcome.SUCCEEDED: N("{name} succeeded after a retry"),
    LetterOutcome.UNDONE: N("{name} failed and was rolled back"),
}
_ENTERED_TITLES = {"COMPLETE": N("{name} was done manually"), "SKIP": N("{name} was skipped")}
_ENTERED_SENTENCE = N("The run continued with the result that was entered. Nothing more to do.")
_RETRYABLE_OUTCOMES = frozenset(
    {LetterOutcome.PARTLY_SUCCEEDED, LetterOutcome.FAILED_AGAIN, LetterOutcome.EXPIRED, LetterOutcome.CLOSED}
)


def make_letter_filter(
    context: RequestContext, query: dict[str, str], faults: lists.Faults | None = None
) -> LetterFilter:
    """Return the filter for query parameters. Without a status it selects open letters.

    With `faults`, a field with a wrong value is noted there, and does not filter.
    """
    check_search_text(context, query.get("text"))
    now = to_datetime(context.view.now())

    def parse_status(text: str) -> str:
        if text != ALL_STATUSES:
            parse_states(text, LetterStatus)
        return text

    def parse_text(name: str) -> str | None:
        def parse(text: str) -> str:
            alone: dict[str, Any] = {name: text}
            LetterFilter(**alone)  # refuses a wrong value
            return text

        return lists.parse_field(query, name, parse, faults)

    status = lists.parse_field(query, "status", parse_status, faults) or LetterStatus.OPEN
    return LetterFilter(
        status=None if status == ALL_STATUSES else status,
        index=lists.parse_field(query, "index", lambda text: parse_index(context, [text]), faults),
        since=lists.parse_time(query, "since", now, faults),
        until=lists.parse_time(query, "until", now, faults),
        **{name: parse_text(name) for name in query if name not in ("status", "index", "since", "until")},
    )


@letter_routes.get(LETTERS_PATH, **requires(Permission.LOOK))
async def list_letters(request: Request, context: Context) -> Response:
    """Show failures by cause, or all that match a filter, or export those."""
    query, faults = lists.read_query(request, *FILTER_NAMES), lists.begin_faults(request)
    desk, where = context.desk.dlq, make_letter_filter(context, query, faults)
    if file := await lists.export_list(
        request, "dead-letters", _FILE_COLUMNS, lambda limit, cursor: desk.list(where, limit=limit, cursor=cursor)
    ):
        return file
    views = await lists.list_saved_views(context, ListName.LETTERS)
    if not query and request.query_params.get("view") != "items":
        return await render_causes(request, context, views)
    letters = await lists.load_page(
        request, context, where, lambda limit, cursor: desk.list(where, limit=limit, cursor=cursor), _SORTS
    )
    faults = faults or {}
    chosen = "OPEN" if "status" in faults else query.get("status", LetterStatus.OPEN.value)
    asked = {name: value for name, value in query.items() if name not in faults and name != "status"}
    return await render_page(
        request,
        "letters.html",
        status=422 if faults else 200,
        letters=letters,
        # A search for text reads row by row, so it is done for the list only.
        facets=count_facets([]) if "text" in query else await desk.facets(where),
        views=views,
        query=query,
        faults={**faults, **letters.faults},
        path=LETTERS_PATH,
        first="cursor" not in request.query_params,
        unselected=request.query_params.get("select") == "none",
        ranges=lists.TIME_RANGES,
        sizes=lists.PAGE_SIZES,
        statuses=[ALL_STATUSES, *LetterStatus],
        chosen=chosen,
        workflows=[item.name for item in await context.view.workflows()],
        commands=lists.make_commands(
            request,
            where,
            ["redrive", "dlq", "list", "--status", chosen],
            "/workflow-dlq",
            asked,
            **({} if chosen == ALL_STATUSES else {"status": chosen}),
        ),
    )


class OutcomeDisplay(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a closed failure. `sentence` is None if a user closed it; `retries`: its run can be retried.

    `reopens`: a user closed it, so a user can reopen it. `title`: the title of its page. `good`: nothing is left to do.
    """

    sentence: str | None = None
    retries: bool = False
    reopens: bool = False
    title: str = N("{name} failed")
    good: bool = False


def describe_outcome(letter: DeadLetter) -> OutcomeDisplay | None:
    """Return the outcome of a closed failure, None while it is not closed."""
    outcome = find_letter_outcome(letter)
    if outcome is None:
        return None
    retries = outcome in _RETRYABLE_OUTCOMES and not letter.purged
    reopens = outcome is LetterOutcome.CLOSED and not letter.purged
    title, sentence = _OUTCOME_TITLES.get(outcome, OutcomeDisplay().title), _OUTCOME_SENTENCES.get(outcome)
    mode = letter.replays[-1].mode if letter.replays else ""
    if outcome is LetterOutcome.SUCCEEDED and mode in _ENTERED_TITLES:
        title, sentence = _ENTERED_TITLES[mode], _ENTERED_SENTENCE
    good = outcome in (LetterOutcome.SUCCEEDED, LetterOutcome.UNDONE)
    return OutcomeDisplay(sentence=sentence, retries=retries, reopens=reopens, title=title, good=good)


class HistoryEntry(msgspec.Struct, frozen=True):
    """An action on a failure: a line of the audit log, or a replay with its outcome."""

    at: datetime
    by: str
    reason: str | None
    line: AuditRecord | None = None
    replay: ReplayRecord | None = None
    label: str = ""


@letter_routes.get(LETTER_PATH, **requires(Permission.LOOK))
async def show_letter(request: Request, context: Context, id: Id) -> Response:
    """Show one failure, or export it."""
    try:
        letter = await context.desk.dlq.get(id)
    except NotFound:
        # An owner may have followed a link from a notification about another tenant.
        if context.everywhere or not context.principal.may(Permission.MANAGE_TENANTS):
            raise
        row = await context.whole.letter(id)
        if row is None or row.tenant == context.tenant:
            raise
        return redirect_to(make_view(request).url(f"{LETTERS_PATH}/{id}", tenant=row.tenant))
    if request.query_params.get("format") == "json":
        return lists.export_rows(letter.id, "json", {"letter": lambda each: each}, [letter])
    return await _render_letter(request, context, letter, revealed=False)


@letter_routes.get(LETTER_PATH + "/reveal", **requires(Permission.LOOK))
async def hide_letter(request: Request, id: Id) -> Response:
    """Redirect from a page with revealed data, when it is reloaded, to the failure with hidden data."""
    return redirect_to(make_view(request).url(f"{LETTERS_PATH}/{id}"))


@letter_routes.post(LETTER_PATH + "/reveal", **requires(Permission.SEE_PAYLOADS))
async def reveal_letter(request: Request, context: Context, id: Id) -> Response:
    """Show one failure with all its data, and note that in the audit log."""
    letter = await context.desk.dlq.get(id, reveal=True, by=context.by)
    return await _render_letter(request, context, letter, revealed=True)


async def _render_letter(request: Request, context: RequestContext, letter: DeadLetter, *, revealed: bool) -> Response:
    view = make_view(request)
    replaying = letter.status is LetterStatus.REPLAYING
    done = request.query_params.get("done", "")
    run, ledger = await _load_run(context, letter)
    return await render_page(
        request,
        "letter.html",
        letter=letter,
        run=run,
        waiting=await context.desk.runs.list(RunFilter(waits_for=letter.run_id), limit=_MAX_WAITING),
        ledger=ledger,
        stopped=None if ledger is None else ledger.stopped_entry,
        fall=plot_waterfall(letter.steps, now=view.now if replaying else letter.failed_at),
        steps=[step for step in letter.steps if step.kind in EXECUTED_KINDS],
        history=make_history(letter, view.lang),
        open=letter.status is LetterStatus.OPEN,
        outcome=describe_outcome(letter),
        # The input is that of the failure; a retry may have corrected it.
        changes=[change for replay in letter.replays if replay.at >= letter.failed_at for change in replay.changes],
        # A retry that has ended is reported by its outcome.
        done=None if done in ("replayed", "decided") and not replaying else DONE_MESSAGES.get(done),
        undo=letter.closed_at is not None and (view.now - letter.closed_at).total_seconds() < UNDO_SECONDS,
        revealed=revealed,
        path=LETTERS_PATH,
    )


async def _load_run(context: RequestContext, letter: DeadLetter) -> tuple[Run | None, Ledger | None]:
    """Return the run of a letter and its rollback; None after the run was purged, or if it was not rolled back."""
    try:
        run = await context.desk.runs.get(letter.run_id)
    except NotFound:
        return None, None
    rolled_back = any(step.kind is EntryKind.UNDO for step in run.steps)
    return run, await context.desk.sagas.get(run.id) if rolled_back else None


def make_history(letter: DeadLetter, language: str) -> list[HistoryEntry]:
    """Return the actions on a failure, newest first; a replay appears once, with its outcome."""
    lines = [
        HistoryEntry(line.at, line.by, line.reason, line=line, label=event_label(line.event, language))
        for line in letter.history
        if line.event not in REPLAY_EVENTS
    ]
    replays = [HistoryEntry(replay.at, replay.by, replay.reason, replay=replay) for replay in letter.replays]
    return sorted([*lines, *replays], key=lambda entry: entry.at, reverse=True)


def _redirect_to_letter(request: Request, letter: DeadLetter, done: str) -> Response:
    return redirect_to(make_view(request).url(f"{LETTERS_PATH}/{letter.id}", done=done))


@letter_routes.post(LETTER_PATH + "/resolve", **requires(Permission.DECIDE))
async def resolve_letter(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    letter = await context.desk.dlq.resolve(id, by=context.by, reason=form.maybe("reason"))
    return _redirect_to_letter(request, letter, "resolved")


@letter_routes.post(LETTER_PATH + "/ignore", **requires(Permission.DECIDE))
async def ignore_letter(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    letter = await context.desk.dlq.ignore(id, by=context.by, reason=form.maybe("reason"))
    return _redirect_to_letter(request, letter, "ignored")


@letter_routes.post(LETTER_PATH + "/reopen", **requires(Permission.DECIDE))
async def reopen_letter(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    letter = await context.desk.dlq.reopen(id, by=context.by, reason=form.maybe("reason"))
    return _redirect_to_letter(request, letter, "reopened")


@letter_routes.post(LETTER_PATH + "/escalate", **requires(Permission.NOTE))
async def escalate_letter(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Escalate a failure to a role, a user or a channel; a blank field takes the escalation back."""
    to, reason = form.maybe("to"), form.maybe("reason")
    return _redirect_to_letter(
        request, await context.desk.dlq.escalate(id, to=to, by=context.by, reason=reason), "escalated"
    )


@letter_routes.post(LETTER_PATH + "/assign", **requires(Permission.NOTE))
async def assign_letter(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Assign a failure to a user; a blank field unassigns it."""
    assignee = context.by if form.get("do") == "me" else form.maybe("to")
    return _redirect_to_letter(request, await context.desk.dlq.assign(id, to=assignee, by=context.by), "assigned")


@letter_routes.post(LETTER_PATH + "/comment", **requires(Permission.NOTE))
async def comment_letter(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    if not form.get("text"):
        raise InputError(Reason(ReasonCode.COMMENT_NEEDED))
    letter = await context.desk.dlq.comment(id, form.get("text"), by=context.by)
    return _redirect_to_letter(request, letter, "commented")


@letter_routes.post(LETTER_PATH + "/tag", **requires(Permission.NOTE))
async def tag_letter(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    tags = [tag.strip() for tag in form.get("tags").replace("\n", ",").split(",")]
    letter = await context.desk.dlq.tag(id, [tag for tag in tags if tag], by=context.by)
    return _redirect_to_letter(request, letter, "tagged")
