"""Routes of remote workers and step workers: `POST /worker/...`, with bodies as in `redrive.remote.worker_protocol`.

They are plain routes, not operations of the desk: a worker speaks for its runs and not for a user. The credential of a
worker is cached for two seconds, and the rate of the API does not apply: it would slow down exactly the fast workers.
`WorkerDoor` answers the calls with a fixed path itself.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from redrive.clock import MICROS
from redrive.core.roles import Permission, Principal
from redrive.errors import NotFound, RedriveError
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.remote import step_worker_protocol as step_protocol
from redrive.remote import worker_protocol
from redrive.server.problem_responses import ProblemError, answer_error
from redrive.server.remote_workers import LONGEST_POLL, RemoteWorkers, WorkerSession
from redrive.server.request_context import check_permissions, get_service, load_principal, request_address
from redrive.server.request_guard import AsgiApp, AsgiMessage, Receive, Send, get_path
from redrive.server.step_workers import StepWorkers
from redrive.server.worker_input import decode_body, make_protocol_error
from redrive.settings import API_PREFIX
from redrive.store.circuits import CircuitRow, Permit, PermitRequest
from redrive.store.runs import StartResult

T = TypeVar("T")
RunNumber = Annotated[int, Path(ge=0, le=2**53, description="The number of a run, as its claim has it.")]
worker_routes = APIRouter(prefix=API_PREFIX, tags=["remote workers"])
_SCHEMA_PREFIX = "#/components/schemas/{name}"


async def _get_principal(request: Request) -> Principal:
    """Return the token of a request; refuse one that may not execute runs, or speaks another protocol."""
    principal = await load_principal(request, get_service(request))
    check_permissions(principal, {"x-permissions": [Permission.WORK]})
    given = request.headers.get(worker_protocol.PROTOCOL_HEADER, str(worker_protocol.PROTOCOL))
    if given != str(worker_protocol.PROTOCOL):
        raise make_protocol_error(given[:20])
    return principal


Worker = Annotated[Principal, Depends(_get_principal)]


def _get_workers(request: Request) -> RemoteWorkers:
    return get_service(request).remote_workers


async def _find_session(request: Request, principal: Worker) -> WorkerSession:
    given = request.headers.get(worker_protocol.WORKER_HEADER, "")
    if not (given.isascii() and given.isdigit() and len(given) < 17):
        raise NotFound(Reason(ReasonCode.WORKER_UNKNOWN))
    return await _get_workers(request).find_session(principal, int(given))


Session = Annotated[WorkerSession, Depends(_find_session)]


async def read_record(request: Request, kind: type[T]) -> T:
    """Return the body of a request as a record."""
    return decode_body(await request.body(), kind)


def answer_record(value: Any) -> Response:
    """Return a record as the JSON of a response."""
    # A payload that a worker encrypted is an `Unreadable`, which only `str` encodes.
    return Response(msgspec.json.encode(value, enc_hook=str.__str__), media_type="application/json")


def describe_call(call: Any, reply: Any, *, session: bool = True) -> dict[str, Any]:
    """Return the arguments of a route: its permission, and the schemas of its body and its answer."""
    (answered, *given), parts = msgspec.json.schema_components(
        [reply] if call is None else [reply, call], ref_template=_SCHEMA_PREFIX
    )
    headers = [worker_protocol.WORKER_HEADER] if session else []
    parameters = [
        {"name": name, "in": "header", "required": True, "schema": {"type": "string", "pattern": "^[0-9]{1,16}$"}}
        for name in headers
    ]
    body = {"required": True, "content": {"application/json": {"schema": given[0]}}} if given else None
    answer = {"description": "The answer.", "content": {"application/json": {"schema": answered}}}
    return {
        "openapi_extra": {
            "x-permissions": [Permission.WORK.value],
            "x-schemas": parts,
            **({} if body is None else {"requestBody": body}),
            "parameters": parameters,
            "responses": {"200": answer},
        },
        "response_model": None,
    }


@worker_routes.post(
    "/worker/register", **describe_call(worker_protocol.Registration, worker_protocol.Registered, session=False)
)
async def register_worker(request: Request, principal: Worker) -> Response:
    """Register a worker with its code; the answer has its id, which all other calls send."""
    call = await read_record(request, worker_protocol.Registration)
    address = request_address(request, get_service(request))
    return answer_record(await _get_workers(request).register(principal, call, address))


@worker_routes.post("/worker/claim", **describe_call(worker_protocol.ClaimCall, worker_protocol.ClaimReply))
async def claim_runs(request: Request, principal: Worker, session: Session) -> Response:
    """Claim due runs, each under a new fence."""
    call = await read_record(request, worker_protocol.ClaimCall)
    return answer_record(await _get_workers(request).claim(session, principal, call))


@worker_routes.post("/worker/wait", **describe_call(worker_protocol.WaitCall, worker_protocol.WaitReply))
async def wait_for_work(request: Request, principal: Worker, session: Session) -> Response:
    """Wait until there may be due runs, for at most 20 seconds."""
    call = await read_record(request, worker_protocol.WaitCall)
    due = await _get_workers(request).wait(session, min(call.wait / MICROS, LONGEST_POLL))
    now = get_service(request).app.runtime.store.now()
    return answer_record(worker_protocol.WaitReply(due=due, now=now))


@worker_routes.post("/worker/settle", **describe_call(worker_protocol.Batch, worker_protocol.Answers))
async def settle_batch(request: Request, principal: Worker, session: Session) -> Response:
    """Decide on a batch of outcomes. The same batch sent again gets the same answer."""
    answer = await _get_workers(request).settle(session, await request.body())
    return Response(answer, media_type="application/json")


@worker_routes.post("/worker/begun", **describe_call(worker_protocol.Begun, worker_protocol.Done))
async def record_begun(request: Request, principal: Worker, session: Session) -> Response:
    """Record attempts that began, for a worker whose event loop is blocked."""
    await _get_workers(request).record_begun(session, await request.body())
    return answer_record(worker_protocol.Done(now=get_service(request).app.runtime.store.now()))


@worker_routes.post("/worker/beat", **describe_call(worker_protocol.BeatCall, worker_protocol.BeatReply))
async def renew_lease(request: Request, principal: Worker, session: Session) -> Response:
    """Renew the worker's lease; the answer lists the runs that it holds, and the tickets that it should drop."""
    call = await read_record(request, worker_protocol.BeatCall)
    reply = await _get_workers(request).beat(session, call)
    cancelled = await get_service(request).step_workers.beat(session, [(ticket, None) for ticket in call.tickets])
    return answer_record(replace(reply, cancelled=tuple(cancelled)))


@worker_routes.get("/worker/held", **describe_call(None, list[worker_protocol.HeldReply]))
async def list_held_runs(request: Request, principal: Worker, session: Session) -> Response:
    """List the runs that the worker holds."""
    return answer_record(await _get_workers(request).list_held(session))


@worker_routes.get("/worker/runs/{run}/history", **describe_call(None, worker_protocol.History))
async def read_history(
    request: Request,
    principal: Worker,
    session: Session,
    run: RunNumber,
    after: Annotated[int, Query(ge=0, le=2**31, description="The number of entries that the worker has.")] = 0,
    max_bytes: Annotated[int, Query(ge=0, le=2**53, description="The size of a page; 0 for no limit.")] = 0,
) -> Response:
    """Read the journal, the attempts and the failure of a run that the worker holds; with `after`, more entries."""
    return answer_record(await _get_workers(request).read_history(session, run, after, max_bytes))


@worker_routes.get("/worker/runs/{run}/mailbox", **describe_call(None, worker_protocol.MailboxReply))
async def read_mailbox(
    request: Request, principal: Worker, session: Session, run: RunNumber, tasks: bool = False
) -> Response:
    """Read the unread events of a run that the worker holds, and with `tasks` the answers of its remote steps."""
    return answer_record(await _get_workers(request).read_mailbox(session, run, tasks=tasks))


@worker_routes.post(
    "/worker/runs/{run}/awaited", **describe_call(worker_protocol.AwaitedCall, worker_protocol.AwaitedReply)
)
async def read_awaited(request: Request, principal: Worker, session: Session, run: RunNumber) -> Response:
    """Read the state of the run that a run waits for, which the worker holds."""
    call = await read_record(request, worker_protocol.AwaitedCall)
    return answer_record(await _get_workers(request).read_awaited(session, principal, run, call))


@worker_routes.post("/worker/runs/{run}/asked", **describe_call(worker_protocol.AskedCall, worker_protocol.AskedReply))
async def read_asked(request: Request, principal: Worker, session: Session, run: RunNumber) -> Response:
    """Read the answer to a question of a run that the worker holds."""
    return answer_record(
        await _get_workers(request).read_asked(session, run, await read_record(request, worker_protocol.AskedCall))
    )


@worker_routes.post("/worker/wakeups", **describe_call(worker_protocol.WakeupsCall, worker_protocol.WakeupsReply))
async def read_wakeups(request: Request, principal: Worker, session: Session) -> Response:
    """Read how often runs that the worker holds were woken."""
    return answer_record(
        await _get_workers(request).read_wakeups(session, await read_record(request, worker_protocol.WakeupsCall))
    )


@worker_routes.post("/worker/start", **describe_call(worker_protocol.StartCall, list[StartResult]))
async def start_runs(request: Request, principal: Worker, session: Session) -> Response:
    """Start runs of the worker's workflows, and claim those that are due if the worker asks for it."""
    call = await read_record(request, worker_protocol.StartCall)
    return answer_record(await _get_workers(request).start(session, principal, call))


@worker_routes.post("/worker/permit", **describe_call(PermitRequest, Permit))
async def request_permit(request: Request, principal: Worker, session: Session) -> Response:
    """Ask whether a run may call a dependency whose circuit is not closed."""
    return answer_record(await _get_workers(request).permit(session, await read_record(request, PermitRequest)))


@worker_routes.post("/worker/circuit", **describe_call(worker_protocol.CircuitCall, CircuitRow))
async def evaluate_circuit(request: Request, principal: Worker, session: Session) -> Response:
    """Decide on a circuit about which calls were recorded."""
    return answer_record(
        await _get_workers(request).evaluate_circuit(session, await read_record(request, worker_protocol.CircuitCall))
    )


@worker_routes.post("/worker/circuits", **describe_call(worker_protocol.CircuitsCall, list[CircuitRow]))
async def read_circuits(request: Request, principal: Worker, session: Session) -> Response:
    """Count successful calls, and return the circuits that changed."""
    return answer_record(
        await _get_workers(request).read_circuits(session, await read_record(request, worker_protocol.CircuitsCall))
    )


@worker_routes.post("/worker/version", **describe_call(worker_protocol.VersionCall, worker_protocol.VersionReply))
async def find_version(request: Request, principal: Worker, session: Session) -> Response:
    """Ask whether a live worker has a version of the code."""
    call = await read_record(request, worker_protocol.VersionCall)
    alive = await _get_workers(request).has_live_worker(session, call.workflow, call.version)
    return answer_record(worker_protocol.VersionReply(alive=alive))


@worker_routes.post("/worker/retire", **describe_call(worker_protocol.RetireCall, worker_protocol.Done))
async def retire_worker(request: Request, principal: Worker, session: Session) -> Response:
    """Deregister the worker. Runs that it still holds are claimed by others at once."""
    await read_record(request, worker_protocol.RetireCall)
    await _get_workers(request).retire(session)
    return answer_record(worker_protocol.Done(now=get_service(request).app.runtime.store.now()))


Ticket = Annotated[str, Path(min_length=1, max_length=200, description="The ticket of a task, as the poll gave it.")]


def _get_steps(request: Request) -> StepWorkers:
    return get_service(request).step_workers


@worker_routes.post("/worker/steps/poll", **describe_call(step_protocol.TaskPoll, step_protocol.TaskPollReply))
async def poll_steps(request: Request, principal: Worker, session: Session) -> Response:
    """Take tasks of a queue, waiting for them up to `wait_ms` and 20 seconds at most."""
    call = await read_record(request, step_protocol.TaskPoll)
    return answer_record(await _get_steps(request).poll(session, principal, call, request.is_disconnected))


@worker_routes.post(
    "/worker/steps/settle", **describe_call(step_protocol.StepSettlement, step_protocol.SettlementReply)
)
async def settle_steps(request: Request, principal: Worker, session: Session) -> Response:
    """Answer many tickets at once."""
    call = await read_record(request, step_protocol.StepSettlement)
    replies = await _get_steps(request).settle(session, call.answers)
    return answer_record(
        step_protocol.SettlementReply(answers=replies, now=get_service(request).app.runtime.store.now())
    )


@worker_routes.post("/worker/steps/begin", **describe_call(step_protocol.BeginCall, step_protocol.BeginReplies))
async def begin_steps(request: Request, principal: Worker, session: Session) -> Response:
    """Note that the worker begins with many tasks that it polled with `begin: false`."""
    call = await read_record(request, step_protocol.BeginCall)
    return answer_record(step_protocol.BeginReplies(answers=await _get_steps(request).begin(session, call.tickets)))


@worker_routes.post("/worker/steps/{ticket}/begin", **describe_call(None, step_protocol.BeginReply))
async def begin_step(request: Request, principal: Worker, session: Session, ticket: Ticket) -> Response:
    """Note that the worker begins with a task that it polled with `begin: false`."""
    (reply,) = await _get_steps(request).begin(session, [ticket])
    return answer_record(reply)


@worker_routes.post(
    "/worker/steps/{ticket}/heartbeat",
    **describe_call(step_protocol.TaskHeartbeatCall, step_protocol.TaskHeartbeatReply),
)
async def record_step_heartbeat(request: Request, principal: Worker, session: Session, ticket: Ticket) -> Response:
    """Show that a task is alive; the answer says whether to stop it."""
    call = await read_record(request, step_protocol.TaskHeartbeatCall)
    details = bytes(call.details).decode()
    cancelled = await _get_steps(request).beat(session, [(ticket, None if details == "null" else details)])
    now = get_service(request).app.runtime.store.now()
    return answer_record(step_protocol.TaskHeartbeatReply(cancelled=bool(cancelled), now=now))


@worker_routes.post(
    "/worker/steps/{ticket}/complete", **describe_call(step_protocol.TaskOutput, step_protocol.ReportReply)
)
async def complete_step(request: Request, principal: Worker, session: Session, ticket: Ticket) -> Response:
    """Record the result of a task. The same answer again gets the same reply."""
    call = await read_record(request, step_protocol.TaskOutput)
    report = step_protocol.TicketReport(ticket=ticket, output=call.output)
    return answer_record(await _get_steps(request).report(session, report))


@worker_routes.post("/worker/steps/{ticket}/fail", **describe_call(step_protocol.TaskError, step_protocol.ReportReply))
async def fail_step(request: Request, principal: Worker, session: Session, ticket: Ticket) -> Response:
    """Record the failure of a task; the server decides whether and when it is tried again."""
    call = await read_record(request, step_protocol.TaskError)
    report = step_protocol.TicketReport(
        ticket=ticket,
        error="" if call.error is None else call.error,
        non_retryable=call.non_retryable,
        retry_after_ms=call.retry_after_ms,
    )
    return answer_record(await _get_steps(request).report(session, report))


class WorkerDoor:
    """Answers the calls of workers that have a fixed path; passes on all other requests.

    The router of the API tries its paths one by one and solves the dependencies of the route anew for each request.
    That costs several times as much as a call of a worker, and a step needs a call.
    """

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._calls: dict[str, tuple[Any, bool]] = {}
        for route in worker_routes.routes:
            path, methods, endpoint = (getattr(route, name) for name in ("path", "methods", "endpoint"))
            if methods == {"POST"} and "{" not in path:
                self._calls[path] = endpoint, "session" in inspect.signature(endpoint).parameters

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        known = self._calls.get(get_path(scope)) if scope["type"] == "http" and scope["method"] == "POST" else None
        if known is None:
            await self._app(scope, receive, send)
            return
        endpoint, needs_session = known
        request = Request(scope, receive)
        try:
            principal = await _get_principal(request)
            session = (await _find_session(request, principal),) if needs_session else ()
            response: Response = await endpoint(request, principal, *session)
        except (RedriveError, ProblemError) as error:
            response = await answer_error(request, error)
        await response(scope, receive, send)
