"""Starting runs on a server, which checks their inputs itself."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, cast

import click

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.remote.place import Remote

__all__ = ["progress", "start_elsewhere"]

_BATCH = 500


async def start_elsewhere(
    app: Redrive, name: str, inputs: list[str], *, dry_run: bool, options: dict[str, Any]
) -> list[str]:
    """Start a run for each input; a dry run looks what the server knows of the workflow."""
    from redrive.desk.starting import Wanted

    given = {key: value for key, value in options.items() if value is not None}
    event = (given.pop("stream", ""), given.pop("event", ""))
    wanted = [
        Wanted(workflow=name, input=json.loads(text), options=given, event=event if any(event) else None)
        for text in inputs
    ]
    if dry_run:
        await _check(app, name, wanted)
        return []
    ids: list[str] = []
    with progress("starting", len(wanted)) as bar:
        for begin in range(0, len(wanted), _BATCH):
            started = await cast("Remote", app).starter.start(wanted[begin : begin + _BATCH])
            ids += (one.public_id for one in started)
            bar.update(len(started))
    return ids


async def _check(app: Redrive, name: str, wanted: list[Any]) -> None:
    from redrive.cli.inputs import near
    from redrive.core.json_schema import problems
    from redrive.desk.checks import invalid
    from redrive.errors import InputError, UnknownWorkflow
    from redrive.reasons import Reason, ReasonCode

    known = {one.name: one for one in await app.workflows.list()}
    if name not in known:
        raise UnknownWorkflow(f"no code registered a workflow called {name!r}{near(name, sorted(known))}")
    for each in wanted:
        if found := problems(each.input, known[name].input_schema or {}):
            what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=name)
            raise InputError(invalid(what, [each.reason for each in found]))


def progress(label: str, length: int) -> Any:
    """A bar for whoever watches a large number of inputs; nothing for the rest."""
    unseen = length < 2 * _BATCH or not sys.stderr.isatty()
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=unseen)
