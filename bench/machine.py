"""A description of the machine on which figures are measured."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
import time
from pathlib import Path

from bench.server import Server

__all__ = ["facts", "time_syncs"]

_WRITES = 200


def facts(folder: Path, server: Server | None) -> dict[str, str]:
    """Describe the machine; `folder` is the place of SQLite's files."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()) + " (1, 5 and 15 minutes, before)",
        "system": f"{platform.system()} {platform.release()}, {_filesystem(folder)}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "postgres": "not used" if server is None else f"{server.version}, fsync and synchronous_commit on",
        "disk": f"{_syncs(folder):,.0f} synchronous 4 KiB appends per second, one at a time",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _filesystem(folder: Path) -> str:
    """Return the kind of file system: figures from a disk in memory would mean nothing."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "unknown file system"
    fitting = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return str(max(fitting, key=lambda mount: len(mount[1]))[2]) if fitting else "unknown file system"


def _syncs(folder: Path) -> float:
    return 1 / statistics.median(time_syncs(folder, _WRITES))


def time_syncs(folder: Path, writes: int) -> list[float]:
    """Return the seconds of each of `count` small synchronous writes."""
    path = folder / "fsync"
    sync = os.fsync if sys.platform in ("win32", "darwin") else os.fdatasync
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(writes):
            begun = time.perf_counter()
            file.write(bytes(4096))
            sync(file.fileno())
            times.append(time.perf_counter() - begun)
    path.unlink()
    return times
