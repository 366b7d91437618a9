"""Worker processes: starting and stopping one, supervising several, and the API beside a worker."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.app import Redrive
from redrive.cli.output import fold_text
from redrive.cli.server import DEFAULT_OWNER, ensure_first_owner, require_extras
from redrive.clock import SystemClock
from redrive.core.redact import Redactor
from redrive.errors import RedriveError
from redrive.observability.logs import configure_logging
from redrive.time_values import format_duration
from redrive.worker.context import log_context

if TYPE_CHECKING:
    from redrive.worker.worker import Worker

T = TypeVar("T")
_SWITCH_INTERVAL = 0.0005  # seconds that a thread may keep the others waiting; a tenth of Python's default
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHORT_LIFETIME = 5.0  # after a shorter life, the next one is expected to be short as well
_RESTART_DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before the next start, by number of short lives
_MAX_FAILED_STARTS = 3  # processes in a row that end with an error shortly after their start
_POLL_INTERVAL = 0.03

DRAINED = 6
"""Exit code of a supervised worker that an operator drained or retired: it is not started again."""


def tune_interpreter() -> None:
    """Collect garbage seldom, and let threads switch often.

    A busy worker creates many small records, and few of them are part of a reference cycle. Freezing the loaded
    objects and collecting less often takes 18 % off the time per step: a thousand runs are 50,000 objects, and
    most of them are gone before the next collection. The thread that writes to SQLite needs the
    interpreter between two statements, and the event loop does not release it: switching often takes off 8 %.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    sys.setswitchinterval(_SWITCH_INTERVAL)


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on uvloop if it is installed: 8 % less time per step."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def run_worker(app: Redrive, also: Callable[[StopController], None] | None = None, *, drained: int = 0) -> None:
    """Run a worker until a signal or an operator stops it. Return when all its runs have ended or were released.

    `also` is called with the controller that can stop the worker for other reasons. `drained`: the exit code of a
    worker that an operator stopped, if it is not 0.
    """
    configure_logging(app.settings.log, log_context, Redactor.parse(app.settings.redact))

    async def run_until_stopped() -> int:
        stop = StopController()
        stop.listen()
        if also is not None:
            also(stop)
        async with app:
            worker = stop.worker = app.runtime.worker
            assert worker is not None
            print_worker_status(describe_worker(app))
            if app.runtime.endpoint is not None:
                print_worker_status(f"metrics: {app.runtime.endpoint.address}")
            await _wait_until_stopped(stop, app, worker)
        print_worker_status("stopped; open runs continue when a worker starts")
        stuck = worker.threads.stuck
        if stuck or (stop.hurried and threading.active_count() > 1):
            # Python would wait for threads whose steps were released, and cannot end them. The process can.
            if stuck:
                print_worker_status(f"left {stuck} thread{'s' * (stuck > 1)} behind that did not end in time")
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(drained if stop.was_drained else 0)
        return drained if stop.was_drained else 0

    try:
        code = run_event_loop(run_until_stopped())
    except asyncio.CancelledError:
        print_worker_status("stopped before it began")
        return
    if code:
        raise click.exceptions.Exit(code)


async def _wait_until_stopped(stop: StopController, app: Redrive, worker: Worker) -> None:
    """Wait for a signal, an operator, or until a server refuses the worker's token, which is an error."""
    refused: asyncio.Future[RedriveError] | None = getattr(app.runtime, "refused", None)
    stopped = asyncio.ensure_future(stop.requested.wait())
    told = asyncio.ensure_future(worker.told_to_end.wait())
    waits: list[asyncio.Future[Any]] = [stopped, told] if refused is None else [stopped, told, refused]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    told.cancel()
    if worker.told_to_end.is_set():
        stop.was_drained = True
        stop.request()
    if refused is not None and refused.done():
        raise refused.result()


def describe_worker(app: Redrive) -> str:
    """Return one line about the workflows, the store and the limits of a worker."""
    names = list(app.registered_workflows)
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    queues = f" from {', '.join(app.settings.queues)}" if app.settings.queues else ""
    return (
        f"working on {listed}{queues}; store {Redactor().text(app.settings.url)}, version {app.version}, "
        f"up to {app.settings.concurrency} runs at a time"
    )


def print_worker_status(text: str) -> None:
    """Print one line about the worker on standard output."""
    print(fold_text(f"redrive worker {os.getpid()}: {text}", sys.stdout, deeper="  "), flush=True)


class StopController:
    """Stops a worker on signals: the first after the grace period, the second at once, the third by force.

    Before the worker runs, the first signal cancels the opening of the app.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.hurried = False
        self.was_drained = False  # an operator ended the worker
        self.worker: Worker | None = None
        self._task: asyncio.Task[object] | None = None

    def listen(self) -> None:
        """Handle signals from now on; called from the task that runs the worker."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        for number in _STOP_SIGNALS:
            try:
                loop.add_signal_handler(number, self.request)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.request))

    def request(self) -> None:
        """Stop the worker; a second request stops it at once."""
        if self.worker is None:
            self._restore_default_handlers()
            assert self._task is not None
            self._task.cancel()
        elif not self.requested.is_set():
            grace = format_duration(self.worker.settings.grace)
            print_worker_status(f"stopping: running steps have {grace} to end (press Ctrl-C again to stop at once)")
            self.requested.set()
        else:
            print_worker_status("stopping at once: running steps are released")
            self.hurried = True
            self._restore_default_handlers()
            self.worker.stop_now()

    def _restore_default_handlers(self) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)


def stop_with_parent(stop: StopController) -> None:
    """Stop when standard input closes: the process that started this one has ended then."""
    loop = asyncio.get_running_loop()

    def wait_for_close() -> None:
        while os.read(0, 1):
            pass
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.request)

    threading.Thread(target=wait_for_close, daemon=True).start()


def supervise_workers(arguments: Callable[[int], list[str]], processes: int) -> int:
    """Keep a number of worker processes alive until a signal comes, and return the exit code.

    `arguments` returns those of the process with a number, which begins at 1. The exit code is 0 if all processes
    stopped on request, else that of the one that did not.
    """
    return asyncio.run(_WorkerSupervisor(arguments).supervise(processes))


class _WorkerSupervisor:
    def __init__(self, arguments: Callable[[int], list[str]]) -> None:
        self._arguments = arguments
        self._alive: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._clock = SystemClock()
        self._failed_starts = 0
        self._code = 0

    async def supervise(self, processes: int) -> int:
        loop = asyncio.get_running_loop()
        for signal_number in _STOP_SIGNALS:
            loop.add_signal_handler(signal_number, self._forward_signal, signal_number)
        _print_supervisor_status(f"keeping {processes} worker processes alive")
        async with asyncio.TaskGroup() as group:
            for number in range(1, processes + 1):
                group.create_task(self._keep_alive(number))
        _print_supervisor_status("all worker processes have stopped")
        return self._code

    def _forward_signal(self, signal_number: signal.Signals) -> None:
        """Stop each process, at the second signal at once, and start none again."""
        again = self._stopping.is_set()
        self._stopping.set()
        for process in list(self._alive.values()):
            if process.returncode is None:
                process.send_signal(signal_number) if again else _stop_process(process)

    async def _keep_alive(self, number: int) -> None:
        short_lives = 0
        while not self._stopping.is_set():
            begun = self._clock.monotonic()
            code = await self._run_process(number)
            was_short = self._clock.monotonic() - begun < _SHORT_LIFETIME
            if self._stopping.is_set():
                self._code = self._code or (code if code >= 0 else 128 - code)
                return
            if code == DRAINED:
                _print_supervisor_status(f"worker {number} was ended by an operator; it is not started again")
                return
            short_lives = short_lives + 1 if was_short else 0
            self._failed_starts = self._failed_starts + 1 if code in (1, 2) and was_short else 0
            if self._failed_starts >= _MAX_FAILED_STARTS:
                # The app or its settings are wrong, which another start does not change.
                _print_supervisor_status(
                    f"{self._failed_starts} worker processes in a row failed at their start; giving up"
                )
                self._code = code
                self._forward_signal(signal.SIGTERM)
                return
            pause = _RESTART_DELAYS[min(short_lives, len(_RESTART_DELAYS) - 1)]
            how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            _print_supervisor_status(f"worker {number} ended with {how}; it is started again in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _run_process(self, number: int) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "redrive",
            *self._arguments(number),
            stdin=asyncio.subprocess.PIPE,  # closes when this process ends, which stops the worker
            start_new_session=True,  # Ctrl-C reaches this process only, which forwards it once
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._alive[number] = process
        if self._stopping.is_set():  # a signal came while the process was being started
            _stop_process(process)
        code = await process.wait()
        _stop_process(process)
        return code


def _stop_process(process: asyncio.subprocess.Process) -> None:
    """Close the input of a worker, which stops it even before it handles signals."""
    if process.stdin is not None:
        process.stdin.close()


def _print_supervisor_status(text: str) -> None:
    print(f"redrive {os.getpid()}: {text}", flush=True)


async def serve_beside_worker(app: Redrive, host: str, port: int, stop: StopController) -> None:
    """Serve the dashboard and the API until the worker stops. If it cannot, the worker runs without them."""
    while stop.worker is None:  # noqa: ASYNC110 - the worker sets it, and notifies no listeners
        await asyncio.sleep(_POLL_INTERVAL)
    try:
        with require_extras():
            from redrive.server.http_server import Server, bind_socket

            with bind_socket(host, port) as socket:
                await ensure_first_owner(app, DEFAULT_OWNER)
                await Server(app, socket).serve(
                    stop.requested,
                    lambda address: click.echo(f"the dashboard: {address}/\nthe API: {address}/api/docs"),
                )
    except RedriveError as error:
        click.echo(f"dashboard and API are not served: {error}")
