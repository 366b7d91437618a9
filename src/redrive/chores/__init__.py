"""Idempotent background duties that any node may perform at any time; there is no leader.

Each chore is one coroutine function `run_once()`; `every` repeats it.
"""

from redrive.chores.every import every
from redrive.chores.groups import Folder
from redrive.chores.handover import Handover
from redrive.chores.purge import Purger
from redrive.chores.reap import Reaper
from redrive.chores.relay import Relay
from redrive.chores.release import Releaser
from redrive.chores.schedule import Planned, Scheduler
from redrive.chores.sets import SetWorker
from redrive.chores.watch import Watch

__all__ = [
    "Folder",
    "Handover",
    "Planned",
    "Purger",
    "Reaper",
    "Relay",
    "Releaser",
    "Scheduler",
    "SetWorker",
    "Watch",
    "every",
]
