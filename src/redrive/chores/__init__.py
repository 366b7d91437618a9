"""Idempotent background duties that any node may perform at any time; there is no leader.

Each chore is one coroutine function `run_once()`; `every` repeats it.
"""

from redrive.chores.every import run_every
from redrive.chores.maintenance import CircuitUpdater, GroupAggregator, Purger, UnclaimableRunMonitor
from redrive.chores.reap import Reaper
from redrive.chores.relay import Relay, RelayForwarder
from redrive.chores.schedule import Scheduler, WorkflowSchedule

__all__ = [
    "GroupAggregator",
    "RelayForwarder",
    "WorkflowSchedule",
    "Purger",
    "Reaper",
    "Relay",
    "CircuitUpdater",
    "Scheduler",
    "UnclaimableRunMonitor",
    "run_every",
]
