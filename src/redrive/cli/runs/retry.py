"""`redrive runs retry`: run again what failed, whatever became of its dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.change import Change, changing
from redrive.cli.dlq.decide import WAIT, corrected, reworked
from redrive.cli.dlq.values import json_value, step_outputs
from redrive.cli.output import Output, shown
from redrive.cli.place import Place, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.cli.dlq.deciding import Act, Subject
    from redrive.desk.preview import DryRun
    from redrive.desk.replaying import Replay

__all__ = ["retry"]


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--mode",
    type=click.Choice(("from_failed", "full", "skip_failed"), case_sensitive=False),
    default="from_failed",
    show_default=True,
    help="Go on at the failed step, begin anew as a new run, or go on behind the failed step.",
)
@click.option(
    "--skip-step",
    "skipped",
    multiple=True,
    metavar="NAME=JSON",
    help="Take this for the step's result instead of calling it; may be repeated.",
)
@corrected
@click.option(
    "--output", "result", metavar="JSON", help="With skip_failed: what the failed step shall have given."
)
@reworked
@WAIT
@changing
@shown
@at_a_place
def retry(
    ids: tuple[str, ...],
    mode: str,
    skipped: tuple[str, ...],
    edits: dict[str, Any],
    result: str | None,
    wait: bool,
    options: dict[str, Any],
    change: Change,
    output: Output,
    place: Place,
) -> None:
    """Run failed or partial runs again. `-` reads ids from standard input.

    The same as `dlq replay`, by run: it works for runs whose dead letter is closed, or that never had
    one, as well. A run with an open dead letter is replayed through it. --dry-run says what would happen.

    \b
    Examples:
      redrive runs retry 01k9x7 --dry-run
      redrive runs retry 01k9x7 --mode full --patch '{"count": 2}'
      redrive runs retry 01k9x7 --skip-step charge='"ch_123"' --wait
    """
    from redrive.cli.dlq.deciding import Asked, decide

    options |= {**edits, "skip_steps": step_outputs(skipped, "--skip-step") or None}
    if result is not None:
        options["output"] = json_value(result, "--output")
    act = _act(mode, by=change.by, **options)
    decide(place, ids, act, Asked(change=change, output=output, wait=wait))


def _act(mode: str, **options: Any) -> Act:
    from redrive.cli.dlq.deciding import Act, Subject
    from redrive.cli.ids import find_run
    from redrive.core.states import FINAL, RunStatus

    async def find(app: Redrive, id: str) -> Subject:
        run = await app.runs.get(await find_run(app, id))
        name = f"run {run.id} ({run.workflow}, {run.status})"
        settled = run.status not in FINAL or run.status is RunStatus.SUCCESS
        return Subject(id=run.id, name=name, workflow=run.workflow, settled=settled)

    async def make(app: Redrive, subject: Subject, dry_run: bool) -> Replay | DryRun:
        return await app.runs.retry(subject.id, mode, dry_run=dry_run, **options)

    return Act(find=find, make=make)
