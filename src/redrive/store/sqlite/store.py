"""The SQLite store: every call of the port is one closure on the right connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from redrive.clock import Clock
from redrive.core.transition import Answer, Transition
from redrive.store.port import (
    AttemptRow,
    Catalogue,
    Claim,
    Claims,
    EntryRow,
    HeldRun,
    LeaseLine,
    LetterFilter,
    LetterRow,
    NewRun,
    NewWorker,
    Page,
    PolicyRow,
    Purge,
    RunFilter,
    RunRow,
    Started,
    Transaction,
    WorkerRow,
)
from redrive.store.sqlite import chores, claims, lists, reads, settings, starts, workers, writes
from redrive.store.sqlite.bell import Bell
from redrive.store.sqlite.connection import Address, locate
from redrive.store.sqlite.lease import FileLease, MemoryLease
from redrive.store.sqlite.lines import Inline, Threaded
from redrive.store.sqlite.schema import prepare
from redrive.store.sqlite.transactions import StepTransaction

__all__ = ["SqliteStore"]


class SqliteStore:
    """A store in one SQLite file, or in memory. See `redrive.store.port` for what each call promises."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._address: Address = locate(url)
        self._clock = clock
        self._lines = self._new_lines()
        self._bell = Bell(self._address)

    def _new_lines(self) -> Threaded | Inline:
        return Inline(self._address) if self._address.in_memory else Threaded(self._address)

    async def open(self, *, migrate: bool = True) -> None:
        self._lines = self._new_lines()  # a store may be opened again after it was closed
        try:
            await self._lines.open()
            await self._lines.visit(
                lambda con: prepare(con, self._address, self._clock.now(), migrate=migrate)
            )
            self._bell.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._bell.close()
        await self._lines.close()

    def now(self) -> int:
        return self._clock.now()

    def change_token(self) -> int:
        return self._bell.token()

    # -- accepting work ------------------------------------------------------------------------------

    async def start(self, runs: Sequence[NewRun]) -> list[Started]:
        return await self._lines.write(lambda con: starts.start(con, self.now(), runs))

    # -- workers -------------------------------------------------------------------------------------

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        return await self._lines.write(lambda con: workers.enlist(con, self.now(), worker, catalogue))

    async def retire(self, worker: int) -> None:
        await self._lines.write(lambda con: workers.retire(con, worker))

    async def workers(self) -> list[WorkerRow]:
        return await self._lines.read(workers.workers)

    def lease_line(self) -> LeaseLine:
        if isinstance(self._lines, Inline):
            return MemoryLease(self._lines, self._clock)
        return FileLease(self._address, self._lines.turn, self._clock)

    async def claim(self, claim: Claim) -> Claims:
        def look_then_take(con: sqlite3.Connection) -> Claims:
            now = self.now()
            found = claims.look(con, now, claim)
            if not found.has_due(now):
                return claims.nothing(now, found.after, found.next_at)
            return self._lines.locked(con, lambda con: claims.take(con, self.now(), claim, found))

        return await self._lines.visit(look_then_take)

    async def apply(self, transitions: Sequence[Transition], *, worker: int | None = None) -> list[Answer]:
        return await self._lines.write(lambda con: writes.apply(con, self.now(), transitions, worker))

    def transaction(self, limit: float) -> Transaction:
        return StepTransaction(self._lines, self._clock, limit)

    # -- chores --------------------------------------------------------------------------------------

    async def bury(self) -> list[WorkerRow]:
        if await self._lines.read(lambda con: chores.anybody_to_bury(con, self.now())):
            await self._lines.write(lambda con: chores.bury(con, self.now()))
        return await self._lines.read(chores.graves)

    async def held(self, worker: int) -> list[HeldRun]:
        return await self._lines.read(lambda con: chores.held(con, worker))

    async def hung(self, margin: int, limit: int) -> list[HeldRun]:
        return await self._lines.read(lambda con: chores.hung(con, self.now(), margin, limit))

    async def overdue(self, margin: int, limit: int) -> list[HeldRun]:
        return await self._lines.read(lambda con: chores.overdue(con, self.now(), margin, limit))

    async def purge(self, purge: Purge) -> int:
        return await self._lines.write(lambda con: chores.purge(con, self.now(), purge))

    # -- reading -------------------------------------------------------------------------------------

    async def run(self, public_id: str, *, tenant: str | None = None) -> RunRow | None:
        return await self._lines.read(lambda con: reads.run(con, public_id, tenant))

    async def runs_by_id(self, public_ids: Sequence[str]) -> list[RunRow]:
        return await self._lines.read(lambda con: reads.runs_by_id(con, public_ids))

    async def runs(self, where: RunFilter, *, limit: int, cursor: str | None) -> Page[RunRow]:
        return await self._lines.read(lambda con: lists.runs(con, where, limit, cursor))

    async def journal(self, run: int) -> list[EntryRow]:
        return await self._lines.read(lambda con: reads.journal(con, run))

    async def attempts(self, run: int) -> list[AttemptRow]:
        return await self._lines.read(lambda con: reads.attempts(con, run))

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        return await self._lines.read(lambda con: reads.letter(con, public_id, tenant))

    async def letter_of(self, run: int) -> LetterRow | None:
        return await self._lines.read(lambda con: reads.letter_of(con, run))

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        return await self._lines.read(lambda con: lists.letters(con, where, limit, cursor))

    async def unclaimable(self, workflows: Sequence[str]) -> dict[str, int]:
        return await self._lines.read(lambda con: reads.unclaimable(con, self.now(), workflows))

    # -- settings ------------------------------------------------------------------------------------

    async def policies(self) -> list[PolicyRow]:
        return await self._lines.read(settings.policies)

    async def set_policy(self, policy: PolicyRow) -> None:
        await self._lines.write(lambda con: settings.set_policy(con, self.now(), policy))

    async def delete_policy(self, tenant: str, workflow: str, step: str) -> bool:
        return await self._lines.write(lambda con: settings.delete_policy(con, tenant, workflow, step))

    async def pause(self, workflow: str, *, by: str) -> None:
        await self._lines.write(lambda con: settings.pause(con, self.now(), workflow, by))

    async def resume(self, workflow: str) -> None:
        await self._lines.write(lambda con: settings.resume(con, workflow))

    async def paused(self) -> dict[str, str]:
        return await self._lines.read(settings.paused)
