"""A worker process from its first line of output to its last."""

from __future__ import annotations

import asyncio
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
from redrive.duration import format_duration
from redrive.errors import RedriveError
from redrive.observability.logs import configure_logging
from redrive.worker.context import log_context

if TYPE_CHECKING:
    from redrive.worker.worker import Worker

# -- How a process that only works sets itself up. Inside another program that is the program's busi -----


T = TypeVar("T")
_SWITCH_INTERVAL = 0.0005  # seconds that a thread may keep the others waiting; Python's own choice is ten times that


def tune_interpreter() -> None:
    """Collect garbage seldom, and let threads take turns often.

    A busy worker makes and drops many small records, hardly any of which is ever part of a circle: to leave
    alone what was loaded and to look less often is 14 % less time per step. The thread that writes to SQLite
    asks for its turn between two statements, and the loop gives none away by itself: 8 % less time per step.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(25_000, 20, 50)
    sys.setswitchinterval(_SWITCH_INTERVAL)


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, on uvloop where that is installed: 8 % less time per step."""
    with asyncio.Runner(loop_factory=_fastest_loop_factory()) as runner:
        return runner.run(main)


def _fastest_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


# -- A worker process from its first line of output to its last ------------------------------------------


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_worker(app: Redrive, also: Callable[[StopController], None] | None = None) -> None:
    """Work until a signal comes; returns when everything was ended or given back.

    `also` is given the means to stop the worker for other reasons.
    """
    configure_logging(app.settings.log, log_context, Redactor.parse(app.settings.redact))
    try:
        run_event_loop(_run_until_stopped(app, also))
    except asyncio.CancelledError:
        print_worker_status("stopped before it began")


async def _run_until_stopped(app: Redrive, also: Callable[[StopController], None] | None) -> None:
    stop = StopController()
    stop.listen()
    if also is not None:
        also(stop)
    async with app:
        worker = app.runtime.worker
        assert worker is not None
        stop.worker = worker
        print_worker_status(describe_worker(app))
        if app.runtime.endpoint is not None:
            print_worker_status(f"metrics: {app.runtime.endpoint.address}")
        await stop.asked.wait()
    print_worker_status("stopped; nothing is lost")
    _exit_past_stuck_threads(worker, hurried=stop.hurried)


def describe_worker(app: Redrive) -> str:
    """What a worker of this app does, in one line."""
    names = list(app.registered_workflows)
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"working on {listed}; store {Redactor().text(app.settings.url)}, version {app.version}, "
        f"up to {app.settings.concurrency} runs at a time"
    )


def print_worker_status(text: str) -> None:
    """One line for whoever started the worker."""
    print(fold_text(f"redrive worker {os.getpid()}: {text}", sys.stdout, deeper="  "), flush=True)


class StopController:
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
        for number in _STOP_SIGNALS:
            try:
                loop.add_signal_handler(number, self.ask)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(self.ask))

    def ask(self) -> None:
        """Stop; asked again, stop sooner."""
        if self.worker is None:
            self._restore_default_handlers()
            assert self._task is not None
            self._task.cancel()
        elif not self.asked.is_set():
            grace = format_duration(self.worker.settings.grace)
            print_worker_status(f"stopping: steps in flight have {grace} to end (again to stop at once)")
            self.asked.set()
        else:
            print_worker_status("stopping at once: steps in flight are given back")
            self.hurried = True
            self._restore_default_handlers()
            self.worker.stop_now()

    def _restore_default_handlers(self) -> None:
        """Another signal does what it does to any process."""
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)


def stop_with_parent(stop: StopController) -> None:
    """Stop when standard input closes: whoever started this process is gone then, however it went."""
    loop = asyncio.get_running_loop()
    threading.Thread(target=_stop_when_stdin_closes, args=(loop, stop), daemon=True).start()


def _stop_when_stdin_closes(loop: asyncio.AbstractEventLoop, stop: StopController) -> None:
    while os.read(0, 1):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.ask)


def _exit_past_stuck_threads(worker: Worker, *, hurried: bool) -> None:
    """Do not wait for threads whose steps were given back: Python cannot end them, only the process can."""
    busy = worker.threads.stuck
    if not busy and not (hurried and threading.active_count() > 1):
        return
    if busy:
        print_worker_status(f"left {busy} thread{'s' * (busy > 1)} behind that did not end in time")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# -- Several worker processes: started, started again when they die, stopped together --------------------


_SHORT_LIFETIME = 5.0  # a life shorter than this is a sign that the next one will be short, too
_RESTART_DELAYS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before the next start after that many short lives
_MAX_FAILED_STARTS = 3  # this many processes in a row that end by themselves with an error before any has worked


def supervise_workers(arguments: Callable[[int], list[str]], processes: int) -> int:
    """Keep so many `redrive` processes alive until a signal comes; `arguments` are those of each, from 1 on.

    Returns the exit code: 0 if all stopped in good order, else that of the one that did not.
    """
    return asyncio.run(_WorkerSupervisor(arguments).keep(processes))


class _WorkerSupervisor:
    def __init__(self, arguments: Callable[[int], list[str]]) -> None:
        self._arguments = arguments
        self._alive: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._clock = SystemClock()
        self._failures = 0
        self._code = 0

    async def keep(self, processes: int) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._forward_signal, number)
        _print_supervisor_status(f"keeping {processes} worker processes alive")
        async with asyncio.TaskGroup() as group:
            for place in range(1, processes + 1):
                group.create_task(self._keep_alive(place))
        _print_supervisor_status("all worker processes have stopped")
        return self._code

    def _forward_signal(self, number: signal.Signals) -> None:
        """Stop each process in good order, at the second signal at once; nobody is started again."""
        again = self._stopping.is_set()
        self._stopping.set()
        for process in list(self._alive.values()):
            if process.returncode is None:
                process.send_signal(number) if again else _stop_process(process)

    async def _keep_alive(self, place: int) -> None:
        short_lives = 0
        while not self._stopping.is_set():
            begun = self._clock.monotonic()
            code = await self._run_process(place)
            lived = self._clock.monotonic() - begun
            if self._stopping.is_set():
                self._code = self._code or _to_exit_code(code)
                return
            short_lives = 0 if lived >= _SHORT_LIFETIME else short_lives + 1
            if self._should_give_up(code, lived):
                return
            pause = _RESTART_DELAYS[min(short_lives, len(_RESTART_DELAYS) - 1)]
            _print_supervisor_status(
                f"worker {place} ended with {_describe_exit(code)}; it is started again in {pause:g} s"
            )
            await self._wait_before_restart(pause)

    def _should_give_up(self, code: int, lived: float) -> bool:
        """Something is wrong that another start does not mend: stop instead of trying for ever."""
        self._failures = self._failures + 1 if code in (1, 2) and lived < _SHORT_LIFETIME else 0
        if self._failures < _MAX_FAILED_STARTS:
            return False
        _print_supervisor_status(f"{self._failures} worker processes in a row failed at their start; giving up")
        self._code = code
        self._forward_signal(signal.SIGTERM)
        return True

    async def _run_process(self, place: int) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "redrive",
            *self._arguments(place),
            stdin=asyncio.subprocess.PIPE,  # closes when this process is gone, which stops the worker
            start_new_session=True,  # Ctrl-C comes here, and is passed on once
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._alive[place] = process
        if self._stopping.is_set():  # a signal came while it was being started
            _stop_process(process)
        code = await process.wait()
        _stop_process(process)
        return code

    async def _wait_before_restart(self, pause: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), pause)
        except TimeoutError:
            return


def _stop_process(process: asyncio.subprocess.Process) -> None:
    """Stop a worker as a first signal would, also one that has not begun to listen for signals."""
    if process.stdin is not None:
        process.stdin.close()


def _to_exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _print_supervisor_status(text: str) -> None:
    print(f"redrive {os.getpid()}: {text}", flush=True)


# -- The API beside a worker, in one process, for as long as the worker works ----------------------------


_POLL_INTERVAL = 0.03


class ApiBesideWorker:
    """Serves the API until the worker stops. What keeps it from that is said, and the worker goes on."""

    def __init__(self, app: Redrive, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._task: asyncio.Task[None] | None = None

    def begin(self, stop: StopController) -> None:
        """Serve from when the worker works; called on its loop."""
        self._task = asyncio.create_task(self._serve(stop))

    async def _serve(self, stop: StopController) -> None:
        while stop.worker is None:  # noqa: ASYNC110 - the worker sets it, and knows of no listeners
            await asyncio.sleep(_POLL_INTERVAL)
        try:
            with require_extras():
                from redrive.server.process import Server, bind_socket

                with bind_socket(self._host, self._port) as socket:
                    await ensure_first_owner(self._app, DEFAULT_OWNER)
                    await Server(self._app, socket).serve(stop.asked, _print_addresses)
        except RedriveError as error:
            click.echo(f"the API is not served: {error}")


def _print_addresses(address: str) -> None:
    click.echo(f"the dashboard: {address}/")
    click.echo(f"the API: {address}/api/docs")
