"""The store: every call that both databases answer with the same code."""

from __future__ import annotations

from redrive.store.bulk import BulkCalls
from redrive.store.catalogue import CatalogueCalls
from redrive.store.circuits import CircuitCalls
from redrive.store.groups import GroupCalls
from redrive.store.letters import LetterCalls
from redrive.store.notifications import Notices, NotificationCalls
from redrive.store.outbox import OutboxCalls
from redrive.store.recovery import RecoveryCalls
from redrive.store.runs import RunCalls
from redrive.store.schedules import ScheduleCalls, Schedules
from redrive.store.settings import SettingsCalls
from redrive.store.stats import StatsCalls
from redrive.store.views import SavedViewCalls, Views
from redrive.store.workers import WorkerCalls

__all__ = ["SqlStore"]


class SqlStore(
    RunCalls,
    LetterCalls,
    GroupCalls,
    BulkCalls,
    CircuitCalls,
    OutboxCalls,
    CatalogueCalls,
    WorkerCalls,
    RecoveryCalls,
    SettingsCalls,
    StatsCalls,
):
    """The calls that do not depend on the database. Subclasses add the fast path, leases and notifiers."""

    @property
    def notices(self) -> Notices:
        return NotificationCalls(self.database)

    @property
    def schedules(self) -> Schedules:
        return ScheduleCalls(self.database)

    @property
    def views(self) -> Views:
        return SavedViewCalls(self.database)
