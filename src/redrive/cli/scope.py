"""Whether anybody has heard of the step or workflow that a policy is for."""

from __future__ import annotations

from redrive.app import Redrive
from redrive.cli.options import near
from redrive.store.filters import RunFilter

__all__ = ["unheard_of"]

_LOOKED_AT = 50  # runs whose steps are read where there is no code to ask


async def unheard_of(app: Redrive, scope: dict[str, str | None]) -> list[str]:
    """A sentence for each name that is in no code, no worker and none of the newest runs."""
    workflow, step = scope["workflow"], scope["step"]
    doubts: list[str] = []
    if workflow and workflow not in (known := await _workflows(app)):
        doubts.append(f"nobody has registered a workflow {workflow!r}{near(workflow, known)}")
    if step and step not in (known := await _steps(app)):
        where = "in the app" if app.registered_steps else f"in the newest {_LOOKED_AT} runs"
        doubts.append(f"there is no step {step!r} {where}{near(step, known)}")
    return doubts


async def _workflows(app: Redrive) -> list[str]:
    page = await app.runs.list(RunFilter(), limit=_LOOKED_AT)
    registered = {one.name for one in await app.workflows.list()}
    return sorted(registered | {run.workflow for run in page.items})


async def _steps(app: Redrive) -> list[str]:
    """The app's steps if its code is here; else those that the newest runs called."""
    if app.registered_steps:
        return sorted(app.registered_steps)
    newest = (await app.runs.list(RunFilter(), limit=_LOOKED_AT)).items
    runs = [await app.runs.get(run.id) for run in newest]
    return sorted({step.name for run in runs for step in run.steps})
