"""Waiting for replays to end, and saying when nobody is there to do them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from redrive.app import Redrive
from redrive.cli.exits import FAILED
from redrive.cli.folding import folded
from redrive.cli.hints import hint, worker_hint
from redrive.cli.output import Output, as_json, on_terminal, say
from redrive.core.replay import Mode
from redrive.core.states import FINAL, RunStatus
from redrive.desk.replaying import Replay
from redrive.desk.shapes import Run

__all__ = ["say_if_nobody_works", "wait_for"]

_LOOK = 0.2


async def wait_for(app: Redrive, made: Sequence[Replay], output: Output) -> int:
    """Tell how each ended; 1 if one did not end well."""
    worst = 0
    for replay in made:
        run = await _ended(app, replay.run_id)
        if output.json:
            output.done(replay.letter_id, {**as_json(replay), "ended": run.status}, "")
        elif not output.quiet:
            output.done(replay.letter_id, None, _told(replay, run))
        if not _went_well(replay, run):
            worst = FAILED
            say(f"{run.error or run.status}\nTo understand it: {hint('dlq', 'show', replay.letter_id)}")
    return worst


def _told(replay: Replay, run: Run) -> str:
    as_run = f" as run {run.id}" if replay.mode == Mode.FULL else ""
    how = "succeeded" if _went_well(replay, run) else f"did not succeed, it is {run.status}"
    more = "; more would follow" if how == "succeeded" and run.status is RunStatus.PARTIAL else ""
    return folded(f"{replay.letter_id} {how}{as_run}{more}", sys.stdout, deeper="  ")


async def _ended(app: Redrive, run_id: str) -> Run:
    while True:
        run = await app.runs.get(run_id)
        if run.status in FINAL:
            return run
        await asyncio.sleep(_LOOK)


def _went_well(replay: Replay, run: Run) -> bool:
    """A single step that succeeded is what was asked for, even where more would follow."""
    if run.status is RunStatus.PARTIAL:
        return replay.mode == Mode.STEP_ONLY
    return run.status is RunStatus.SUCCESS


async def say_if_nobody_works(app: Redrive, workflow: str, *, waits: bool) -> None:
    """A run that nobody can take looks like one that hangs; say so to whoever watches or waits."""
    if not (waits or on_terminal()):
        return
    known = await app.workflows.list()
    if not any(one.workers for one in known if one.name == workflow):
        say(f"No live worker has workflow {workflow!r}: it waits until one is started: {worker_hint()}")
