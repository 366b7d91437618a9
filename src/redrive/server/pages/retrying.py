"""Running a run again, or undoing it: first what that would do, then the decision."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.core.typed import read_typed
from redrive.desk.aside import aside
from redrive.desk.preview import DryRun
from redrive.desk.replaying import Replay
from redrive.errors import Conflict, InputError, NotFound
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode
from redrive.server.asking import Asked, Asking, needs
from redrive.server.pages.drawing import show, view_of
from redrive.server.pages.forms import Sent, pages, to
from redrive.server.pages.words import N
from redrive.server.routes.shared import Id

__all__ = ["WAYS", "retrying_routes"]

retrying_routes = pages()


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a run again: its name, what it does in plain words, and the button for it."""

    title: str
    means: str
    button: str
    icon: str = "again"


WAYS = {
    "from_failed": Way(
        N("Retry from the failed step"),
        N("Same run. What succeeded is kept; the failed step is tried again, and then the rest follows."),
        N("Retry from the failed step"),
    ),
    "full": Way(
        N("Retry the whole run"),
        N("A new run with the same input. Every step is done again, with the keys of the first time."),
        N("Start it anew"),
    ),
    "skip_failed": Way(
        N("Skip the failed step"),
        N("Same run. The failed step is not called; what you give here is taken for its result."),
        N("Skip the step"),
        "skip",
    ),
    "rollback": Way(
        N("Roll back"),
        N("What the run did is undone, the last step first. Afterwards it can no longer be retried."),
        N("Roll it back"),
        "undo",
    ),
}


@retrying_routes.get("/runs/{id}/again", **needs(Permission.DECIDE))
async def plan(
    request: Request, asked: Asked, id: Id, way: str = "from_failed", output: str | None = None
) -> Response:
    """What it would do to run a run again; for a skip, once it is known what is given."""
    return await _plan(request, asked, id, way, output, None)


@retrying_routes.post("/runs/{id}/again", **needs(Permission.DECIDE))
async def again(request: Request, asked: Asked, id: Id, sent: Sent) -> Response:
    """Run a run again; what was typed wrongly is shown again, with what is wrong with it."""
    way, output = _known(sent.get("way", "from_failed")), sent.maybe("output")
    options = {"reason": sent.maybe("reason"), "new_operation": bool(sent.get("new_operation"))}
    try:
        decided = await _ask(asked, id, way, output, **options)
    except (InputError, Conflict) as error:
        return await _plan(request, asked, id, way, output, Reason.of_error(error))
    assert isinstance(decided, Replay)
    return to(view_of(request).url(f"/runs/{decided.run_id}"))


async def _plan(
    request: Request, asked: Asking, id: str, way: str, output: str | None, wrong: Reason | None
) -> Response:
    run = await asked.desk.runs.get(id)
    refused, found = None, None
    try:
        if not wrong and _is_complete(way, output):
            found = await _ask(asked, id, way, output, dry_run=True)
    except Conflict as error:
        refused = Reason.of_error(error)
    except InputError as error:
        wrong = Reason.of_error(error)
    return await show(
        request,
        "again.html",
        status=422 if wrong else 200,
        run=run,
        way=way,
        ways=WAYS,
        found=found if isinstance(found, DryRun) else None,
        done=found if isinstance(found, Replay) else None,
        refused=refused,
        wrong=wrong,
        output=output or "",
    )


def _is_complete(way: str, output: str | None) -> bool:
    """True if it can be said what would happen: a skip needs the result to go on with."""
    return _known(way) != "skip_failed" or output is not None


def _known(way: str) -> str:
    if way not in WAYS:
        raise NotFound(f"there is no way {way!r:.40} to run a run again")
    return way


async def _ask(asked: Asking, id: str, way: str, output: str | None, **more: Any) -> Replay | DryRun:
    if way == "rollback":
        more.pop("new_operation", None)
        return await asked.desk.runs.rollback(id, by=asked.by, **more)
    given = {"output": await _json(output)} if way == "skip_failed" else {}
    return await asked.desk.runs.retry(id, way, by=asked.by, **given, **more)


async def _json(text: str | None) -> Any:
    try:
        return (await aside(partial(read_typed, text or "null"), len(text or ""))).value
    except InputError as error:
        why = Reason.of_error(error)
        raise InputError(Reason(ReasonCode.OUTPUT_NOT_JSON, why=why, example='"like this"')) from None
