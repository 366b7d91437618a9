"""What the engine asks of a store: few calls, batch-shaped, one transaction each, safe to repeat.

Three rules hold for every implementation and are proved by one conformance suite:

* **Time** is the store's own. Callers pass delays in microseconds; rows hold microseconds since 1970.
* **Fences.** `apply` writes a transition only if the run still carries the transition's fence (and the
  worker, if named, is still alive), under a lock that conflicts with changing either.
* **Repeats.** A call whose reply was lost may be sent again; the second one changes nothing more.

Errors: `StoreUnavailable` means "repeat it", `DataRefused` means "one of these rows is at fault".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from redrive.core.journal import EntryRow
from redrive.core.outbox import DeliveredBundle, DeliveryResult, SinkLease, Suspects
from redrive.core.states import RunStatus
from redrive.core.transitions import AuditWrite, NewRun, Transition, TransitionResult
from redrive.store.account_records import AccountStore
from redrive.store.bulk import BulkChange, BulkItemResult, BulkItemRow, BulkRow, NewBulk, SetItemStatus
from redrive.store.circuits import (
    CircuitCase,
    CircuitKey,
    CircuitRow,
    CircuitUpdate,
    CircuitUpdateResult,
    Permit,
    PermitRequest,
)
from redrive.store.filters import AuditFilter, CircuitFilter, GroupFilter, LetterFilter, OutboxFilter, RunFilter
from redrive.store.notifications import NotificationStore
from redrive.store.outbox_records import BlockedKey, ClaimedDeliveries, DeliveryDecision, MessageRow, NewSink, SinkRow
from redrive.store.records import (
    AttemptRow,
    AuditRow,
    DecisionCase,
    Facets,
    GroupPage,
    HeldRun,
    LetterRow,
    Page,
    PolicyRow,
    PurgeRequest,
    RunRow,
    RunSummary,
    StartResult,
    Triage,
)
from redrive.store.settings import SavedViewStore, ScheduleStore
from redrive.store.stats import StoreStats
from redrive.store.workers import (
    Catalogue,
    CatalogueRow,
    ClaimRequest,
    ClaimResult,
    HeartbeatReply,
    NewWorker,
    WorkerRow,
)


class LeaseConnection(Protocol):
    """A worker's own connection for heartbeats, used from the lease's thread only."""

    def beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> HeartbeatReply:
        """Renew the lease; note the heartbeats of steps, keyed by (run, entry index)."""

    def close(self) -> None:
        """Give the connection back."""


class Transaction(Protocol):
    """The transaction of one transactional step, on a connection of its own."""

    async def execute(self, statement: str, *params: Any) -> int:
        """Run a statement; return the number of rows it changed."""

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """Run a query; return its rows."""

    async def fetchrow(self, statement: str, *params: Any) -> dict[str, Any] | None:
        """Run a query; return its first row."""

    async def commit(self, worker: int, transition: Transition) -> TransitionResult:
        """Record the step as the transaction's last act and commit; roll back if the fence is gone."""

    async def rollback(self) -> None:
        """Undo everything. Harmless after `commit`."""


class DeskStore(Protocol):
    """What is done for people: the half of the port that can be confined to one tenant."""

    def now(self) -> int:
        """The store's time in microseconds since 1970, as well as this process knows it."""

    def fingerprint_key(self, tenant: str) -> bytes:
        """Return the key of a tenant's fingerprints, the same in all processes; nothing is read for it."""

    @property
    def accounts(self) -> AccountStore:
        """The calls about people and their credentials."""

    @property
    def notices(self) -> NotificationStore:
        """The calls about notifications."""

    @property
    def schedules(self) -> ScheduleStore:
        """The calls about schedules."""

    @property
    def views(self) -> SavedViewStore:
        """The calls about saved views."""

    # -- accepting work -------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[StartResult]:
        """Accept runs, each together with its idempotency key.

        A worker that is named, and alive, has those of them that are new, due and not paused from the
        beginning, as if it had claimed them at once. A repeat finds them taken, and brings none.
        """

    async def apply(
        self, transitions: Sequence[Transition], *, worker: int | None = None, carriers: Sequence[SinkLease] = ()
    ) -> list[TransitionResult]:
        """Write each transition whose fence still holds; one commit for all of them.

        The caller has their messages for the sinks of `carriers` from the beginning, as if it had claimed
        them at once: those without a key, bundled by topic. A repeat finds them taken, and brings none.
        """

    # -- deciding and noting --------------------------------------------------------------------------

    async def triage(self, triage: Triage) -> bool:
        """Note something on a letter; False if there is no such letter."""

    async def note(self, lines: Sequence[AuditWrite]) -> None:
        """Add lines to the audit log."""

    async def create_bulk(self, new: NewBulk, audit: AuditWrite) -> None:
        """Accept a set of letters to decide on."""

    async def change_bulk(self, public_id: str, change: BulkChange, audit: AuditWrite) -> bool:
        """Stop a set, pause it, let it go on or change its rate; False if it is over, or stands like that.

        Nobody is handed letters of a set that is stopped or paused; what was handed out is decided on.
        """

    # -- reading --------------------------------------------------------------------------------------

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        """One run with its payloads."""

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        """Several runs with their payloads, for those who wait for results."""

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        """A page of runs, newest first."""

    async def journal(self, run: int) -> list[EntryRow]:
        """All entries of a run, superseded ones too, in order of their index."""

    async def attempts(self, run: int) -> list[AttemptRow]:
        """All tries of a run that did not succeed, in order of time."""

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        """One dead letter."""

    async def letter_of(self, run: int) -> LetterRow | None:
        """The dead letter of a run."""

    async def cases(self, ids: Sequence[str]) -> list[DecisionCase]:
        """What deciding about these takes, each named by its letter's or its run's id, if they exist.

        All of it as of one moment: a letter that is open belongs to a run with the fence it was opened under.
        """

    async def audit(self, where: AuditFilter, *, limit: int, cursor: str | None) -> Page[AuditRow]:
        """A page of the audit log, newest first."""

    async def known(self, names: Sequence[str]) -> list[CatalogueRow]:
        """The workflows and steps of these names, as far as any code registered them."""

    async def workflows(self) -> list[CatalogueRow]:
        """Every workflow that any code registered, as the newest of that code has it, by name."""

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        """A page of dead letters, newest first."""

    async def facets(self, where: LetterFilter, *, most: int) -> Facets:
        """How the newest letters that match, up to `most`, are spread over codes, workflows and so on."""

    async def run_summaries(self, where: RunFilter, *, most: int, oldest: bool = False) -> list[RunSummary]:
        """The newest runs that match, up to `most`, or the oldest first, with little about each."""

    async def count_letters(self, where: LetterFilter) -> int:
        """How many letters match."""

    async def bulk_by_id(self, public_id: str) -> BulkRow | None:
        """One set of letters."""

    async def sets(self, tenant: str | None, *, limit: int, cursor: str | None) -> Page[BulkRow]:
        """A page of sets of letters, of one tenant or of all, the newest first."""

    async def bulk_run_counts(self, set: BulkRow) -> dict[RunStatus, int]:
        """How many of the runs that a set let go on or started stand where; those purged are left out."""

    async def set_items(
        self, set: BulkRow, status: SetItemStatus | None, *, limit: int, cursor: str | None
    ) -> Page[BulkItemRow]:
        """A page of a set's letters, the last ones first."""

    async def groups(self, where: GroupFilter, *, limit: int, cursor: str | None) -> GroupPage:
        """A page of failure groups, the one seen last first."""

    # -- circuits and messages --------------------------------------------------------------------

    async def circuit(self, tenant: str, key: str, *, counted: int = 1) -> CircuitCase:
        """A circuit with all that deciding about it takes; one that was never heard of is closed.

        The runs that wait for it are counted up to `counted`.
        """

    async def circuits(self, where: CircuitFilter, *, limit: int, cursor: str | None) -> Page[CircuitRow]:
        """A page of circuits, those heard of last first."""

    async def update_circuit(self, turn: CircuitUpdate) -> CircuitUpdateResult:
        """Write a circuit if it has the version it was read with, and let parked runs go on.

        They are made due, those that came first before the others; what others hold is left alone.
        """

    async def message(self, public_id: str, *, tenant: str | None = None) -> MessageRow | None:
        """One message with its deliveries."""

    async def messages(self, where: OutboxFilter, *, limit: int, cursor: str | None) -> Page[MessageRow]:
        """A page of messages with their deliveries, newest first."""

    async def blocked_keys(self, *, tenant: str | None = None, limit: int) -> list[BlockedKey]:
        """Keys whose first message is dead, so that those behind it wait for a person; oldest first."""

    async def decide_deliveries(self, decision: DeliveryDecision) -> int:
        """Retry or skip deliveries of a message that are not over; return how many that changed."""

    # -- settings -------------------------------------------------------------------------------------

    async def policies(self) -> list[PolicyRow]:
        """All stored retry policies."""

    async def set_policy(self, policy: PolicyRow, audit: AuditWrite) -> None:
        """Store a policy, replacing the one with the same tenant, workflow and step."""

    async def delete_policy(self, tenant: str, workflow: str, step: str, audit: AuditWrite) -> bool:
        """Remove a policy; False if there was none, and then nothing is noted."""

    async def paused(self) -> dict[str, str]:
        """Paused workflows and who paused them."""


class Store(DeskStore, Protocol):
    """The whole port."""

    def tenant_view(self, tenant: str, workflows: Collection[str] | None = None) -> DeskStore:
        """A view in which no other tenant exists, and of this one only runs of these workflows, if named.

        It is made for one request: it writes only about runs that it has shown.
        """

    async def open(self, *, migrate: bool = True) -> None:
        """Connect; bring the schema up to date if that is safe, otherwise say what to do."""

    async def close(self) -> None:
        """Let go of every connection."""

    async def changed(self) -> None:
        """Return when another process may have committed since this last returned: a hint, no promise."""

    # -- workers -------------------------------------------------------------------------------------

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        """Register a worker and what its code contains; return the worker's id."""

    async def retire(self, worker: int) -> None:
        """Mark a worker as stopped. Runs it still holds are orphans at once."""

    async def workers(self) -> list[WorkerRow]:
        """All workers still known, newest first."""

    def lease_connection(self) -> LeaseConnection:
        """Open the connection for one worker's heartbeats."""

    async def claim(self, claim: ClaimRequest) -> ClaimResult:
        """Give a live worker due runs, each under a fence one higher than before."""

    def transaction(self, limit: float) -> Transaction:
        """A transaction for one step; it begins at its first statement and lasts at most `limit` seconds."""

    # -- chores --------------------------------------------------------------------------------------

    async def expire_workers(self) -> list[WorkerRow]:
        """Declare workers dead whose lease has run out; return all dead or stopped ones that hold runs."""

    async def held(self, worker: int) -> list[HeldRun]:
        """The runs a worker holds, with their open entries."""

    async def hung(self, margin: int, limit: int) -> list[HeldRun]:
        """Runs in which an attempt passed its limit by more than `margin`.

        The limit is set by the begin mark of the present claim (`limit_in`); where the step's options
        name a heartbeat timeout, each heartbeat moves it on, up to the step's own timeout.
        """

    async def overdue(self, margin: int, limit: int) -> list[HeldRun]:
        """Unfinished runs that passed their deadline by more than `margin`."""

    async def runs_with_expired_letters(self, limit: int) -> list[RunRow]:
        """Runs whose open letters nobody decided on in time."""

    async def purge(self, purge: PurgeRequest) -> int:
        """Remove what was kept long enough; return the number of rows removed."""

    async def fold(self, limit: int) -> int:
        """Add up to `limit` changes of letters to the failure groups; return how many there were.

        Any number of nodes may do so at once; each change is added once.
        """

    async def claim_bulk(self, lease: int) -> BulkRow | None:
        """Take a set that nobody works on, for as long as the lease lasts; the one that waited longest."""

    async def advance(
        self, set: BulkRow, marks: Sequence[BulkItemResult], *, limit: int, lease: int
    ) -> list[BulkItemRow] | None:
        """Note what became of letters of a set; return the next ones, which may be none for the moment.

        None if there is nothing more to do for the caller: the set is done, was stopped, or is another's.
        What was decided is noted in any case. A set with a filter is listed along the way.
        """

    # -- circuits ------------------------------------------------------------------------------------

    async def permit(self, ask: PermitRequest) -> Permit:
        """Ask to call a dependency whose circuit may not be closed; a permit is given to few.

        It counts for as long as the run is held under the fence it was given to, and asking again under
        that fence gets the same one. No two callers are answered at the same time.
        """

    async def circuits_due(self, since: int) -> list[CircuitKey]:
        """Circuits that something is to be done about.

        Those that were open long enough, those with marks of `since` or later, and those that runs are
        parked on although calls may be let through.
        """

    async def circuits_changed_since(self, since: int) -> list[CircuitRow]:
        """Circuits that ever turned and were changed at `since` or later, without counting who waits."""

    # -- outbox --------------------------------------------------------------------------------------

    async def put_sinks(self, sinks: Sequence[NewSink]) -> None:
        """Have every message on their topics that is committed from now on delivered to these sinks, too."""

    async def claim_deliveries(
        self, sink: str, *, limit: int, lease: int, suspects: Suspects = Suspects.TAKE
    ) -> ClaimedDeliveries:
        """Give the caller due deliveries to a sink, which nobody else gets until the lease has passed.

        Of messages with one key, only the first ones that are not over, together. One that may not go yet
        waits behind the one that keeps it back. Large payloads come in smaller numbers. `suspects` says
        what to do about those whose claimant never said what became of them.
        """

    async def record_deliveries(
        self,
        sink: str,
        marks: Sequence[DeliveryResult],
        audit: Sequence[AuditWrite] = (),
        arrived: Sequence[DeliveredBundle] = (),
    ) -> None:
        """Write what became of claimed deliveries, except those that somebody else has claimed since.

        Bundles of which everything `arrived` are noted as a whole.
        """

    # -- people --------------------------------------------------------------------------------------

    async def remove_sink(self, name: str, audit: AuditWrite) -> bool:
        """Send nothing more to a sink and skip what waits for it; False if there is none of that name."""

    # -- reading -------------------------------------------------------------------------------------

    async def unclaimable(self, workflows: Sequence[str]) -> dict[str, int]:
        """Due runs by workflow (counted up to 1,000) that nobody can claim.

        Those are runs of workflows which neither a live worker has registered nor the caller names here.
        """

    async def sinks(self) -> list[SinkRow]:
        """All sinks, and how much waits for each."""

    async def figures(self) -> StoreStats:
        """How much waits, for whom, and since when; counted up to limits, by indexes."""

    # -- settings ------------------------------------------------------------------------------------

    async def pause(self, workflow: str, audit: AuditWrite) -> None:
        """Let no run of the workflow be claimed until it is resumed."""

    async def resume(self, workflow: str, audit: AuditWrite) -> None:
        """Undo `pause`; nothing is noted if it was not paused."""
