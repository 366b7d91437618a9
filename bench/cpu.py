"""Processor time of this process, of its event loop, and of a PostgreSQL server and workers beside it.

Standard library only, because peers use it in their own environments.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Cpu"]

_USER, _SYSTEM, _USER_OF_ENDED, _SYSTEM_OF_ENDED = 11, 12, 13, 14  # fields of /proc/PID/stat behind the name
_PARENT = 1


class Cpu:
    """Counts from when it is made.

    `server` is the first process of a server on this machine, if any; `workers` are other processes that do the work.
    """

    def __init__(self, server: int | None = None, workers: Sequence[int] = ()) -> None:
        self._server = server
        self._workers = workers
        self._all = time.process_time()
        self._here = time.thread_time()
        self._there = _of_server(server)
        self._beside = _of_processes(workers)

    @property
    def all(self) -> float:
        """Seconds used by this process."""
        return time.process_time() - self._all

    @property
    def here(self) -> float:
        """Seconds used by this thread, which is the loop's."""
        assert threading.current_thread() is threading.main_thread()
        return time.thread_time() - self._here

    @property
    def there(self) -> float:
        """Seconds used by the server."""
        return _of_server(self._server) - self._there

    @property
    def beside(self) -> float:
        """Seconds used by the workers."""
        return _of_processes(self._workers) - self._beside

    def per_thousand(self, steps: int) -> dict[str, float]:
        """Seconds per 1,000 steps, in all and the server's part."""
        together = {"cpu": (self.all + self.beside + self.there) / steps * 1000}
        return together if self._server is None else {**together, "server": self.there / steps * 1000}


def _of_processes(processes: Sequence[int]) -> float:
    stats = [_stat(process) for process in processes]
    return sum(int(stat[_USER]) + int(stat[_SYSTEM]) for stat in stats if stat) / os.sysconf("SC_CLK_TCK")


def _of_server(first: int | None) -> float:
    """Return the processor time of a server so far. Its first process counts those that ended."""
    if first is None:
        return 0.0
    stats = [_stat(int(folder.name)) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    alive = [stat for stat in stats if stat and int(stat[_PARENT]) == first]
    ticks = sum(int(stat[_USER]) + int(stat[_SYSTEM]) for stat in alive)
    own = _stat(first)
    ticks += sum(int(own[field]) for field in (_USER, _SYSTEM, _USER_OF_ENDED, _SYSTEM_OF_ENDED) if own)
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended meanwhile
        return []
