"""`redrive runs watch`: a picture that is drawn anew on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click

from redrive.app import Redrive
from redrive.cli.messages import INTERRUPTED, NOT_FOUND, Stopped, hint
from redrive.cli.options import find_run
from redrive.cli.output import Output, clean, coloured, echo, on_terminal, printable, say
from redrive.cli.place import Place, ask
from redrive.cli.runs.explain import story
from redrive.core.states import FINAL, RunStatus
from redrive.desk.models import Run
from redrive.errors import NotFound

__all__ = ["follow"]


_LOOK = 0.3


class View(Protocol):
    """Something that shows how a run stands."""

    def __call__(self, run: Run) -> None: ...


def follow(place: Place, id: str, output: Output) -> None:
    """Show a run until it has ended, then end with 0 if it succeeded and 1 if not."""
    found: list[str] = []
    try:
        run = ask(place, lambda app: _until_ended(app, id, found, output))
    except KeyboardInterrupt:
        name = found[0] if found else id
        say(f"\nThe run goes on. To watch it again: {hint('runs', 'watch', name)}")
        raise click.exceptions.Exit(INTERRUPTED) from None
    if output.json:
        output.object(run)
    if run.status is not RunStatus.SUCCESS:
        say(f"Run {run.id} ended as {run.status}. To understand it: {hint('runs', 'why', run.id)}")
        raise click.exceptions.Exit(1)


async def _until_ended(app: Redrive, id: str, found: list[str], output: Output) -> Run:
    run_id = await find_run(app, id)
    found.append(run_id)
    with _view(output) as view:
        while True:
            try:
                run = await app.runs.get(run_id)
            except NotFound as error:
                raise Stopped(str(error), NOT_FOUND) from error
            view(run)
            if run.status in FINAL:
                return run
            await asyncio.sleep(_LOOK)


@contextmanager
def _view(output: Output) -> Iterator[View]:
    if output.json:
        yield lambda run: None
        return
    if not on_terminal():
        yield Lines()
        return
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ModuleNotFoundError:
        yield Lines()
        return
    console = Console(no_color=not coloured(), highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def draw(run: Run) -> None:
            live.update(Text.from_ansi(printable("\n".join(story(run, brief=True)))), refresh=True)

        yield draw


class Lines:
    """Prints each thing that happens to the run once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __call__(self, run: Run) -> None:
        for step in run.steps:
            for number, attempt in enumerate(step.attempts):
                self._tell(f"{step.index}.{number}.{attempt.status}", f"{step.name}: {attempt.decision}")
            if not step.attempts:
                self._tell(f"{step.index}.{step.status}", f"{step.name}: {step.status.lower()}")
        self._tell(run.status, f"run {run.id} is {run.status}" + (f": {run.error}" if run.error else ""))

    def _tell(self, mark: str, text: str) -> None:
        if mark not in self._told:
            self._told.add(mark)
            echo(clean(text))
