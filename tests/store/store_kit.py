"""Helpers for the store's tests: a clock that the test sets, a store that uses it, and short builders."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redrive.clock import Timer
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.core.transitions import (
    AttemptEnd,
    AttemptWrite,
    AuditWrite,
    EntryWrite,
    LetterWrite,
    NewRun,
    RunWrite,
    Transition,
)
from redrive.store.claims import ClaimedRun, ClaimRequest, ClaimResult, Lane
from redrive.store.letters import LetterRow
from redrive.store.port import Store
from redrive.store.runs import RunRow
from redrive.store.workers import Catalogue, CatalogueItem, NewWorker

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
LEASE = 30 * SECOND
BEGINNING = 1_700_000_000 * SECOND


class HandClock:
    """A clock that stands still until the test moves it. Its waits are real, its random numbers count up."""

    def __init__(self) -> None:
        self._now = BEGINNING
        self._ids = 0

    def now(self) -> int:
        return self._now

    def move(self, micros: int) -> None:
        self._now += micros

    def monotonic(self) -> float:
        return self._now / SECOND

    def draw(self) -> float:
        return 0.5

    def new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids:024d}"

    def new_secret(self) -> str:
        return "5ec7e7" * 10

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(delay)


@dataclass
class Kit:
    """A store under test. `beside` opens a second store on the same data, as another process would."""

    store: Store
    clock: HandClock
    beside: Callable[[], Any]
    shared: bool
    kind: str = "sqlite-file"

    def sql(self, statement: str) -> str:
        """Return a user's statement, written with question marks, with the placeholders of this store."""
        if self.kind.startswith("sqlite"):
            return statement
        numbers = itertools.count(1)
        return re.sub(r"\?", lambda _: f"${next(numbers)}", statement)

    async def by_hand(self, statement: str, *params: Any) -> None:
        """Change rows without the port; `redrive.` stands for the store's schema."""
        store: Any = getattr(self.store, "_inner", self.store)
        if self.kind.startswith("sqlite"):
            plain = statement.replace("redrive.", "")
            await store._connections.write(lambda con: con.execute(plain, params))
        else:
            text = self.sql(statement).replace("redrive.", f"{store._address.schema}.")
            await store._pool.run(lambda line: line.con.execute(text, *params))

    async def has_table(self, name: str) -> bool:
        """Return True if the user has a table of this name."""
        sqlite = "SELECT name FROM sqlite_master WHERE name = ?"
        postgres = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename = ?"
        look = self.store.transaction(5.0)
        try:
            return bool(await look.fetch(self.sql(sqlite if self.kind.startswith("sqlite") else postgres), name))
        finally:
            await look.rollback()

    def new(self, **more: Any) -> NewRun:
        """Return a run to start, with a unique id."""
        given: dict[str, Any] = {
            "public_id": self.clock.new_id(),
            "tenant": "default",
            "workflow": "w",
            "input": '{"order":1}',
            "options": '{"retry":null}',
        }
        return NewRun(**{**given, **more})

    async def start(self, count: int = 1, **more: Any) -> list[str]:
        """Start runs of one kind; return their public ids."""
        runs = [self.new(**more) for _ in range(count)]
        return [started.public_id for started in await self.store.start(runs)]

    async def worker(
        self, *workflows: str, version: str = "v1", lease: int = LEASE, own: str | None = None, pinned: bool = False
    ) -> int:
        """Register a worker. With `own`, that is the version of each of its workflows."""
        names = workflows or ("w",)
        return await self.store.enlist(
            NewWorker(name="worker", version=version, workflows=names, lease=lease),
            catalogue(version, *names, own=own, pinned=pinned),
        )

    async def claim(
        self,
        worker: int,
        *workflows: str,
        capacity: int = 10,
        suspect: bool = True,
        after: Lane | None = None,
        own: str | None = None,
    ) -> ClaimResult:
        """Claim due runs. With `own`, that is the version of each workflow."""
        names = workflows or ("w",)
        versions = {} if own is None else dict.fromkeys(names, own)
        return await self.store.claim(
            ClaimRequest(
                worker=worker, workflows=names, capacity=capacity, suspect=suspect, after=after, versions=versions
            )
        )

    async def held(self, **more: Any) -> tuple[int, ClaimedRun]:
        """Start a run and claim it with a new worker; return both."""
        await self.start(**more)
        worker = await self.worker()
        claims = await self.claim(worker, capacity=1)
        return worker, claims.runs[0]

    async def look(self, run: ClaimedRun | RunRow) -> RunRow:
        """Return the run as it is recorded now."""
        found = await self.store.run(run.public_id)
        assert found is not None
        return found

    async def everything(self, run: ClaimedRun | RunRow) -> tuple[Any, ...]:
        """Return everything recorded about a run, to compare before and after."""
        return (
            await self.store.run(run.public_id),
            await self.store.journal(run.id),
            await self.store.attempts(run.id),
            await self.store.letter_of(run.id),
        )

    async def letter(self, run: ClaimedRun | RunRow) -> LetterRow:
        """Return the run's dead letter, which must exist."""
        found = await self.store.letter_of(run.id)
        assert found is not None
        return found

    async def fail(self, worker: int, run: ClaimedRun, **more: Any) -> None:
        """End the run in a dead letter."""
        answers = await self.store.apply([ends_in_letter(run, **more)], worker=worker)
        assert answers[0].kept


def catalogue(version: str, *names: str, own: str | None = None, pinned: bool = False) -> Catalogue:
    """Return a catalogue of these workflows, with a version of their own if given, and one step."""
    workflows = tuple(
        CatalogueItem(name=name, options="{}", schema_in="{}", schema_out="{}", own=own, pinned=pinned)
        for name in names
    )
    step = CatalogueItem(name="charge", options="{}", schema_in="{}", schema_out="{}")
    return Catalogue(version=version, workflows=workflows, steps=(step,))


def entry(index: int = 0, status: StepStatus = StepStatus.SUCCESS, **more: Any) -> EntryWrite:
    """Return a journal entry of a step called `charge`."""
    return EntryWrite(index=index, key=f".charge.{index}", kind=EntryKind.STEP, name="charge", status=status, **more)


def failed_try(index: int = 0, attempt: int = 1, end: AttemptEnd = AttemptEnd.FAILED, **more: Any) -> AttemptWrite:
    """Return an attempt that failed."""
    return AttemptWrite(index=index, attempt=attempt, end=end, **more)


def writes(run: ClaimedRun | RunRow, *entries: EntryWrite, **more: Any) -> Transition:
    """Return a transition under the run's present fence."""
    return Transition(run=run.id, tenant=run.tenant, fence=run.fence, entries=entries, **more)


def becomes(run: ClaimedRun | RunRow, status: RunStatus, **more: Any) -> Transition:
    """Return a transition that changes the run's state."""
    return writes(run, change=RunWrite(status=status, **more))


def letter(run: ClaimedRun | RunRow, **more: Any) -> LetterWrite:
    """Return a dead letter for a run."""
    given: dict[str, Any] = {
        "public_id": f"dl-{run.public_id}",
        "code": "exhausted_retries",
        "stage": "exec",
        "category": "timeout",
        "reason": "the step failed 3 times",
        "failure": '{"message":"too slow"}',
        "fingerprint": "f1",
        "expires_in": 30 * DAY,
        "payload_hash": "hash",
        "step": "charge",
        "step_index": 0,
        "attempts": 3,
    }
    return LetterWrite(**{**given, **more})


def noted(event: str = "dlq.commented", **more: Any) -> AuditWrite:
    """Return a line of the audit log."""
    given: dict[str, Any] = {"event": event, "tenant": "default", "by": "ann", "subject": "w"}
    return AuditWrite(**{**given, **more})


def ends_in_letter(run: ClaimedRun | RunRow, **more: Any) -> Transition:
    """Return a transition that ends the run in a dead letter."""
    return writes(
        run, change=RunWrite(status=RunStatus.DLQ_PENDING, failure='{"message":"too slow"}'), letter=letter(run, **more)
    )
