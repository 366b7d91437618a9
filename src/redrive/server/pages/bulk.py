"""Decisions on many letters: what one would do, how far it is, what became of each letter."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.replay import Mode
from redrive.core.roles import Permission
from redrive.core.schedule import Rate, rate_of
from redrive.desk.bulk import DryRunOfMany, LetterSet
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.server.pages import letters
from redrive.server.pages.forms import CHECK, DO, Form, Sent, pages, to
from redrive.server.pages.render import show, view_of
from redrive.server.pages.replay_form import OUTPUTS, Wish, read_wish
from redrive.server.request import Asked, Asking, needs
from redrive.server.routes.common import Id
from redrive.store.bulk import SetItemStatus
from redrive.store.filters import LetterFilter

__all__ = ["Effect", "PATH", "TYPED_ABOVE", "effects_of", "sets_routes"]


sets_routes = pages()
PATH = "/admin/bulk-replays"
TYPED_ABOVE = 100
"""From so many letters on, their number is typed before anything is done."""

ACTIONS = ("REPLAY", "RESOLVE", "IGNORE")
_MODES = [Mode.FROM_FAILED, Mode.STEP_ONLY, Mode.FULL, Mode.SKIP]
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:[\s,.'][0-9]{3})+")
_LOOKED_AT = 10  # letters whose dry run a page waits for


class Meant(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters somebody means: some by their ids, or all that match."""

    ids: tuple[str, ...]
    query: dict[str, str]
    where: LetterFilter

    @property
    def letters(self) -> LetterFilter | list[str]:
        """What the desk takes."""
        return list(self.ids) or self.where


def _meant(asked: Asking, sent: Form) -> Meant:
    ids = tuple(dict.fromkeys(sent.all("ids")))
    query = {name: sent.get(name) for name in letters.NAMES if name != "status" and sent.get(name)}
    if not ids and not query and not sent.get("all"):
        raise InputError(Reason(ReasonCode.LETTERS_NOT_SELECTED))
    where = letters.filter_of(asked, query)
    return Meant(ids=ids, query=query, where=replace(where, tenant=asked.one_tenant))


class Pace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How fast somebody wants it to go, as typed; no rate where nothing was typed, or it is `wrong`."""

    typed: str = ""
    unit: str = "s"
    rate: Rate | None = None
    wrong: bool = False


def _pace(sent: Form) -> Pace:
    typed, unit = sent.get("rate"), sent.get("per", "s")
    if not typed:
        return Pace(unit=unit)
    try:
        rate = rate_of(typed if "/" in typed else f"{_whole(typed)}/{unit}")
    except InputError:
        return Pace(typed=typed, unit=unit, wrong=True)
    return Pace(typed=str(rate.count), unit=rate.unit, rate=rate)


def _whole(typed: str) -> str:
    """A number as people write it, without what keeps its thousands apart; a fraction stays one."""
    return _digits(typed) if _THOUSANDS.fullmatch(typed) else typed


def _digits(typed: str) -> str:
    return re.sub(r"[\s,.']", "", typed)


async def _count(asked: Asking, meant: Meant) -> int:
    return len(meant.ids) or await asked.view.count_letters(meant.where)


@sets_routes.get(PATH, **needs(Permission.LOOK))
async def list_sets(request: Request, asked: Asked) -> Response:
    """Decisions on many letters, the newest first."""
    cursor = request.query_params.get("cursor")
    found = await asked.desk.dlq.sets(limit=25, cursor=cursor, tenant=asked.one_tenant)
    return await show(request, "sets.html", sets=found, path=PATH)


@sets_routes.get(PATH + "/new", **needs(Permission.DECIDE))
async def ask(request: Request, asked: Asked) -> Response:
    """What a decision on many letters would do."""
    return await _plan(request, asked, Form(list(request.query_params.multi_items())), begun=True)


@sets_routes.post(PATH + "/new", **needs(Permission.DECIDE))
async def decide(request: Request, asked: Asked, sent: Sent) -> Response:
    """Begin it, if what it would do was looked at and its number was confirmed; otherwise show it."""
    action, pace = _action(sent), _pace(sent)
    wish = await _wish(sent, action)
    if sent.get(DO) == CHECK or wish.unread or pace.wrong or sent.get("seen") != _digest(action, wish):
        return await _plan(request, asked, sent, hurried=sent.get(DO) != CHECK and not pace.wrong)
    meant = _meant(asked, sent)
    if await _count(asked, meant) > TYPED_ABOVE and _digits(sent.get("confirm")) != sent.get("total"):
        return await _plan(request, asked, sent, unconfirmed=True)
    begun = await _begin(asked, action, meant, wish, pace.rate)
    return to(view_of(request).url(f"{PATH}/{begun.id}"))


async def _begin(asked: Asking, action: str, meant: Meant, wish: Wish, rate: Rate | None) -> LetterSet:
    how: dict[str, Any] = {"by": asked.by, "reason": wish.reason, "tenant": asked.one_tenant}
    how["rate"] = None if rate is None else str(rate)
    if action == "RESOLVE":
        return await asked.desk.dlq.resolve_many(meant.letters, **how)
    if action == "IGNORE":
        return await asked.desk.dlq.ignore_many(meant.letters, **how)
    options = {**how, **_options(wish), "mode": wish.mode.value}
    begun: LetterSet = await asked.desk.dlq.replay_many(meant.letters, **options)
    return begun


def _action(sent: Form) -> str:
    return sent.get("action") if sent.get("action") in ACTIONS else ACTIONS[0]


async def _wish(sent: Form, action: str, *, begun: bool = False) -> Wish:
    """What each replay shall do; whatever else is decided needs a reason at most."""
    if action != "REPLAY":
        return Wish(reason=sent.maybe("reason"))
    return await read_wish(sent, None, begun=begun)


def _options(wish: Wish) -> dict[str, Any]:
    """Each letter keeps its own input; a patch changes the same fields in all."""
    options = wish.options()
    options["patch"] = options.pop("input")
    return options


def _digest(action: str, wish: Wish) -> str:
    return f"{action}-{wish.digest}"


async def _plan(
    request: Request,
    asked: Asking,
    sent: Form,
    *,
    begun: bool = False,
    hurried: bool = False,
    unconfirmed: bool = False,
) -> Response:
    meant, action, pace = _meant(asked, sent), _action(sent), _pace(sent)
    wish = await _wish(sent, action, begun=begun)
    total = await _count(asked, meant)
    plan, wrong = None, None
    if action == "REPLAY" and wish.is_whole:
        plan, wrong = await _dry(asked, meant, wish)
    return await show(
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
        effects=[] if plan is None else effects_of(plan),
        wrong=wrong,
        ready=total > 0 and not wish.unread and (action != "REPLAY" or plan is not None),
        seen=_digest(action, wish),
        hurried=hurried and wrong is None and not wish.unread and not unconfirmed,
        unconfirmed=unconfirmed,
        typed=total > TYPED_ABOVE,
        gives=wish.mode in OUTPUTS,
        path=PATH,
    )


async def _dry(asked: Asking, meant: Meant, wish: Wish) -> tuple[DryRunOfMany | None, Reason | None]:
    """What it would do to the first few, which stand for all."""
    ids = list(meant.ids[:_LOOKED_AT])
    if not ids:
        page = await asked.desk.dlq.list(meant.where, limit=_LOOKED_AT)
        ids = [letter.id for letter in page.items]
    if not ids:
        return None, None
    try:
        found = await asked.desk.dlq.replay_many(
            ids, mode=wish.mode.value, dry_run=True, tenant=asked.one_tenant, by=asked.by, **_options(wish)
        )
    except InputError as error:
        return None, Reason.of_error(error)
    assert isinstance(found, DryRunOfMany)
    return found, None


class Effect(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a step does to the outside world, and in how many of the examples it would do so again."""

    step: str
    effect: str
    count: int


def effects_of(plan: DryRunOfMany) -> list[Effect]:
    """What would act on the outside world again in any example; one need not stand for all."""
    seen = Counter(
        each
        for dry in plan.sample
        if not dry.undoes
        for each in {(step.name, step.effect) for step in dry.effects}
    )
    return [
        Effect(step=step, effect=effect or "", count=count) for (step, effect), count in seen.most_common()
    ]


@sets_routes.get(PATH + "/{id}", **needs(Permission.LOOK))
async def one(request: Request, asked: Asked, id: Id) -> Response:
    """How far a decision on many letters is, with what became of each."""
    return await _page(request, asked, id)


async def _page(request: Request, asked: Asking, id: str, pace: Pace | None = None) -> Response:
    status = request.query_params.get("status", "")
    wanted = SetItemStatus(status) if status in set(SetItemStatus) else None
    found = await asked.desk.dlq.set(id, tenant=asked.one_tenant)
    items = await asked.desk.dlq.set_items(
        id, status=wanted, limit=50, cursor=request.query_params.get("cursor"), tenant=asked.one_tenant
    )
    return await show(
        request,
        "set.html",
        status=422 if pace is not None else 200,
        set=found,
        pace=pace or _told(found),
        items=items,
        chosen=wanted,
        statuses=list(SetItemStatus),
        least=found.seconds_left,
        path=PATH,
        letters_path=letters.PATH,
    )


def _told(found: LetterSet) -> Pace:
    """The rate of a set as its form shows it."""
    if found.rate is None:
        return Pace()
    rate = rate_of(found.rate)
    return Pace(typed=str(rate.count), unit=rate.unit, rate=rate)


@sets_routes.post(PATH + "/{id}/stop", **needs(Permission.DECIDE))
async def stop(request: Request, asked: Asked, id: Id) -> Response:
    """Decide on no further letter."""
    await asked.desk.dlq.stop_set(id, by=asked.by, tenant=asked.one_tenant)
    return to(view_of(request).url(f"{PATH}/{id}"))


@sets_routes.post(PATH + "/{id}/pause", **needs(Permission.DECIDE))
async def pause(request: Request, asked: Asked, id: Id) -> Response:
    """Decide on no further letter for the time being."""
    await asked.desk.dlq.pause_set(id, by=asked.by, tenant=asked.one_tenant)
    return to(view_of(request).url(f"{PATH}/{id}"))


@sets_routes.post(PATH + "/{id}/resume", **needs(Permission.DECIDE))
async def resume(request: Request, asked: Asked, id: Id) -> Response:
    """Go on where it was."""
    await asked.desk.dlq.resume_set(id, by=asked.by, tenant=asked.one_tenant)
    return to(view_of(request).url(f"{PATH}/{id}"))


@sets_routes.post(PATH + "/{id}/rate", **needs(Permission.DECIDE))
async def change_rate(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Go on faster or slower; what cannot be read is shown again."""
    pace = _pace(sent)
    if pace.wrong:
        return await _page(request, asked, id, pace)
    rate = None if pace.rate is None else str(pace.rate)
    await asked.desk.dlq.rate_set(id, rate, by=asked.by, tenant=asked.one_tenant)
    return to(view_of(request).url(f"{PATH}/{id}"))
