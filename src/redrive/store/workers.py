"""Workers: their registration, the catalogue of their code, and the answers that remote workers got.

Each database has its own code for leases: see its module `lease`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol, TypeAlias

import msgspec

from redrive.clock import MICROS
from redrive.core.transitions import AuditWrite, TransitionResult
from redrive.errors import Conflict
from redrive.record_fields import as_dict
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("workers.sql")
CATALOGUE_SQL = Statements("catalogue.sql")

VERSION = re.compile(r"[A-Za-z0-9._+-]{1,100}")
"""The version of a workflow."""

CRASH_PERIOD = 3600 * MICROS
"""Microseconds for which a crash of a worker is reported."""

CRASH_LOOP = 5
"""Crashes within that period from which on the cause lies in the code or the machine, not in a single accident."""

MAX_LISTED_WORKERS = 1000
"""The newest workers, of which `workers` returns the ended ones too: a crash loop makes thousands a day."""


class CatalogueItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A registered workflow, step or channel. `events`: the JSON Schemas of the events that a workflow declares.

    `own`: the version that a workflow has for itself. `pinned`: its runs are claimed by workers of that version only.
    """

    name: str
    options: str
    schema_in: str
    schema_out: str
    events: str | None = None
    own: str | None = None
    pinned: bool = False


class CatalogueRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow, step or channel as the newest code that contains it registered it."""

    kind: str
    name: str
    version: str
    options: str
    schema_in: str
    schema_out: str
    events: str | None = None
    own: str | None = None

    @property
    def code_version(self) -> str:
        """The version that runs get: its own, else that of the code that registered it."""
        return self.version if self.own is None else self.own


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Workflows, steps and names of channels that one version of the user's code registers."""

    version: str
    workflows: tuple[CatalogueItem, ...]
    steps: tuple[CatalogueItem, ...]
    channels: tuple[CatalogueItem, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """The versions that workflows have for themselves."""
        return {item.name: item.own for item in self.workflows if item.own is not None}

    @property
    def pins(self) -> dict[str, str]:
        """The versions to which runs of workflows are pinned when they begin."""
        return {item.name: item.own for item in self.workflows if item.own is not None and item.pinned}


class NewWorker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker process that wants to claim runs: of all queues, or only of the given ones.

    `token`: the token of a worker that reaches the store through a server. `tenant`: the tenant of that token, whose
    code no other tenant sees; empty for all tenants. `previous`: the id under which this worker was declared dead
    while it could not reach its server.
    """

    name: str
    version: str
    workflows: tuple[str, ...]
    lease: int
    queues: tuple[str, ...] | None = None
    token: str = ""
    tenant: str = ""
    previous: int = 0


class RemoteWorkerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that reaches the store through a server, with the last batch of outcomes that it sent.

    `tenant`: the only tenant whose runs it may have; empty for all. `answer`: the answers to its outcomes.
    """

    worker: int
    tenant: str
    token: str
    number: int
    digest: str
    answer: str
    answered_at: int
    version: str
    workflows: tuple[str, ...]
    queues: tuple[str, ...] | None
    state: str
    lease: int
    versions: Mapping[str, str]

    def version_of(self, workflow: str) -> str:
        """Return the version of the code of a workflow."""
        return self.versions.get(workflow, self.version)


class ReceiptWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A batch of outcomes of a remote worker and its answer, which are recorded in the commit of the batch."""

    worker: int
    tenant: str
    number: int
    digest: str
    answer: str
    answered_at: int


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of a batch before its answer is known.

    `make_answer` makes it from what the commit kept. It may be called before the commit as well, as if that will keep
    everything.
    """

    worker: int
    tenant: str
    number: int
    digest: str
    make_answer: Callable[[Sequence[bool]], str]

    def fill(self, results: Sequence[TransitionResult]) -> ReceiptWrite:
        """Return the receipt with the answer to a batch with these results."""
        return ReceiptWrite(
            worker=self.worker,
            tenant=self.tenant,
            number=self.number,
            digest=self.digest,
            answer=self.make_answer([result.kept for result in results]),
            answered_at=results[0].now if results else 0,
        )


class StaleBatch(Conflict):
    """A batch of a remote worker is not the one that follows its last; nothing of it was written."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored worker. Without `queues` it takes runs of all queues.

    `versions`: the versions that workflows have for themselves. `pins`: those of pinned workflows. `release`: the
    number of its version in the order in which versions were first seen; None without workflows.
    `draining`: an operator had it end. `remote`: it reaches the store through a server.
    """

    id: int
    name: str
    version: str
    state: str
    workflows: tuple[str, ...]
    started_at: int
    beat_at: int
    lease_until: int
    queues: tuple[str, ...] | None = None
    versions: Mapping[str, str] = {}
    pins: Mapping[str, str] = {}
    release: int | None = None
    draining: bool = False
    remote: bool = False

    def version_of(self, workflow: str) -> str:
        """Return the version of the code of a workflow."""
        return self.versions.get(workflow, self.version)

    def has(self, workflow: str, pin: str = "") -> bool:
        """Return True if it has the workflow, in the version to which a run is pinned."""
        return workflow in self.workflows and pin in ("", self.version_of(workflow))

    def takes(self, workflow: str, queue: str, pin: str = "") -> bool:
        """Return True if it claims runs of this workflow and queue that are pinned to this version."""
        return self.has(workflow, pin) and (self.queues is None or queue in self.queues)

    def takes_steps(self, queue: str) -> bool:
        """Return True if it executes single steps of this queue: a worker without workflows does."""
        return not self.workflows and (self.queues is None or queue in self.queues)

    def is_alive_at(self, now: int) -> bool:
        """Return True while its lease runs. Without a lease it counts as dead, even if not declared dead yet."""
        return self.state == "LIVE" and self.lease_until > now

    def has_crashed_at(self, now: int) -> bool:
        """Return True if it ended without deregistering: its lease expired, whether or not it was declared dead yet."""
        return self.state == "DEAD" or (self.state == "LIVE" and self.lease_until <= now)


def live_workers(workers: Iterable[WorkerRow], now: int) -> list[WorkerRow]:
    """Return the workers that are alive at this moment."""
    return [each for each in workers if each.is_alive_at(now)]


def recent_crashes(workers: Iterable[WorkerRow], now: int) -> list[WorkerRow]:
    """Return the workers that crashed within the last hour. The end of the lease counts as the time of the crash."""
    return [each for each in workers if each.has_crashed_at(now) and each.lease_until > now - CRASH_PERIOD]


def worker_row(row: Sequence[Any]) -> WorkerRow:
    """Return a row of `workers` as a record."""
    return build_record(WorkerRow, row, workflows=_read_names, queues=_read_names, versions=json.loads, pins=json.loads)


def _read_names(names: str | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(json.loads(names))


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat: `alive` is False once the worker was declared dead.

    `drain`: an operator wants the worker to end. `every`: microseconds between two heartbeats, 0 for the worker's own.
    """

    alive: bool
    held: frozenset[int]
    now: int
    drain: bool = False
    every: int = 0


Beats: TypeAlias = "Mapping[int, Mapping[tuple[int, int], str | None]]"
"""Heartbeats by the id of the worker: the details of its steps, by run and index of the entry."""


class HeldCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The runs that workers hold, by the id of the worker.

    `stalled`: those that a remote worker has held for ten leases without reporting an outcome.
    """

    held: Mapping[int, int]
    stalled: Mapping[int, int]


class CatalogueDesk(Protocol):
    """Calls that read the catalogue of registered code. A tenant view answers them too."""

    async def known(self, names: Sequence[str], *, tenant: str = "") -> list[CatalogueRow]:
        """Return the workflows, steps and channels of these names, registered for all tenants or for this one."""

    async def workflows(self, *, tenant: str = "") -> list[CatalogueRow]:
        """Return every such workflow by name, as the newest code registered it."""


class WorkerStore(CatalogueDesk, Protocol):
    """All calls about workers and their code, except claims and leases."""

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        """Register a worker and the catalogue of its code; return the worker's id."""

    async def retire(self, worker: int) -> None:
        """Mark a worker as stopped. Runs that it still holds are orphans at once."""

    async def drain_worker(self, worker: int, audit: AuditWrite) -> bool:
        """Have a live worker begin nothing more, and end; False, and no audit line, if it was told before."""

    async def retire_worker(self, worker: int, audit: AuditWrite) -> bool:
        """Take all runs back from a live worker at once, and have it end; False if it is not alive."""

    async def count_held_by_worker(self) -> HeldCounts:
        """Return how many runs each worker holds."""

    async def remote_worker(self, worker: int) -> RemoteWorkerRow | None:
        """Return a worker that registered through a server."""

    async def count_remote_workers(self, token: str) -> int:
        """Return the number of live workers that registered with a token."""

    async def count_held(self, token: str) -> int:
        """Return the number of runs that the live workers of a token hold."""

    async def has_live_worker(self, workflow: str, version: str, *, tenant: str = "") -> bool:
        """Return True if a live worker has this version of the code of a workflow.

        With a tenant, workers that belong to other tenants do not count.
        """

    async def record_suspects(self, worker: int, runs: Sequence[int]) -> None:
        """Remember the runs that are suspected of the death of a worker, or clear them if it registered again."""

    async def names_for_all(self, names: Sequence[str]) -> list[str]:
        """Return those of these names that code for all tenants registered."""

    async def workers(self) -> list[WorkerRow]:
        """Return the live workers and those among the newest 1,000, newest first."""


class WorkerCalls:
    """Implements `WorkerStore`."""

    database: Database

    @write_call()
    async def enlist(self, session: Session, worker: NewWorker, catalogue: Catalogue) -> int:
        kinds = (("workflow", catalogue.workflows), ("step", catalogue.steps), ("channel", catalogue.channels))
        # Sorted, because two workers that lock the same rows must do so in the same order.
        items = sorted(
            ((kind, item) for kind, items in kinds for item in items), key=lambda each: (each[0], each[1].name)
        )
        async with session.transaction():
            now = await session.now()
            if catalogue.version or items:  # a worker without code executes steps only
                await session.rows(SQL["insert_version"], version=catalogue.version, now=now)
            await session.write_many(
                SQL["put_catalogue"],
                (
                    {"tenant": worker.tenant, "kind": kind, "version": catalogue.version, **_make_item_row(item)}
                    for kind, item in items
                ),
            )
            queues = None if worker.queues is None else json.dumps(worker.queues, ensure_ascii=False)
            workflows = json.dumps(worker.workflows, ensure_ascii=False)
            values = {**as_dict(worker), "workflows": workflows, "queues": queues}
            values |= {"versions": _encode(catalogue.versions), "pins": _encode(catalogue.pins)}
            token, tenant, previous = values.pop("token"), values.pop("tenant"), values.pop("previous")
            id: int = await session.value(SQL["insert_worker"], **values, now=now)
            if token and previous:
                found = await session.row(SQL["return_worker"], worker=previous, token=token)
                await _clear_suspects(session, [] if found is None else json.loads(found[0]))
            if token:
                await session.rows(SQL["insert_remote_worker"], worker=id, tenant=tenant, token=token)
        return id

    @write_call()
    async def retire(self, session: Session, worker: int) -> None:
        await session.rows(SQL["retire"], worker=worker, ordered=False)

    @write_call()
    async def drain_worker(self, session: Session, worker: int, audit: AuditWrite) -> bool:
        return await session.change(SQL["drain"], audit, worker=worker)

    @write_call()
    async def retire_worker(self, session: Session, worker: int, audit: AuditWrite) -> bool:
        return await session.change(SQL["retire"], audit, worker=worker, ordered=True)

    @read_call()
    async def count_held_by_worker(self, session: Session) -> HeldCounts:
        held, stalled = await session.rows(SQL["count_held_by_worker"]), await session.rows(SQL["count_stalled"])
        return HeldCounts(held=dict(held), stalled=dict(stalled))

    @read_call()
    async def remote_worker(self, session: Session, worker: int) -> RemoteWorkerRow | None:
        row = await session.row(SQL["remote_worker"], worker=worker)
        return (
            None
            if row is None
            else build_record(RemoteWorkerRow, row, workflows=_read_names, queues=_read_names, versions=json.loads)
        )

    @read_call()
    async def count_remote_workers(self, session: Session, token: str) -> int:
        return int(await session.value(SQL["count_remote_workers"], token=token))

    @read_call()
    async def count_held(self, session: Session, token: str) -> int:
        return int(await session.value(SQL["count_held"], token=token))

    @read_call()
    async def has_live_worker(self, session: Session, workflow: str, version: str, *, tenant: str = "") -> bool:
        rows = await session.rows(SQL["live_versions"], tenant=tenant)
        return any(json.loads(own).get(workflow, general) == version for general, own in rows)

    @write_call()
    async def record_suspects(self, session: Session, worker: int, runs: Sequence[int]) -> None:
        async with session.transaction():
            text = json.dumps(list(runs))
            if not await session.rows(SQL["put_suspects"], worker=worker, runs=text):
                await _clear_suspects(session, runs)

    @read_call()
    async def names_for_all(self, session: Session, names: Sequence[str]) -> list[str]:
        return [row[0] for row in await session.rows(SQL["names_for_all"], names=list(names))]

    @read_call()
    async def workers(self, session: Session) -> list[WorkerRow]:
        return [worker_row(row) for row in await session.rows(SQL["all_workers"], most=MAX_LISTED_WORKERS)]

    @read_call()
    async def known(self, session: Session, names: Sequence[str], *, tenant: str = "") -> list[CatalogueRow]:
        return _keep_newest(await session.rows(CATALOGUE_SQL["known"], names=list(names), tenant=tenant))

    @read_call()
    async def workflows(self, session: Session, *, tenant: str = "") -> list[CatalogueRow]:
        return _keep_newest(await session.rows(CATALOGUE_SQL["workflows"], tenant=tenant))


def _encode(versions: Mapping[str, str]) -> str:
    return json.dumps(versions, ensure_ascii=False)


def _make_item_row(item: CatalogueItem) -> dict[str, Any]:
    row = as_dict(item)
    del row["pinned"]
    return row


async def _clear_suspects(session: Session, runs: Sequence[int]) -> None:
    """Take one death back from each of these runs: their worker lives."""
    if runs:
        await session.rows(SQL["clear_suspects"], runs=list(runs))


def _keep_newest(rows: Iterable[Any]) -> list[CatalogueRow]:
    """Keep the first row of each workflow or step: the one that the newest code registered."""
    newest = [next(group) for _, group in groupby(rows, key=lambda row: (row[0], row[1]))]
    return [build_record(CatalogueRow, row) for row in newest]
