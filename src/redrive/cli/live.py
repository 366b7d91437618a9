"""Lines that tell what happens while a worker works in this process."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from redrive.app import Redrive
from redrive.cli.example import example_input
from redrive.cli.folding import folded
from redrive.cli.hints import hint
from redrive.cli.news import Event, News
from redrive.cli.output import clean, echo, styled
from redrive.cli.serve import Stop
from redrive.clock import SystemClock
from redrive.duration import moment
from redrive.errors import ConfigurationError, StoreError

__all__ = ["Live"]

_LOOK = 0.3
_COLOURS = {"good": "green", "waiting": "yellow", "bad": "red"}


class Live:
    """Tells each decision and each ending once, as it happens."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None

    def begin(self, stop: Stop) -> None:
        """Tell until the worker stops; called on its loop."""
        self._task = asyncio.create_task(self._tell(stop))

    async def _tell(self, stop: Stop) -> None:
        while stop.worker is None:  # noqa: ASYNC110 - the worker sets it, and knows of no listeners
            await asyncio.sleep(_LOOK / 10)
        news = News(self._app, endings=True)
        begun = moment(SystemClock().now())
        echo("\n".join(_to_type(self._app)))
        while not stop.asked.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.asked.wait(), _LOOK)
            await self._look(news)
            for event in news.fresh:
                if event.at >= begun:  # what happened before is no news
                    _print(event)

    async def _look(self, news: News) -> None:
        """A store that is busy, or closed already, is looked at another time."""
        news.fresh = []
        with contextlib.suppress(StoreError, ConfigurationError):
            await news.refresh()


def _to_type(app: Redrive) -> list[str]:
    """How to start a run of the first workflow, and how to look at it."""
    import shlex

    name, workflow = next(iter(app.registered_workflows.items()))
    start = hint("runs", "start", name, "--input", shlex.quote(example_input(workflow)))
    return [
        "start a run, from this folder in another terminal:",
        f"    {start}",
        "look at it:",
        f"    {hint('runs', 'list')}",
    ]


def _print(event: Event) -> None:
    time, name = f"{event.at:%H:%M:%S}", clean(f"{event.run} {event.step}")
    line = folded(f"{time} {name}  {clean(event.text)}", sys.stdout, deeper=" " * 9)
    text = line[len(f"{time} {name}") :]
    echo(f"{time} {styled(name, bold=True)}{styled(text, fg=_COLOURS[event.mood])}")
