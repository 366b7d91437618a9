"""Idempotent background duties that any node may perform at any time; there is no leader.

Each chore is one coroutine function `run_once()`; `every` repeats it.
"""

from redrive.chores.every import every
from redrive.chores.maintenance import Folder, Purger, Releaser, Watch
from redrive.chores.reap import Reaper
from redrive.chores.relay import Handover, Relay
from redrive.chores.schedule import Planned, Scheduler

__all__ = [
    "Folder",
    "Handover",
    "Planned",
    "Purger",
    "Reaper",
    "Relay",
    "Releaser",
    "Scheduler",
    "Watch",
    "every",
]
