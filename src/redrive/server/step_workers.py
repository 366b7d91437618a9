"""Step workers of a server: tasks that they take, and their answers.

A step worker executes single attempts of steps, in any language. It says what happened, and the server decides. A
ticket names a task and the fence under which it was handed out. It is signed for one worker: another one finds nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from redrive.clock import Clock
from redrive.core.failure import Failure, ReportedError
from redrive.core.roles import Principal
from redrive.core.secret_and_sealed_text import is_sealed, make_sealed_value, read_sealed_text
from redrive.core.states import StepStatus
from redrive.errors import NotAllowed, NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.remote import step_worker_protocol as step_protocol
from redrive.server.problem_responses import ProblemError
from redrive.server.worker_input import check_fields, make_request_error
from redrive.settle.step_tasks import StepQueues, TaskReport, read_run_options, read_step_options
from redrive.store.port import Store
from redrive.store.step_tasks import TaskCase, TaskClaim, TaskHeartbeat, TaskStatus, find_last_in_turn

if TYPE_CHECKING:
    from redrive.app.runtime import Runtime
    from redrive.server.live_updates import LongPolls
    from redrive.server.remote_workers import WorkerSession

LONGEST_POLL = 20.0
_SIGNATURE = 20  # characters


class StepWorkers:
    """The step workers of a server process."""

    def __init__(self, runtime: Callable[[], Runtime], clock: Clock, polls: LongPolls, max_payload: int) -> None:
        self._runtime = runtime
        self._clock = clock
        self._polls = polls
        self._max_payload = max_payload
        self._queues = StepQueues(lambda: runtime().store, clock, max_payload, lambda: runtime().listeners)
        # The tenant that was served last, by tenant of the worker and queue.
        self._served: dict[tuple[str, str], str] = {}

    @property
    def _store(self) -> Store:
        return self._runtime().store

    # -- taking ---------------------------------------------------------------------------------------

    async def poll(
        self,
        session: WorkerSession,
        principal: Principal,
        call: step_protocol.TaskPoll,
        has_left: Callable[[], Awaitable[bool]],
    ) -> step_protocol.TaskPollReply:
        """Give a worker tasks, as soon as there are some. `has_left`: the caller has closed the connection."""
        if principal.steps is not None and not principal.steps.issuperset(call.steps):
            raise NotAllowed(Reason(ReasonCode.TOKEN_STEPS, steps=tuple(sorted(principal.steps))))
        if session.row.queues is not None and call.queue not in session.row.queues:
            own = ", ".join(session.row.queues)
            raise make_request_error(
                f"{call.queue!r} is not one of this worker's queues ({own}): register again with it"
            )
        left = min(call.wait_ms / 1000, LONGEST_POLL)
        kind = ("steps", session.row.tenant, call.queue)
        began = self._clock.monotonic()
        cases: list[TaskCase] = []
        while not await has_left():
            cases = await self._take(session, principal, call)
            left -= self._clock.monotonic() - began
            began = self._clock.monotonic()
            if cases or left <= 0:
                break
            self._runtime().wake_listeners.add(self._polls.notify_all)
            if not await self._polls.wait(session.row.worker, kind, left):
                left = 0.0  # one more look, because a notification can be lost
        if await has_left():
            await self._queues.give_back(cases)  # a worker that died must not count as having begun with them
            cases = []
            self._polls.notify_one(kind)
        elif len(cases) >= call.capacity:
            self._polls.notify_one(kind)  # there may be more than this worker could take
        tasks = [await self._offer(session.row.worker, case) for case in cases]
        return step_protocol.TaskPollReply(tasks=tasks, now=self._store.now())

    async def _take(self, session: WorkerSession, principal: Principal, call: step_protocol.TaskPoll) -> list[TaskCase]:
        row = session.row
        turn = (row.tenant, call.queue)
        claim = TaskClaim(
            worker=row.worker,
            queue=call.queue,
            names=call.steps,
            most=call.capacity,
            begins=call.begin,
            tenant=row.tenant or None,
            after=self._served.get(turn, ""),
            workflows=None if principal.workflows is None else tuple(principal.workflows),
        )
        cases = await self._queues.take(claim, keys=call.keys)
        if row.tenant and any(case.tenant != row.tenant for case in cases):
            raise NotFound(Reason(ReasonCode.WORKER_UNKNOWN))
        if cases:
            self._served[turn] = find_last_in_turn((case.tenant for case in cases), claim.after)
        return cases

    async def _offer(self, worker: int, case: TaskCase) -> step_protocol.OfferedTask:
        step = read_step_options(case)
        patience = step.heartbeat_timeout
        return step_protocol.OfferedTask(
            ticket=self._make_ticket(case, worker),
            run_id=case.run_id,
            workflow=case.workflow,
            step=case.name,
            attempt=case.attempt,
            input=_make_raw(case.input),
            idempotency_key=await self._queues.find_key(case),
            timeout_ms=int(step.timeout * 1000),
            heartbeat_timeout_ms=None if patience is None else int(patience * 1000),
            tenant=case.tenant,
            correlation_id=case.correlation_id or case.run_id,
            traceparent=read_run_options(case).trace,
        )

    # -- tickets --------------------------------------------------------------------------------------

    def _sign(self, text: str) -> str:
        key = self._store.fingerprint_key("\x00step tickets")  # no tenant has this name
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:_SIGNATURE]

    def _make_ticket(self, case: TaskCase, worker: int) -> str:
        address = f"{case.run}-{case.index}-{case.fence}"
        return f"{address}-{self._sign(f'{address}-{worker}')}"

    def _read_ticket(self, session: WorkerSession, ticket: str) -> tuple[int, int, int]:
        """Return run, index and fence of a ticket; raise NotFound unless this worker got it."""
        address, _, signature = ticket.rpartition("-")
        parts = address.split("-")
        expected = self._sign(f"{address}-{session.row.worker}")
        if not ticket.isascii() or not hmac.compare_digest(signature, expected) or len(parts) != 3:
            raise NotFound(Reason(ReasonCode.TICKET_UNKNOWN))
        run, index, fence = map(int, parts)
        return run, index, fence

    async def begin(self, session: WorkerSession, tickets: Sequence[str]) -> list[step_protocol.BeginReply]:
        """Note durably that a worker begins with tasks; tell the result of a step that was executed by another one."""
        places = [self._read_ticket(session, ticket) for ticket in tickets]
        tenant, now = session.row.tenant, self._store.now()
        begun = await self._store.begin_tasks(
            session.row.worker,
            [TaskHeartbeat(tenant=tenant, run=run, index=index, fence=fence) for run, index, fence in places],
        )
        return [
            step_protocol.BeginReply(should_execute=True, now=now)
            if place in begun
            else step_protocol.BeginReply(
                should_execute=False, now=now, cached_result=await self._read_result(*place[:2])
            )
            for place in places
        ]

    async def _read_result(self, run: int, index: int) -> msgspec.Raw | None:
        """Return the recorded result of a step, None if there is none."""
        entries = {entry.index: entry for entry in await self._store.journal(run)}
        if index not in entries or entries[index].status is not StepStatus.SUCCESS:
            return None
        result = entries[index].output
        return None if result is None else _make_raw(result)

    async def beat(self, session: WorkerSession, beats: Sequence[tuple[str, str | None]]) -> list[str]:
        """Record heartbeats of tasks; return the tickets whose tasks the worker should stop."""
        for _, details in beats:
            check_fields({"data": details}, self._max_payload)
        beats = [(ticket, details and read_sealed_text(details)) for ticket, details in beats]
        tickets = {ticket: self._read_ticket(session, ticket) for ticket, _ in beats}
        if not tickets:
            return []
        signs = [
            TaskHeartbeat(
                tenant=session.row.tenant,
                run=tickets[ticket][0],
                index=tickets[ticket][1],
                fence=tickets[ticket][2],
                heartbeat=details,
            )
            for ticket, details in beats
        ]
        alive = await self._store.beat_tasks(session.row.worker, signs)
        return [ticket for ticket, place in tickets.items() if place not in alive]

    # -- answers --------------------------------------------------------------------------------------

    async def report(self, session: WorkerSession, given: step_protocol.TicketReport) -> step_protocol.ReportReply:
        """Record the answer to one ticket; raise a conflict if its task was taken from the worker."""
        (reply,) = await self.settle(session, [given])
        if reply.status == "LOST":
            raise ProblemError(409, Reason(ReasonCode.TASK_LOST), code="lost", title="The task was taken away")
        return replace(reply, ticket=None)

    async def settle(
        self, session: WorkerSession, given: Sequence[step_protocol.TicketReport]
    ) -> list[step_protocol.ReportReply]:
        """Decide on answers and record the decisions in one commit. A repeat gets the first answer again."""
        places = [self._read_ticket(session, each.ticket) for each in given]
        if len(set(places)) < len(places):
            raise make_request_error("a ticket has two answers in one request")
        cases = {(case.run, case.index): case for case in await self._store.task_cases([each[:2] for each in places])}
        replies: list[step_protocol.ReportReply | None] = []
        reports: list[TaskReport] = []
        for each, (run, index, fence) in zip(given, places, strict=True):
            case = cases.get((run, index))
            known = _read_reply(case, fence, each.ticket)
            replies.append(known)
            if known is None and case is not None:
                reports.append(await self._make_report(case, each))
        if reports:
            store = self._store.tenant_view(session.row.tenant) if session.row.tenant else self._store
            settled = iter(await self._queues.settle(reports, store))
            lost = False
            for number, each in enumerate(given):
                if replies[number] is None:
                    found = next(settled)
                    lost = lost or found is None
                    if found is not None:
                        replies[number] = step_protocol.ReportReply(ticket=each.ticket, **msgspec.structs.asdict(found))
            if lost:  # taken away meanwhile; or recorded, and the answer of the store was lost
                again = {(c.run, c.index): c for c in await self._store.task_cases([each[:2] for each in places])}
                for number, (run, index, fence) in enumerate(places):
                    if replies[number] is None:
                        known = _read_reply(again.get((run, index)), fence, given[number].ticket)
                        replies[number] = known or _make_lost_reply(given[number].ticket)
            self._runtime().wake_workers()
        return [reply for reply in replies if reply is not None]

    async def _make_report(self, case: TaskCase, given: step_protocol.TicketReport) -> TaskReport:
        if given.error is not None:
            return TaskReport(case=case, failure=_read_failure(given))
        return await self._queues.make_report(case, read_sealed_text(bytes(given.output).decode()))


def _make_raw(payload: str) -> msgspec.Raw:
    """Return a payload as JSON, or `{"sealed": text}` if a worker encrypted it."""
    return msgspec.Raw(json.dumps(make_sealed_value(payload)).encode() if is_sealed(payload) else payload.encode())


def _read_reply(case: TaskCase | None, fence: int, ticket: str) -> step_protocol.ReportReply | None:
    """Return the answer that a ticket got before, or that it is lost; None if its task waits for an answer."""
    if case is not None and case.settled == fence and case.reply is not None:
        with suppress(msgspec.DecodeError, msgspec.ValidationError):
            return replace(msgspec.json.decode(case.reply, type=step_protocol.ReportReply), ticket=ticket)
    waits = case is not None and case.status is TaskStatus.TAKEN and case.fence == fence and case.is_wanted
    return None if waits else _make_lost_reply(ticket)


def _make_lost_reply(ticket: str) -> step_protocol.ReportReply:
    return step_protocol.ReportReply(status="LOST", ticket=ticket)


def _read_failure(given: step_protocol.TicketReport) -> Failure:
    error = given.error
    try:
        reported = ReportedError(message=error) if isinstance(error, str) else msgspec.convert(error, ReportedError)
    except msgspec.ValidationError as fault:
        raise make_request_error(f"the error is neither a text nor an object of an error: {fault}") from None
    return reported.to_failure(non_retryable=given.non_retryable, retry_after_ms=given.retry_after_ms)
