"""A worker process from its first line of output to its last."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from redrive.cli.folding import folded
from redrive.cli.quickly import run_quickly
from redrive.core.redact import Redactor
from redrive.duration import words
from redrive.signals.logs import configure
from redrive.worker.context import log_context

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.worker.worker import Worker

__all__ = ["Stop", "describe", "run", "say", "tie"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(app: Redrive, also: Callable[[Stop], None] | None = None) -> None:
    """Work until a signal comes; returns when everything was ended or given back.

    `also` is given the means to stop the worker for other reasons.
    """
    configure(app.settings.log, log_context, Redactor.parse(app.settings.redact))
    try:
        run_quickly(_serve(app, also))
    except asyncio.CancelledError:
        say("stopped before it began")


async def _serve(app: Redrive, also: Callable[[Stop], None] | None) -> None:
    stop = Stop()
    stop.listen()
    if also is not None:
        also(stop)
    async with app:
        worker = app.runtime.worker
        assert worker is not None
        stop.worker = worker
        say(describe(app))
        if app.runtime.endpoint is not None:
            say(f"metrics: {app.runtime.endpoint.address}")
        await stop.asked.wait()
    say("stopped; nothing is lost")
    _leave_threads_behind(worker, hurried=stop.hurried)


def describe(app: Redrive) -> str:
    """What a worker of this app does, in one line."""
    names = list(app.registered_workflows)
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"working on {listed}; store {Redactor().text(app.settings.url)}, version {app.version}, "
        f"up to {app.settings.concurrency} runs at a time"
    )


def say(text: str) -> None:
    """One line for whoever started the worker."""
    print(folded(f"redrive worker {os.getpid()}: {text}", sys.stdout, deeper="  "), flush=True)


class Stop:
    """Turns signals into stopping: the first in good order, the second at once, the third by force.

    Until there is a worker, the first one ends the opening of the app.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = False
        self.worker: Worker | None = None
        self._task: asyncio.Task[object] | None = None

    def listen(self) -> None:
        """Hear signals from now on; called from the task that serves."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        for number in _SIGNALS:
            try:
                loop.add_signal_handler(number, self.ask)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.ask))

    def ask(self) -> None:
        """Stop; asked again, stop sooner."""
        if self.worker is None:
            self._by_force_next()
            assert self._task is not None
            self._task.cancel()
        elif not self.asked.is_set():
            grace = words(self.worker.settings.grace)
            say(f"stopping: steps in flight have {grace} to end (again to stop at once)")
            self.asked.set()
        else:
            say("stopping at once: steps in flight are given back")
            self.hurried = True
            self._by_force_next()
            self.worker.stop_now()

    def _by_force_next(self) -> None:
        """Another signal does what it does to any process."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)


def tie(stop: Stop) -> None:
    """Stop when standard input closes: whoever started this process is gone then, however it went."""
    loop = asyncio.get_running_loop()
    threading.Thread(target=_tell_when_closed, args=(loop, stop), daemon=True).start()


def _tell_when_closed(loop: asyncio.AbstractEventLoop, stop: Stop) -> None:
    while os.read(0, 1):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.ask)


def _leave_threads_behind(worker: Worker, *, hurried: bool) -> None:
    """Do not wait for threads whose steps were given back: Python cannot end them, only the process can."""
    busy = worker.threads.stuck
    if not busy and not (hurried and threading.active_count() > 1):
        return
    if busy:
        say(f"left {busy} thread{'s' * (busy > 1)} behind that did not end in time")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
