"""Decisions on many letters: what one would do, how far it is, what became of each letter."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.replay import ReplayMode
from redrive.core.roles import Permission
from redrive.core.schedule import Rate, parse_rate
from redrive.desk.bulk import DryRunOfMany, LetterSet
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.server.pages import letters
from redrive.server.pages.forms import ACTION_FIELD, CHECK_ACTION, Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.replay_form import OUTPUT_MODES, ReplayForm, read_replay_form
from redrive.server.request import Context, RequestContext, requires
from redrive.server.routes.common import Id
from redrive.store.bulk import SetItemStatus
from redrive.store.filters import LetterFilter

bulk_routes = make_page_router()
BULK_PATH = "/admin/bulk-replays"
CONFIRM_ABOVE = 100
"""From so many letters on, their number is typed before anything is done."""

ACTIONS = ("REPLAY", "RESOLVE", "IGNORE")
_MODES = [ReplayMode.FROM_FAILED, ReplayMode.STEP_ONLY, ReplayMode.FULL, ReplayMode.SKIP]
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:[\s,.'][0-9]{3})+")
_PREVIEW_LIMIT = 10  # letters whose dry run a page waits for


class LetterSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters somebody means: some by their ids, or all that match."""

    ids: tuple[str, ...]
    query: dict[str, str]
    where: LetterFilter

    @property
    def letters(self) -> LetterFilter | list[str]:
        """What the desk takes."""
        return list(self.ids) or self.where


def _read_selection(asked: RequestContext, sent: Form) -> LetterSelection:
    ids = tuple(dict.fromkeys(sent.all("ids")))
    query = {name: sent.get(name) for name in letters.FILTER_NAMES if name != "status" and sent.get(name)}
    if not ids and not query and not sent.get("all"):
        raise InputError(Reason(ReasonCode.LETTERS_NOT_SELECTED))
    where = letters.make_letter_filter(asked, query)
    return LetterSelection(ids=ids, query=query, where=replace(where, tenant=asked.one_tenant))


class RateInput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How fast somebody wants it to go, as typed; no rate where nothing was typed, or it is `wrong`."""

    typed: str = ""
    unit: str = "s"
    rate: Rate | None = None
    wrong: bool = False


def _read_rate(sent: Form) -> RateInput:
    typed, unit = sent.get("rate"), sent.get("per", "s")
    if not typed:
        return RateInput(unit=unit)
    try:
        rate = parse_rate(typed if "/" in typed else f"{_strip_thousands(typed)}/{unit}")
    except InputError:
        return RateInput(typed=typed, unit=unit, wrong=True)
    return RateInput(typed=str(rate.count), unit=rate.unit, rate=rate)


def _strip_thousands(typed: str) -> str:
    """A number as people write it, without what keeps its thousands apart; a fraction stays one."""
    return _strip_separators(typed) if _THOUSANDS.fullmatch(typed) else typed


def _strip_separators(typed: str) -> str:
    return re.sub(r"[\s,.']", "", typed)


async def _count_selected(asked: RequestContext, meant: LetterSelection) -> int:
    return len(meant.ids) or await asked.view.count_letters(meant.where)


@bulk_routes.get(BULK_PATH, **requires(Permission.LOOK))
async def list_bulk(request: Request, asked: Context) -> Response:
    """Decisions on many letters, the newest first."""
    cursor = request.query_params.get("cursor")
    found = await asked.desk.dlq.sets(limit=25, cursor=cursor, tenant=asked.one_tenant)
    return await render_page(request, "sets.html", sets=found, path=BULK_PATH)


@bulk_routes.get(BULK_PATH + "/new", **requires(Permission.DECIDE))
async def show_new_bulk(request: Request, asked: Context) -> Response:
    """What a decision on many letters would do."""
    return await _render_plan(request, asked, Form(list(request.query_params.multi_items())), begun=True)


@bulk_routes.post(BULK_PATH + "/new", **requires(Permission.DECIDE))
async def submit_bulk(request: Request, asked: Context, sent: SentForm) -> Response:
    """Begin it, if what it would do was looked at and its number was confirmed; otherwise show it."""
    action, pace = _read_action(sent), _read_rate(sent)
    wish = await _read_form(sent, action)
    if (
        sent.get(ACTION_FIELD) == CHECK_ACTION
        or wish.unread
        or pace.wrong
        or sent.get("seen") != _compute_digest(action, wish)
    ):
        return await _render_plan(
            request, asked, sent, hurried=sent.get(ACTION_FIELD) != CHECK_ACTION and not pace.wrong
        )
    meant = _read_selection(asked, sent)
    if await _count_selected(asked, meant) > CONFIRM_ABOVE and _strip_separators(sent.get("confirm")) != sent.get(
        "total"
    ):
        return await _render_plan(request, asked, sent, unconfirmed=True)
    begun = await _start_bulk(asked, action, meant, wish, pace.rate)
    return redirect_to(make_view(request).url(f"{BULK_PATH}/{begun.id}"))


async def _start_bulk(
    asked: RequestContext, action: str, meant: LetterSelection, wish: ReplayForm, rate: Rate | None
) -> LetterSet:
    how: dict[str, Any] = {"by": asked.by, "reason": wish.reason, "tenant": asked.one_tenant}
    how["rate"] = None if rate is None else str(rate)
    if action == "RESOLVE":
        return await asked.desk.dlq.resolve_many(meant.letters, **how)
    if action == "IGNORE":
        return await asked.desk.dlq.ignore_many(meant.letters, **how)
    options = {**how, **_make_options(wish), "mode": wish.mode.value}
    begun: LetterSet = await asked.desk.dlq.replay_many(meant.letters, **options)
    return begun


def _read_action(sent: Form) -> str:
    return sent.get("action") if sent.get("action") in ACTIONS else ACTIONS[0]


async def _read_form(sent: Form, action: str, *, begun: bool = False) -> ReplayForm:
    """What each replay shall do; whatever else is decided needs a reason at most."""
    if action != "REPLAY":
        return ReplayForm(reason=sent.maybe("reason"))
    return await read_replay_form(sent, None, begun=begun)


def _make_options(wish: ReplayForm) -> dict[str, Any]:
    """Each letter keeps its own input; a patch changes the same fields in all."""
    options = wish.options()
    options["patch"] = options.pop("input")
    return options


def _compute_digest(action: str, wish: ReplayForm) -> str:
    return f"{action}-{wish.digest}"


async def _render_plan(
    request: Request,
    asked: RequestContext,
    sent: Form,
    *,
    begun: bool = False,
    hurried: bool = False,
    unconfirmed: bool = False,
) -> Response:
    meant, action, pace = _read_selection(asked, sent), _read_action(sent), _read_rate(sent)
    wish = await _read_form(sent, action, begun=begun)
    total = await _count_selected(asked, meant)
    plan, wrong = None, None
    if action == "REPLAY" and wish.is_whole:
        plan, wrong = await _preview_sample(asked, meant, wish)
    return await render_page(
        request,
        "set_new.html",
        status=422 if wrong or wish.unread or unconfirmed or pace.wrong else 200,
        meant=meant,
        total=total,
        wish=wish,
        pace=pace,
        action=action,
        actions=ACTIONS,
        modes=_MODES,
        plan=plan,
        going=0 if plan is None else plan.checked - len(plan.refused),
        effects=[] if plan is None else count_effects(plan),
        wrong=wrong,
        ready=total > 0 and not wish.unread and (action != "REPLAY" or plan is not None),
        seen=_compute_digest(action, wish),
        hurried=hurried and wrong is None and not wish.unread and not unconfirmed,
        unconfirmed=unconfirmed,
        typed=total > CONFIRM_ABOVE,
        gives=wish.mode in OUTPUT_MODES,
        path=BULK_PATH,
    )


async def _preview_sample(
    asked: RequestContext, meant: LetterSelection, wish: ReplayForm
) -> tuple[DryRunOfMany | None, Reason | None]:
    """What it would do to the first few, which stand for all."""
    ids = list(meant.ids[:_PREVIEW_LIMIT])
    if not ids:
        page = await asked.desk.dlq.list(meant.where, limit=_PREVIEW_LIMIT)
        ids = [letter.id for letter in page.items]
    if not ids:
        return None, None
    try:
        found = await asked.desk.dlq.replay_many(
            ids, mode=wish.mode.value, dry_run=True, tenant=asked.one_tenant, by=asked.by, **_make_options(wish)
        )
    except InputError as error:
        return None, Reason.of_error(error)
    assert isinstance(found, DryRunOfMany)
    return found, None


class EffectCount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a step does to the outside world, and in how many of the examples it would do so again."""

    step: str
    effect: str
    count: int


def count_effects(plan: DryRunOfMany) -> list[EffectCount]:
    """What would act on the outside world again in any example; one need not stand for all."""
    seen = Counter(
        each for dry in plan.sample if not dry.undoes for each in {(step.name, step.effect) for step in dry.effects}
    )
    return [EffectCount(step=step, effect=effect or "", count=count) for (step, effect), count in seen.most_common()]


@bulk_routes.get(BULK_PATH + "/{id}", **requires(Permission.LOOK))
async def show_bulk(request: Request, asked: Context, id: Id) -> Response:
    """How far a decision on many letters is, with what became of each."""
    return await _render_bulk(request, asked, id)


async def _render_bulk(request: Request, asked: RequestContext, id: str, pace: RateInput | None = None) -> Response:
    status = request.query_params.get("status", "")
    wanted = SetItemStatus(status) if status in set(SetItemStatus) else None
    found = await asked.desk.dlq.set(id, tenant=asked.one_tenant)
    items = await asked.desk.dlq.set_items(
        id, status=wanted, limit=50, cursor=request.query_params.get("cursor"), tenant=asked.one_tenant
    )
    return await render_page(
        request,
        "set.html",
        status=422 if pace is not None else 200,
        set=found,
        pace=pace or _make_rate_input(found),
        items=items,
        chosen=wanted,
        statuses=list(SetItemStatus),
        least=found.seconds_left,
        path=BULK_PATH,
        letters_path=letters.LETTERS_PATH,
    )


def _make_rate_input(found: LetterSet) -> RateInput:
    """The rate of a set as its form shows it."""
    if found.rate is None:
        return RateInput()
    rate = parse_rate(found.rate)
    return RateInput(typed=str(rate.count), unit=rate.unit, rate=rate)


@bulk_routes.post(BULK_PATH + "/{id}/stop", **requires(Permission.DECIDE))
async def stop_bulk(request: Request, asked: Context, id: Id) -> Response:
    """Decide on no further letter."""
    await asked.desk.dlq.stop_set(id, by=asked.by, tenant=asked.one_tenant)
    return redirect_to(make_view(request).url(f"{BULK_PATH}/{id}"))


@bulk_routes.post(BULK_PATH + "/{id}/pause", **requires(Permission.DECIDE))
async def pause_bulk(request: Request, asked: Context, id: Id) -> Response:
    """Decide on no further letter for the time being."""
    await asked.desk.dlq.pause_set(id, by=asked.by, tenant=asked.one_tenant)
    return redirect_to(make_view(request).url(f"{BULK_PATH}/{id}"))


@bulk_routes.post(BULK_PATH + "/{id}/resume", **requires(Permission.DECIDE))
async def resume_bulk(request: Request, asked: Context, id: Id) -> Response:
    """Go on where it was."""
    await asked.desk.dlq.resume_set(id, by=asked.by, tenant=asked.one_tenant)
    return redirect_to(make_view(request).url(f"{BULK_PATH}/{id}"))


@bulk_routes.post(BULK_PATH + "/{id}/rate", **requires(Permission.DECIDE))
async def change_bulk_rate(request: Request, asked: Context, id: Id, sent: SentForm) -> Response:
    """Go on faster or slower; what cannot be read is shown again."""
    pace = _read_rate(sent)
    if pace.wrong:
        return await _render_bulk(request, asked, id, pace)
    rate = None if pace.rate is None else str(pace.rate)
    await asked.desk.dlq.rate_set(id, rate, by=asked.by, tenant=asked.one_tenant)
    return redirect_to(make_view(request).url(f"{BULK_PATH}/{id}"))
