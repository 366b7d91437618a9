"""A wait until the machine is idle: figures from a busy machine mean little."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench.machine import time_syncs

__all__ = ["wait_for_calm"]

_IDLE, _SYNC = 0.85, 0.0005  # the share of idle processors, and the seconds a small write may take
_LOOK = 0.7


def wait_for_calm(folder: Path, patience: float) -> bool:
    """Wait until processors and disk are idle; False if that did not happen within `patience` seconds."""
    end = time.monotonic() + patience
    while not _is_calm(folder):
        if time.monotonic() >= end:
            return False
    return True


def _is_calm(folder: Path) -> bool:
    everything, idle = _ticks()
    begun = time.monotonic()
    sync = statistics.median(time_syncs(folder, 40))
    time.sleep(max(0.0, begun + _LOOK - time.monotonic()))
    then, idle_then = _ticks()
    return sync < _SYNC and (idle_then - idle) / max(1, then - everything) > _IDLE


def _ticks() -> tuple[int, int]:
    """Return all processor ticks so far, and the idle ones. Where the system does not count them, all are idle."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return int(time.monotonic() * 100), int(time.monotonic() * 100)
    return sum(fields), fields[3] + fields[4]
