"""Events that are sent to runs: their records, and the calls that send and read them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from redrive.core.states import RunStatus
from redrive.core.transitions import AuditWrite
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements
from redrive.store.step_tasks import TaskAnswer, read_task_answers

SQL = Statements("events.sql")

REFUSING_STATUSES = frozenset({RunStatus.SUCCESS, RunStatus.CANCELLED, RunStatus.COMPENSATED, RunStatus.COMPENSATING})
"""A run in one of these takes no more events: its code will not ask for any."""


class NewEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event to send. `payload` is JSON. `key`: the same key is the same event.

    The run must belong to `tenant`. `most`: the number of unread events from which on the run takes no more.
    `most_bytes`: the size that its unread events may reach together; a single event may be larger.
    """

    run_id: str
    tenant: str
    name: str
    payload: str
    by: str
    most: int
    most_bytes: int
    key: str | None = None
    audit: AuditWrite | None = None


class EventRow(msgspec.Struct, frozen=True, gc=False):
    """A stored event. `taken`: the index of the journal entry that took it, or set it aside because of `refused`."""

    seq: int
    at: int
    tenant: str
    name: str
    key: str | None
    by: str
    payload: str
    taken: int | None = None
    refused: str | None = None


class SendResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to an event. Without a `seq` it was not stored.

    `run`: the run that got it; a run that a full replay replaced passes its events on. `worker`: holds the run.
    `woke`: the run is due because of the event. `full`: too many events are unread, or too large ones. `first`: the
    event that was sent under the same key before.
    """

    run: int
    run_id: str
    workflow: str
    status: RunStatus
    worker: int | None
    seq: int | None
    woke: bool
    full: bool
    first: EventRow | None = None


class Mailbox(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The unread events of a run, together with its wake-ups and its fence at the same moment.

    `tasks`: the answers of its steps that others execute, read afterwards.
    """

    wakeups: int
    fence: int
    events: tuple[EventRow, ...]
    tasks: tuple[TaskAnswer, ...] = ()


class EventDesk(Protocol):
    """Calls about events that users make. A tenant view answers them too."""

    async def send(self, event: NewEvent) -> SendResult | None:
        """Store an event for a run and wake the run; None if the run does not exist for this tenant."""

    async def events(self, run: int, *, after: int = 0, most: int = 1000) -> list[EventRow]:
        """Return the events of a run after a number, in the order in which they were stored."""


class EventStore(EventDesk, Protocol):
    """All calls about events."""

    async def mailbox(self, run: int, *, tasks: bool = False) -> Mailbox | None:
        """Return the unread events of a run, and with `tasks` the answers of its steps that others execute."""

    async def wakeups(self, runs: Sequence[int]) -> dict[int, int]:
        """Return the number of wake-ups of each of these runs."""


class EventCalls:
    """Implements `EventStore`. The databases differ in `_send`, which returns the columns of `send_event`."""

    database: Database
    _send: Callable[[Session, NewEvent], Awaitable[Sequence[Any]]]

    @write_call()
    async def send(self, session: Session, event: NewEvent) -> SendResult | None:
        row = await self._send(session, event)
        if row[0] is None:
            return None
        run, run_id, _, workflow, status, worker, seq, _, woke, full, first = row
        known = None if first is None else await session.row(SQL["event"], run=run, seq=first)
        return SendResult(
            run=run,
            run_id=run_id,
            workflow=workflow,
            status=RunStatus(status),
            worker=worker,
            seq=seq,
            woke=bool(woke),
            full=bool(full),
            first=None if known is None else build_record(EventRow, known),
        )

    @read_call()
    async def events(self, session: Session, run: int, *, after: int = 0, most: int = 1000) -> list[EventRow]:
        rows = await session.rows(SQL["events"], run=run, after=after, most=most)
        return [build_record(EventRow, row) for row in rows]

    @read_call()
    async def mailbox(self, session: Session, run: int, *, tasks: bool = False) -> Mailbox | None:
        rows = await session.rows(SQL["unread_events"], run=run)
        if not rows:
            return None
        events = tuple([EventRow(*row[2:]) for row in rows if row[2] is not None])
        answers = await read_task_answers(session, run) if tasks else ()
        return Mailbox(rows[0][0], rows[0][1], events, answers)

    @read_call()
    async def wakeups(self, session: Session, runs: Sequence[int]) -> dict[int, int]:
        return dict(map(tuple, await session.rows(SQL["wakeups"], runs=list(runs))))
