"""Background work that any process may do at any time. It is idempotent, and needs no leader.

Each chore has a coroutine function `run_once()`; `run_every` repeats it.
"""

from redrive.chores.maintenance import (
    ChildUpdater,
    CircuitUpdater,
    GroupAggregator,
    LetterEscalator,
    Purger,
    ReplayCounter,
    TaskEscalator,
    UnclaimableRunMonitor,
    run_every,
)
from redrive.chores.reaper import Reaper
from redrive.chores.relay import Relay, RelayForwarder
from redrive.chores.scheduler import Scheduler, WorkflowSchedule

__all__ = [
    "ChildUpdater",
    "CircuitUpdater",
    "GroupAggregator",
    "LetterEscalator",
    "ReplayCounter",
    "Purger",
    "Reaper",
    "Relay",
    "RelayForwarder",
    "Scheduler",
    "TaskEscalator",
    "UnclaimableRunMonitor",
    "WorkflowSchedule",
    "run_every",
]
