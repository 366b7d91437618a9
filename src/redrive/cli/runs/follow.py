"""`redrive runs watch`: a picture that is drawn anew on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click

from redrive.app import Redrive
from redrive.cli.messages import INTERRUPTED, NOT_FOUND, CommandFailed, hint
from redrive.cli.options import find_run_id
from redrive.cli.output import Output, echo, echo_err, escape_line, make_printable, on_terminal, use_colour
from redrive.cli.runs.explain import render_run
from redrive.cli.target import Target, run_on
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus
from redrive.desk.models import Run
from redrive.errors import NotFound

_POLL_INTERVAL = 0.3


class RunDisplay(Protocol):
    """Something that shows how a run stands."""

    def __call__(self, run: Run) -> None: ...


def follow_run(place: Target, id: str, output: Output) -> None:
    """Show a run until it has ended, then end with 0 if it succeeded and 1 if not."""
    found: list[str] = []
    try:
        run = run_on(place, lambda app: _show_until_ended(app, id, found, output))
    except KeyboardInterrupt:
        name = found[0] if found else id
        echo_err(f"\nThe run goes on. To watch it again: {hint('runs', 'watch', name)}")
        raise click.exceptions.Exit(INTERRUPTED) from None
    if output.json:
        output.object(run)
    if run.status is not RunStatus.SUCCESS:
        echo_err(f"Run {run.id} ended as {run.status}. To understand it: {hint('runs', 'why', run.id)}")
        raise click.exceptions.Exit(1)


async def _show_until_ended(app: Redrive, id: str, found: list[str], output: Output) -> Run:
    run_id = await find_run_id(app, id)
    found.append(run_id)
    with _open_display(output) as view:
        while True:
            try:
                run = await app.runs.get(run_id)
            except NotFound as error:
                raise CommandFailed(str(error), NOT_FOUND) from error
            view(run)
            if run.status in FINAL_RUN_STATUSES:
                return run
            await asyncio.sleep(_POLL_INTERVAL)


@contextmanager
def _open_display(output: Output) -> Iterator[RunDisplay]:
    if output.json:
        yield lambda run: None
        return
    if not on_terminal():
        yield LineDisplay()
        return
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ModuleNotFoundError:
        yield LineDisplay()
        return
    console = Console(no_color=not use_colour(), highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def draw(run: Run) -> None:
            live.update(Text.from_ansi(make_printable("\n".join(render_run(run, brief=True)))), refresh=True)

        yield draw


class LineDisplay:
    """Prints each thing that happens to the run once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __call__(self, run: Run) -> None:
        for step in run.steps:
            for number, attempt in enumerate(step.attempts):
                self._print_once(f"{step.index}.{number}.{attempt.status}", f"{step.name}: {attempt.decision}")
            if not step.attempts:
                self._print_once(f"{step.index}.{step.status}", f"{step.name}: {step.status.lower()}")
        self._print_once(run.status, f"run {run.id} is {run.status}" + (f": {run.error}" if run.error else ""))

    def _print_once(self, mark: str, text: str) -> None:
        if mark not in self._told:
            self._told.add(mark)
            echo(escape_line(text))
