"""Runs that wait for other runs, and runs that end with their owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from redrive.core.children import is_answer
from redrive.core.states import RunStatus
from redrive.core.waits_and_events import LETTER_KIND
from redrive.store.session import Database, Session, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("children.sql")


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of a run, or of the run that a full replay started in its place.

    `subject`: the name under which others wait for it, which a full replay does not change. `open_letter`: a dead
    letter of the run waits for a decision, or is being replayed. `owner`: the run that it ends with. `executed`: a
    worker had it. `ends_as`: the status that its last rollback was to end in.
    """

    run_id: str
    tenant: str
    workflow: str
    subject: str
    status: RunStatus
    output: str | None
    failure: str | None
    open_letter: bool
    owner: str | None = None
    executed: bool = True
    ends_as: RunStatus | None = None


class Child(msgspec.Struct, frozen=True, gc=False):
    """A run that ends with its owner."""

    run_id: str
    workflow: str
    under_way: bool


class AwaitedRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The run that another one waits for, with the wake-ups and the fence of the one that waits.

    `end`: None if the run does not exist for the tenant of the one that waits.
    """

    wakeups: int
    fence: int
    end: RunEnd | None


class WokenRun(msgspec.Struct, frozen=True, gc=False):
    """A run that was woken: its id, its wake-ups, and whether it is due because of that."""

    run: int
    wakeups: int
    due: bool


class RunWait(msgspec.Struct, frozen=True, gc=False):
    """A run that waits for the end of another one."""

    subject: str
    run: int
    kind: str
    tenant: str


class OwnedRun(msgspec.Struct, frozen=True, gc=False):
    """A run under way that ends with its owner. `status`: that of the owner, None if that was purged."""

    owner: str
    run: int
    run_id: str
    status: RunStatus | None


class ChildStore(Protocol):
    """Calls about runs that wait for each other. Only the engine makes them."""

    on_woken: Callable[[Sequence[WokenRun]], None]
    """Gets the runs that the end of another run woke, in the process that recorded the end."""

    async def awaited_run(self, run: int, run_id: str) -> AwaitedRun | None:
        """Return the run with an id, for a run that waits for it; None if that one does not exist.

        If the run is ending at this moment, this returns after its end is committed.
        """

    async def children_of(self, owner: str, tenant: str) -> list[Child]:
        """Return the runs that end with a run of this tenant, in the order of their start."""

    async def run_waits(self, after: RunWait | None, most: int) -> list[RunWait]:
        """Return waits for runs, in order, after the given one."""

    async def wake_answered(self, waits: Sequence[RunWait]) -> int:
        """Wake those of the runs that sleep although the run that they wait for has ended; return their number."""

    async def owned_runs(self, after: OwnedRun | None, most: int) -> list[OwnedRun]:
        """Return runs under way that have an owner, in order, after the given one."""


class ChildCalls:
    """Implements `ChildStore`. The databases differ in `_find_awaited`, which returns the columns of `awaited_run`."""

    database: Database
    _find_awaited: Callable[[Session, int, str], Awaitable[Sequence[Any] | None]]

    on_woken: Callable[[Sequence[WokenRun]], None] = staticmethod(lambda woken: None)  # the runtime replaces it

    @read_call()
    async def awaited_run(self, session: Session, run: int, run_id: str) -> AwaitedRun | None:
        row = await self._find_awaited(session, run, run_id)
        if row is None or row[0] is None:
            return None
        wakeups, fence, tenant, found_id, workflow, subject, status, output, failure, letter, owner, executed, end = row
        if status is None:
            return AwaitedRun(wakeups=wakeups, fence=fence, end=None)
        found = RunEnd(
            run_id=found_id,
            tenant=tenant,
            workflow=workflow,
            subject=subject,
            status=RunStatus(status),
            output=output,
            failure=failure,
            open_letter=bool(letter),
            owner=owner,
            executed=bool(executed),
            ends_as=None if end is None else RunStatus(end),
        )
        return AwaitedRun(wakeups=wakeups, fence=fence, end=found)

    @read_call()
    async def children_of(self, session: Session, owner: str, tenant: str) -> list[Child]:
        rows = await session.rows(SQL["children_of"], owner=owner, tenant=tenant)
        return [Child(run_id, workflow, bool(under_way)) for run_id, workflow, under_way in rows]

    @read_call()
    async def run_waits(self, session: Session, after: RunWait | None, most: int) -> list[RunWait]:
        subject, run = ("", 0) if after is None else (after.subject, after.run)
        rows = await session.rows(SQL["run_waits"], subject=subject, run=run, most=most)
        return [RunWait(*row) for row in rows]

    async def wake_answered(self, waits: Sequence[RunWait]) -> int:
        subjects = sorted({each.subject for each in waits})
        ended = {(id, tenant): state for id, tenant, *state in await self._ended_subjects(subjects)}
        answered: list[int] = []
        for each in waits:
            if (each.subject, each.tenant) not in ended:
                continue
            status, replaced, open_letter = ended[each.subject, each.tenant]
            # A run that was replaced is rare, and waking a run too often does no harm.
            if replaced or is_answer(RunStatus(status), bool(open_letter), each.kind == LETTER_KIND):
                answered.append(each.run)
        return len(await self.wake_runs(answered, asleep=True)) if answered else 0

    @read_call()
    async def _ended_subjects(self, session: Session, subjects: Sequence[str]) -> list[Sequence[Any]]:
        return await session.rows(SQL["ended_subjects"], subjects=list(subjects))

    async def wake_runs(self, runs: Sequence[int], *, asleep: bool = False) -> list[WokenRun]:
        """Wake runs: in one commit those whose rows are free, and each of the others in its own.

        So a commit that holds the rows of several runs waits for none.
        """
        left = list(dict.fromkeys(runs))
        woken = await self._wake_free(left, asleep) if len(left) > 1 else []
        done = {each.run for each in woken}
        for run in left:
            if run not in done:
                woken += await self._wake_run(run, asleep)
        if woken:
            self.tell_woken(woken)
        return woken

    def tell_woken(self, woken: Sequence[WokenRun]) -> None:
        """Let the processes that hold or can claim these runs look for them."""
        self.on_woken(woken)

    @write_call()
    async def _wake_free(self, session: Session, runs: Sequence[int], asleep: bool) -> list[WokenRun]:
        rows = await session.rows(SQL["wake_free"], runs=list(runs), asleep=asleep)
        return [WokenRun(run, wakeups, bool(due)) for run, wakeups, due in rows]

    @write_call()
    async def _wake_run(self, session: Session, run: int, asleep: bool) -> list[WokenRun]:
        rows = await session.rows(SQL["wake_waiting"], run=run, asleep=asleep)
        return [WokenRun(run, wakeups, bool(due)) for run, wakeups, due in rows]

    @read_call()
    async def owned_runs(self, session: Session, after: OwnedRun | None, most: int) -> list[OwnedRun]:
        owner, run = ("", 0) if after is None else (after.owner, after.run)
        rows = await session.rows(SQL["owned_runs"], owner=owner, run=run, most=most)
        return [
            OwnedRun(owner, run, run_id, None if status is None else RunStatus(status))
            for owner, run, run_id, status in rows
        ]
