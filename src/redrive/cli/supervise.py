"""Several worker processes: started, started again when they die, stopped together."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from redrive.clock import SystemClock

__all__ = ["supervise"]

_SHORT = 5.0  # a life shorter than this is a sign that the next one will be short, too
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before the next start after that many short lives
_HOPELESS = 3  # this many processes in a row that end by themselves with an error before any has worked


def supervise(arguments: Callable[[int], list[str]], processes: int) -> int:
    """Keep so many `redrive` processes alive until a signal comes; `arguments` are those of each, from 1 on.

    Returns the exit code: 0 if all stopped in good order, else that of the one that did not.
    """
    return asyncio.run(_Crew(arguments).keep(processes))


class _Crew:
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
            loop.add_signal_handler(number, self._pass_on, number)
        _say(f"keeping {processes} worker processes alive")
        async with asyncio.TaskGroup() as group:
            for place in range(1, processes + 1):
                group.create_task(self._keep_one(place))
        _say("all worker processes have stopped")
        return self._code

    def _pass_on(self, number: signal.Signals) -> None:
        """Stop each process in good order, at the second signal at once; nobody is started again."""
        again = self._stopping.is_set()
        self._stopping.set()
        for process in list(self._alive.values()):
            if process.returncode is None:
                process.send_signal(number) if again else _let_go(process)

    async def _keep_one(self, place: int) -> None:
        short_lives = 0
        while not self._stopping.is_set():
            begun = self._clock.monotonic()
            code = await self._one_life(place)
            lived = self._clock.monotonic() - begun
            if self._stopping.is_set():
                self._code = self._code or _exit_code(code)
                return
            short_lives = 0 if lived >= _SHORT else short_lives + 1
            if self._is_hopeless(code, lived):
                return
            pause = _PAUSES[min(short_lives, len(_PAUSES) - 1)]
            _say(f"worker {place} ended with {_words(code)}; it is started again in {pause:g} s")
            await self._rest(pause)

    def _is_hopeless(self, code: int, lived: float) -> bool:
        """Something is wrong that another start does not mend: stop instead of trying for ever."""
        self._failures = self._failures + 1 if code in (1, 2) and lived < _SHORT else 0
        if self._failures < _HOPELESS:
            return False
        _say(f"{self._failures} worker processes in a row failed at their start; giving up")
        self._code = code
        self._pass_on(signal.SIGTERM)
        return True

    async def _one_life(self, place: int) -> int:
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
            _let_go(process)
        code = await process.wait()
        _let_go(process)
        return code

    async def _rest(self, pause: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), pause)
        except TimeoutError:
            return


def _let_go(process: asyncio.subprocess.Process) -> None:
    """Stop a worker as a first signal would, also one that has not begun to listen for signals."""
    if process.stdin is not None:
        process.stdin.close()


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _say(text: str) -> None:
    print(f"redrive {os.getpid()}: {text}", flush=True)
