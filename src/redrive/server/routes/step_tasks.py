"""The calls of step workers: `POST /worker/steps/...`, with bodies as in `redrive.remote.step_wire`.

A step worker registers, renews its lease and deregisters with the calls of `workers`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from redrive.remote import step_wire as wire
from redrive.server.request_context import get_service
from redrive.server.routes.workers import Session, Worker, answer_record, describe_call, read_record
from redrive.server.step_workers import StepWorkers
from redrive.settings import API_PREFIX

Ticket = Annotated[str, Path(min_length=1, max_length=200, description="The ticket of a task, as the poll gave it.")]
step_task_routes = APIRouter(prefix=API_PREFIX, tags=["remote workers"])


def _get_steps(request: Request) -> StepWorkers:
    return get_service(request).step_workers


@step_task_routes.post("/worker/steps/poll", **describe_call(wire.TaskPoll, wire.TaskPollReply))
async def poll_steps(request: Request, principal: Worker, session: Session) -> Response:
    """Take tasks of a queue, waiting for them up to `wait_ms` and 20 seconds at most."""
    call = await read_record(request, wire.TaskPoll)
    return answer_record(await _get_steps(request).poll(session, principal, call))


@step_task_routes.post("/worker/steps/settle", **describe_call(wire.StepSettlement, wire.SettlementReply))
async def settle_steps(request: Request, principal: Worker, session: Session) -> Response:
    """Answer many tickets at once."""
    call = await read_record(request, wire.StepSettlement)
    replies = await _get_steps(request).settle(session, call.answers)
    return answer_record(wire.SettlementReply(answers=replies, now=get_service(request).app.runtime.store.now()))


@step_task_routes.post("/worker/steps/{ticket}/begin", **describe_call(None, wire.BeginReply))
async def begin_step(request: Request, principal: Worker, session: Session, ticket: Ticket) -> Response:
    """Note that the worker begins with a task that it polled with `begin: false`."""
    return answer_record(await _get_steps(request).begin(session, ticket))


@step_task_routes.post(
    "/worker/steps/{ticket}/heartbeat", **describe_call(wire.TaskHeartbeatCall, wire.TaskHeartbeatReply)
)
async def record_step_heartbeat(request: Request, principal: Worker, session: Session, ticket: Ticket) -> Response:
    """Show that a task is alive; the answer says whether to stop it."""
    call = await read_record(request, wire.TaskHeartbeatCall)
    details = bytes(call.details).decode()
    cancelled = await _get_steps(request).beat(session, [(ticket, None if details == "null" else details)])
    now = get_service(request).app.runtime.store.now()
    return answer_record(wire.TaskHeartbeatReply(cancelled=bool(cancelled), now=now))


@step_task_routes.post("/worker/steps/{ticket}/complete", **describe_call(wire.TaskOutput, wire.ReportReply))
async def complete_step(request: Request, principal: Worker, session: Session, ticket: Ticket) -> Response:
    """Record the result of a task. The same answer again gets the same reply."""
    call = await read_record(request, wire.TaskOutput)
    report = wire.TicketReport(ticket=ticket, output=call.output)
    return answer_record(await _get_steps(request).report(session, report))


@step_task_routes.post("/worker/steps/{ticket}/fail", **describe_call(wire.TaskError, wire.ReportReply))
async def fail_step(request: Request, principal: Worker, session: Session, ticket: Ticket) -> Response:
    """Record the failure of a task; the server decides whether and when it is tried again."""
    call = await read_record(request, wire.TaskError)
    report = wire.TicketReport(
        ticket=ticket,
        error="" if call.error is None else call.error,
        non_retryable=call.non_retryable,
        retry_after_ms=call.retry_after_ms,
    )
    return answer_record(await _get_steps(request).report(session, report))
