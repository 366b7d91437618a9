"""Bulk actions on failures: the preview, the progress, and the result of each failure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.bulk_rate import Rate, parse_rate
from redrive.core.replay_plan import ReplayMode
from redrive.core.roles import Permission
from redrive.desk.bulk import BulkAction, DryRunOfMany
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.server.pages import letters
from redrive.server.pages.forms import ACTION_FIELD, CHECK_ACTION, Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view, render_page
from redrive.server.pages.replay_form import OUTPUT_MODES, ReplayForm, read_replay_form
from redrive.server.pages.texts import CODES, FILTERS, N, Translator
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import Id
from redrive.store.bulk import BulkItemStatus
from redrive.store.filters import LetterFilter

bulk_routes = make_page_router()
BULK_PATH = "/admin/bulk-replays"
CONFIRM_ABOVE = 100
"""The number of failures above which the user types it to confirm."""

ACTION_NAMES = {"REPLAY": N("Retry"), "RESOLVE": N("Resolve"), "IGNORE": N("Ignore")}
ACTIONS = tuple(ACTION_NAMES)
_MODES = [ReplayMode.FROM_FAILED, ReplayMode.STEP_ONLY, ReplayMode.FULL, ReplayMode.SKIP]
_SEPARATORS = re.compile(r"[\s,.']")
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:[\s,.'][0-9]{3})+")
_KIND_FIELDS = frozenset({"step", "workflow", "code", "category", "fingerprint"})
_PREVIEW_LIMIT = 10  # failures whose dry run the page waits for


class LetterSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The failures of a bulk action: some by id, or all that match a filter."""

    ids: tuple[str, ...]
    query: dict[str, str]
    where: LetterFilter
    total: int


async def _read_selection(context: RequestContext, form: Form) -> LetterSelection:
    ids = tuple(dict.fromkeys(form.all("ids")))
    query = {name: form.get(name) for name in letters.FILTER_NAMES if name != "status" and form.get(name)}
    if not ids and not query and not form.get("all"):
        raise InputError(Reason(ReasonCode.LETTERS_NOT_SELECTED))
    where = replace(letters.make_letter_filter(context, query), tenant=context.one_tenant)
    total = len(ids) or await context.view.count_letters(where)
    return LetterSelection(ids=ids, query=query, where=where, total=total)


class RateInput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A rate limit as it was typed. Without a rate nothing was typed, or it is `wrong`."""

    typed: str = ""
    unit: str = "s"
    rate: str | None = None
    wrong: bool = False


def _read_rate(form: Form) -> RateInput:
    typed, unit = form.get("rate"), form.get("per", "s")
    if not typed:
        return RateInput(unit=unit)
    # A separator of thousands is removed; one of decimals stays, and is refused.
    number = _SEPARATORS.sub("", typed) if _THOUSANDS.fullmatch(typed) else typed
    try:
        return _make_rate_input(parse_rate(typed if "/" in typed else f"{number}/{unit}"))
    except InputError:
        return RateInput(typed=typed, unit=unit, wrong=True)


def _make_rate_input(rate: Rate) -> RateInput:
    return RateInput(typed=str(rate.count), unit=rate.unit, rate=str(rate))


async def name_bulk_actions(context: RequestContext, t: Translator, sets: Sequence[BulkAction]) -> dict[str, str]:
    """Return the names of bulk actions by their ids, such as `Retry: call_llm, service down`."""
    kinds = await _describe_filters(context, t, [each.filter for each in sets if each.filter is not None])
    selected = "{n} selected failure|{n} selected failures"
    return {
        each.id: f"{t(ACTION_NAMES[each.action])}: {t(selected, n=each.total) if each.filter is None else next(kinds)}"
        for each in sets
    }


async def _describe_filters(
    context: RequestContext, t: Translator, filters: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    """Return what each filter selects, such as `call_llm, service down`."""
    kinds: dict[str, dict[str, str]] = {}  # the kind of failure of each cause, looked up once
    for fingerprint in {each["fingerprint"] for each in filters if "fingerprint" in each}:
        where = LetterFilter(tenant=context.one_tenant, fingerprint=fingerprint)
        for letter in (await context.desk.dlq.list(where, limit=1)).items:
            kinds[letter.fingerprint] = {"step": letter.step or letter.workflow, "code": letter.code, "workflow": ""}
    return (_describe_kind(t, {**each, **kinds.get(each.get("fingerprint", ""), {})}) for each in filters)


def _describe_kind(t: Translator, fields: Mapping[str, str]) -> str:
    code = t(CODES.get(fields.get("code", ""), ""))
    parts = [fields.get("step"), fields.get("workflow"), f"{code[:1].lower()}{code[1:]}", fields.get("category")]
    parts += [
        f"{t(FILTERS[name])}: {value.replace('T', ' ')[:16] if name in ('since', 'until') else value}"
        for name, value in fields.items()
        if name in FILTERS and name not in _KIND_FIELDS
    ]
    return ", ".join(part for part in parts if part) or t("all failures")


@bulk_routes.get(BULK_PATH, **requires(Permission.LOOK))
async def list_bulk(request: Request, context: Context) -> Response:
    cursor = request.query_params.get("cursor")
    found = await context.desk.dlq.sets(limit=25, cursor=cursor, tenant=context.one_tenant)
    names = await name_bulk_actions(context, make_view(request).t, found.items)
    return await render_page(request, "bulk_list.html", sets=found, names=names, path=BULK_PATH)


@bulk_routes.get(BULK_PATH + "/new", **requires(Permission.DECIDE))
async def show_new_bulk(request: Request, context: Context) -> Response:
    """Show the form of a bulk action, with a preview; without a selection, the list again."""
    form = Form(list(request.query_params.multi_items()))
    back = form.get("list")
    if not form.all("ids") and back.startswith(f"{make_view(request).root}{letters.LETTERS_PATH}?"):
        return redirect_to(f"{back}&select=none")
    return await _render_plan(request, context, form, begun=True)


@bulk_routes.post(BULK_PATH + "/new", **requires(Permission.DECIDE))
async def submit_bulk(request: Request, context: Context, form: SentForm) -> Response:
    """Start a bulk action if its preview was seen and its number confirmed; otherwise show it."""
    action, rate = _read_action(form), _read_rate(form)
    replay = await _read_replay(form, action)
    checks = form.get(ACTION_FIELD) == CHECK_ACTION
    if checks or replay.unread or rate.wrong or form.get("seen") != f"{action}-{replay.digest}":
        return await _render_plan(request, context, form, hurried=not checks and not rate.wrong)
    selection = await _read_selection(context, form)
    if selection.total > CONFIRM_ABOVE and _SEPARATORS.sub("", form.get("confirm")) != form.get("total"):
        return await _render_plan(request, context, form, unconfirmed=True)
    target = list(selection.ids) or selection.where
    options: dict[str, Any] = {"by": context.by, "reason": replay.reason, "tenant": context.one_tenant}
    if action == "REPLAY":
        options |= {"mode": replay.mode.value, **_make_options(replay)}
    start = getattr(context.desk.dlq, f"{action.lower()}_many")
    started = await start(target, rate=rate.rate, **options)
    return redirect_to(make_view(request).url(f"{BULK_PATH}/{started.id}"))


def _read_action(form: Form) -> str:
    return form.get("action") if form.get("action") in ACTIONS else ACTIONS[0]


async def _read_replay(form: Form, action: str, *, begun: bool = False) -> ReplayForm:
    """Return the replay of each failure; other actions have only a reason."""
    if action != "REPLAY":
        return ReplayForm(reason=form.maybe("reason"))
    return await read_replay_form(form, None, begun=begun)


def _make_options(replay: ReplayForm) -> dict[str, Any]:
    """Return the options of `replay_many`: each failure keeps its own input, and a patch changes fields in all."""
    options = replay.options()
    options["patch"] = options.pop("input")
    return options


async def _render_plan(
    request: Request,
    context: RequestContext,
    form: Form,
    *,
    begun: bool = False,
    hurried: bool = False,
    unconfirmed: bool = False,
) -> Response:
    selection, action, rate = await _read_selection(context, form), _read_action(form), _read_rate(form)
    replay = await _read_replay(form, action, begun=begun)
    plan, wrong = None, None
    if action == "REPLAY" and replay.is_whole:
        try:
            plan = await _preview_sample(context, selection, replay)
        except InputError as error:
            wrong = Reason.of_error(error)
    return await render_page(
        request,
        "bulk_new.html",
        status=422 if wrong or replay.unread or unconfirmed or rate.wrong else 200,
        selection=selection,
        what=next(await _describe_filters(context, make_view(request).t, [selection.query])),
        total=selection.total,
        replay=replay,
        rate=rate,
        action=action,
        modes=_MODES,
        plan=plan,
        going=0 if plan is None else plan.checked - len(plan.refused),
        effects=[] if plan is None else count_effects(plan),
        wrong=wrong,
        ready=selection.total > 0 and not replay.unread and (action != "REPLAY" or plan is not None),
        seen=f"{action}-{replay.digest}",
        hurried=hurried and wrong is None and not replay.unread and not unconfirmed,
        unconfirmed=unconfirmed,
        confirms=selection.total > CONFIRM_ABOVE,
        needs_output=replay.mode in OUTPUT_MODES,
        path=BULK_PATH,
    )


async def _preview_sample(
    context: RequestContext, selection: LetterSelection, replay: ReplayForm
) -> DryRunOfMany | None:
    """Return the dry run of the first few failures, None without any."""
    desk, ids = context.desk.dlq, list(selection.ids[:_PREVIEW_LIMIT])
    ids = ids or [letter.id for letter in (await desk.list(selection.where, limit=_PREVIEW_LIMIT)).items]
    if not ids:
        return None
    options = {"tenant": context.one_tenant, "by": context.by, **_make_options(replay)}
    found = await desk.replay_many(ids, mode=replay.mode.value, dry_run=True, **options)
    assert isinstance(found, DryRunOfMany)
    return found


class EffectCount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call of an external service, and the number of previewed failures that would repeat it."""

    step: str
    effect: str
    count: int


def count_effects(plan: DryRunOfMany) -> list[EffectCount]:
    """Return the calls of external services that any of the previewed failures would repeat."""
    seen = Counter(
        each for dry in plan.sample if not dry.undoes for each in {(step.name, step.effect) for step in dry.effects}
    )
    return [EffectCount(step=step, effect=effect or "", count=count) for (step, effect), count in seen.most_common()]


@bulk_routes.get(BULK_PATH + "/{id}", **requires(Permission.LOOK))
async def show_bulk(request: Request, context: Context, id: Id) -> Response:
    """Show the progress of a bulk action, and the result of each failure."""
    return await _render_bulk(request, context, id)


async def _render_bulk(request: Request, context: RequestContext, id: str, rate: RateInput | None = None) -> Response:
    status = request.query_params.get("status", "")
    chosen = BulkItemStatus(status) if status in set(BulkItemStatus) else None
    found = await context.desk.dlq.set(id, tenant=context.one_tenant)
    items = await context.desk.dlq.set_items(
        id, status=chosen, limit=50, cursor=request.query_params.get("cursor"), tenant=context.one_tenant
    )
    current = RateInput() if found.rate is None else _make_rate_input(parse_rate(found.rate))
    return await render_page(
        request,
        "bulk.html",
        status=422 if rate is not None else 200,
        set=found,
        name=(await name_bulk_actions(context, make_view(request).t, [found]))[found.id],
        rate=rate or current,
        items=items,
        chosen=chosen,
        statuses=list(BulkItemStatus),
        path=BULK_PATH,
        letters_path=letters.LETTERS_PATH,
    )


@bulk_routes.post(BULK_PATH + "/{id}/rate", **requires(Permission.DECIDE))
async def change_bulk_rate(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Change the rate limit of a bulk action, or show an invalid one again."""
    rate = _read_rate(form)
    if rate.wrong:
        return await _render_bulk(request, context, id, rate)
    await context.desk.dlq.rate_set(id, rate.rate, by=context.by, tenant=context.one_tenant)
    return redirect_to(make_view(request).url(f"{BULK_PATH}/{id}"))


def _add_change_route(verb: str) -> None:
    async def change_bulk(request: Request, context: Context, id: Id) -> Response:
        await getattr(context.desk.dlq, f"{verb}_set")(id, by=context.by, tenant=context.one_tenant)
        return redirect_to(make_view(request).url(f"{BULK_PATH}/{id}"))

    bulk_routes.post(f"{BULK_PATH}/{{id}}/{verb}", **requires(Permission.DECIDE))(change_bulk)


for verb in ("stop", "pause", "resume"):
    _add_change_route(verb)
