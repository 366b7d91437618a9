"""Whether anybody has heard of the step or workflow that a policy is for."""

from __future__ import annotations

from redrive.app import Redrive
from redrive.cli.options import suggest_names
from redrive.store.filters import RunFilter

_MAX_RUNS_READ = 50  # runs whose steps are read where there is no code to ask


async def unknown_names(app: Redrive, scope: dict[str, str | None]) -> list[str]:
    """A sentence for each name that is in no code, no worker and none of the newest runs."""
    workflow, step = scope["workflow"], scope["step"]
    doubts: list[str] = []
    if workflow and workflow not in (known := await _known_workflows(app)):
        doubts.append(f"nobody has registered a workflow {workflow!r}{suggest_names(workflow, known)}")
    if step and step not in (known := await _known_steps(app)):
        where = "in the app" if app.registered_steps else f"in the newest {_MAX_RUNS_READ} runs"
        doubts.append(f"there is no step {step!r} {where}{suggest_names(step, known)}")
    return doubts


async def _known_workflows(app: Redrive) -> list[str]:
    page = await app.runs.list(RunFilter(), limit=_MAX_RUNS_READ)
    registered = {one.name for one in await app.workflows.list()}
    return sorted(registered | {run.workflow for run in page.items})


async def _known_steps(app: Redrive) -> list[str]:
    """The app's steps if its code is here; else those that the newest runs called."""
    if app.registered_steps:
        return sorted(app.registered_steps)
    newest = (await app.runs.list(RunFilter(), limit=_MAX_RUNS_READ)).items
    runs = [await app.runs.get(run.id) for run in newest]
    return sorted({step.name for run in runs for step in run.steps})
