"""The port of the store: few calls, shaped for batches, one transaction each, safe to repeat.

The protocol of each noun stands in its module; here they are put together. Three rules hold for every
implementation, and one conformance suite tests them:

* **Time** is the store's own. Callers pass delays in microseconds; rows hold microseconds since 1970.
* **Fences.** `apply` writes a transition only if the run still carries the transition's fence (and the
  worker, if named, is still alive), under a lock that conflicts with changing either.
* **Repeats.** A call whose reply was lost may be sent again; the second one changes nothing more.

Errors: after `StoreUnavailable` the caller repeats the call; `DataRefused` means that one of the rows is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from redrive.core.outbox import SinkLease
from redrive.core.transitions import NewRun, Transition, TransitionResult
from redrive.store.accounts import AccountStore
from redrive.store.audit import AuditDesk
from redrive.store.bulk import BulkDesk, BulkStore
from redrive.store.children import ChildStore
from redrive.store.chores import ChoreStore
from redrive.store.circuits import CircuitDesk, CircuitStore
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.events import EventDesk, EventStore
from redrive.store.groups import GroupDesk, GroupStore
from redrive.store.letters import LetterDesk
from redrive.store.notifications import NotificationStore
from redrive.store.outbox import OutboxDesk, OutboxStore
from redrive.store.outbox_claims import OutboxClaimStore
from redrive.store.questions import QuestionDesk, QuestionStore
from redrive.store.runs import RunDesk, StartResult
from redrive.store.settings import SavedViewStore, ScheduleStore, SettingsDesk, SettingsStore
from redrive.store.stats import StatsDesk, StatsStore
from redrive.store.step_tasks import TaskDesk, TaskStore
from redrive.store.workers import Beats, CatalogueDesk, HeartbeatReply, Receipt, WorkerStore


class LeaseConnection(Protocol):
    """A connection for the heartbeats of workers, used from one thread only."""

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        """Renew the leases of these workers, and record the heartbeats of their steps."""

    def record(self, worker: int, marks: Sequence[Transition]) -> None:
        """Record that attempts began, for a worker whose event loop is blocked. Fences are checked as usual."""

    def close(self) -> None:
        """Close the connection."""


class Transaction(Protocol):
    """The transaction of one transactional step, on its own connection."""

    async def execute(self, statement: str, *params: Any) -> int:
        """Run a statement; return the number of rows it changed."""

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """Run a query; return its rows."""

    async def fetchrow(self, statement: str, *params: Any) -> dict[str, Any] | None:
        """Run a query; return its first row."""

    async def commit(self, worker: int, transition: Transition) -> TransitionResult:
        """Record the step and commit; roll back if the run carries another fence."""

    async def rollback(self) -> None:
        """Undo everything. Does nothing after `commit`."""


class DeskStore(
    RunDesk,
    EventDesk,
    QuestionDesk,
    LetterDesk,
    AuditDesk,
    GroupDesk,
    BulkDesk,
    CircuitDesk,
    OutboxDesk,
    CatalogueDesk,
    SettingsDesk,
    StatsDesk,
    TaskDesk,
    Protocol,
):
    """The calls for users: the half of the port that can be confined to one tenant."""

    def now(self) -> int:
        """Return the store's time in microseconds since 1970, as exactly as this process knows it."""

    def fingerprint_key(self, tenant: str) -> bytes:
        """Return the key of a tenant's fingerprints. It is equal in all processes; nothing is read for it."""

    @property
    def accounts(self) -> AccountStore:
        """The calls about accounts and credentials."""

    @property
    def notifications(self) -> NotificationStore:
        """The calls about notifications."""

    @property
    def schedules(self) -> ScheduleStore:
        """The calls about schedules."""

    @property
    def views(self) -> SavedViewStore:
        """The calls about saved views."""

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[StartResult]:
        """Accept runs, each together with its idempotency key.

        With a live `worker`, that worker has claimed every run that is new, due and not paused. A repeated call
        finds these runs claimed already and returns no claims.
        """

    async def apply(
        self,
        transitions: Sequence[Transition],
        *,
        worker: int | None = None,
        carriers: Sequence[SinkLease] = (),
        receipt: Receipt | None = None,
    ) -> list[TransitionResult]:
        """Write each transition whose fence still holds; one commit for all of them.

        With a `receipt`, the commit records it as well. If the batch does not follow the worker's last one, nothing is
        written and `StaleBatch` is raised.

        For the sinks of `carriers`, the caller has claimed the messages without a key, bundled by topic. A repeated
        call finds them claimed already and returns no bundles.
        """


class Store(
    DeskStore,
    EventStore,
    QuestionStore,
    ChildStore,
    GroupStore,
    BulkStore,
    CircuitStore,
    OutboxStore,
    OutboxClaimStore,
    WorkerStore,
    ChoreStore,
    SettingsStore,
    StatsStore,
    TaskStore,
    Protocol,
):
    """All calls of a store."""

    def tenant_view(self, tenant: str, workflows: Collection[str] | None = None) -> DeskStore:
        """Return a view in which no other tenant exists, limited to runs of these workflows if given.

        It is made for one request: it writes only about runs that it has shown.
        """

    async def open(self, *, migrate: bool = True) -> None:
        """Connect; bring the schema up to date if that is safe, otherwise raise an error that says what to do."""

    async def close(self) -> None:
        """Close all connections."""

    async def changed(self) -> None:
        """Return when another process may have committed since the last return. This is a hint only."""

    async def claim(self, claim: ClaimRequest) -> ClaimResult:
        """Give a live worker due runs, each under a fence one higher than before."""

    def lease_connection(self) -> LeaseConnection:
        """Open the connection for one worker's heartbeats."""

    def transaction(self, limit: float) -> Transaction:
        """Return a transaction for one step. It begins at its first statement and lasts at most `limit` seconds."""
