"""The backend of a remote worker: its calls as requests to a server.

    settle     one batch at a time, numbered and repeated until it is answered; a repeat gets the same answer
    wait       a long poll beside the claims: nothing is claimed for a connection that is gone
    lease      heartbeats on a connection and a thread of their own

A request without an answer is repeated: each is safe to repeat. If the server refuses the token, the work ends, and
`refused` has the error.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.journal import EntryRow
from redrive.core.outbox import SinkLease
from redrive.core.outcomes import AttemptStarted, EntryRef, Outcome, RunView
from redrive.core.run_options import RunOptions
from redrive.core.transitions import NewRun, Transition
from redrive.errors import (
    Conflict,
    DataRefused,
    InputError,
    NotAllowed,
    NotFound,
    NotSignedIn,
    PayloadError,
    RedriveError,
    StoreError,
    StoreUnavailable,
)
from redrive.observability.counters import SettleListener
from redrive.remote import worker_protocol
from redrive.remote.client import Address, Client
from redrive.remote.sealing import Sealing
from redrive.remote.worker_connection import Server
from redrive.settle.settler import Settled, make_refused
from redrive.store.children import AwaitedRun, Child
from redrive.store.circuits import CircuitKey, CircuitRow, Permit, PermitRequest, SuccessCount
from redrive.store.claims import ClaimedRun, ClaimRequest, ClaimResult
from redrive.store.events import Mailbox
from redrive.store.port import LeaseConnection, Transaction
from redrive.store.questions import AskedQuestion
from redrive.store.runs import AttemptRow, StartResult
from redrive.store.sql_store import repeat_until_answered
from redrive.store.workers import Beats, Catalogue, HeartbeatReply, NewWorker
from redrive.worker.backend import RollbackCause
from redrive.worker.committer import MAX_BATCH

T = TypeVar("T")
log = logging.getLogger("redrive.remote")
_HISTORY_PATIENCE = 5.0  # seconds for which a page of a journal is asked for again
_OFFSET_LIFETIME = 30.0  # seconds after which the server's time is estimated anew
_WAIT = 20.0  # seconds of a long poll, unless the server allows less


class RemoteClock:
    """The server's time, estimated from its answers. The clock of this machine may be wrong."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = 0
        self._error = math.inf
        self._learned_at = -math.inf

    def now(self) -> int:
        """Return the server's time in microseconds since 1970."""
        return int(self._clock.monotonic() * MICROS) + self._offset if self._error < math.inf else self._clock.now()

    def learn(self, now: int, asked_at: float) -> None:
        """Learn from an answer that says the time. The quickest answer of the last seconds is the most exact one."""
        heard_at = self._clock.monotonic()
        error = heard_at - asked_at
        if error <= self._error or heard_at - self._learned_at > _OFFSET_LIFETIME:
            self._offset = now - int((asked_at + heard_at) / 2 * MICROS)
            self._error, self._learned_at = error, heard_at


class RemoteBackend:
    """The backend of one worker, on a server."""

    commits_at_once = 1  # batches are numbered, and each follows the answer to the one before
    listeners: Sequence[SettleListener] = ()

    def __init__(self, address: Address, token: str, clock: Clock, sealing: Sealing | None = None) -> None:
        self._address = address
        self._token = token
        self._sealing = sealing
        self._clock = clock
        self._time = RemoteClock(clock)
        self.now = self._time.now
        self._server = Server(address, token)
        self._worker = 0
        self._number = 0
        self._wait = _WAIT
        self._limits: worker_protocol.WorkerLimits | None = None
        self._stale = False
        self._previous = 0
        self.unanswered_beats = 0  # since the last heartbeat that was answered
        self.refused: asyncio.Future[RedriveError] = asyncio.get_running_loop().create_future()

    # -- requests -------------------------------------------------------------------------------------

    async def _call(self, path: str, body: Any, kind: Callable[..., T] | Any, *, method: str = "POST") -> Any:
        """Send a request and return the answer as a record.

        The work ends if the server refuses the token. A refused start says nothing about the token: its caller named
        another tenant or workflow, and gets the error.
        """
        given = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        asked_at = self._clock.monotonic()
        try:
            text = await self._server.call(method, f"{worker_protocol.WORKER_PATH}/{path}", given, self.headers())
        except (NotSignedIn, NotAllowed) as error:
            if not self._worker or (path == "start" and isinstance(error, NotAllowed)):
                raise
            raise self._end_work(error) from error
        reply = msgspec.json.decode(text, type=kind)
        now = getattr(reply, "now", None)
        if isinstance(now, int):
            self._time.learn(now, asked_at)
        return reply

    def _open(self, record: T, tenant: str | None = None) -> T:
        """Return a record decrypted, if this worker has keys."""
        return record if self._sealing is None else self._sealing.open(record, tenant)

    async def _ask(self, path: str, body: Any, kind: Callable[..., T] | Any, *, method: str = "POST") -> Any:
        """Send a request about runs or circuits; StoreUnavailable if the server does not know the worker or the run.

        The worker was declared dead or the run was taken away. The next outcome of the run is refused, and that ends
        its execution here.
        """
        try:
            return await self._call(path, body, kind, method=method)
        except NotFound as error:
            raise StoreUnavailable(str(error)) from None

    def _end_work(self, error: RedriveError) -> StoreUnavailable:
        """Remember that the server refuses the token; return the error for the call that noticed it."""
        self.refuse(error)
        return StoreUnavailable(f"the server refuses the token of this worker: {error}")

    def headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        headers = {worker_protocol.PROTOCOL_HEADER: str(worker_protocol.PROTOCOL)}
        if self._worker:
            headers[worker_protocol.WORKER_HEADER] = str(self._worker)
        return headers

    def refuse(self, error: RedriveError) -> None:
        """Remember that the server refuses the token."""
        if not self.refused.done():
            log.error("the server refuses the token of this worker: %s", error)
            self.refused.set_result(error)

    def close(self) -> None:
        """Close all connections."""
        self._server.close()

    # -- the worker itself ----------------------------------------------------------------------------

    async def enlist(self, worker: NewWorker, catalogue: Catalogue) -> int:
        before, self._worker = self._worker, 0
        self._previous = before or self._previous
        call = worker_protocol.Registration(
            name=worker.name,
            protocols=(worker_protocol.PROTOCOL,),
            catalogue=catalogue if self._sealing is None else self._sealing.mark_catalogue(catalogue),
            keys=self._sealing is not None,
            lease=worker.lease,
            queues=worker.queues,
            # A worker that did not even try to send heartbeats was stopped or blocked, perhaps by one of its runs.
            previous=self._previous if self.unanswered_beats else 0,
        )
        try:
            registered: worker_protocol.Registered = await self._call("register", call, worker_protocol.Registered)
        except (NotSignedIn, NotAllowed) as error:
            if before:
                raise self._end_work(error) from error
            raise
        self._worker, self._number, self._stale, self._previous = registered.worker, 0, False, 0
        self.unanswered_beats = 0
        self._wait = min(_WAIT, registered.wait / MICROS)
        self._limits = registered.limits
        self._server.compresses = worker_protocol.GZIP in registered.features and not self._address.is_local
        return registered.worker

    async def retire(self, worker: int) -> None:
        try:
            await self._call("retire", worker_protocol.RetireCall(), worker_protocol.Done)
        except NotFound:
            log.debug("the server does not know this worker any more")

    def lease_connection(self) -> LeaseConnection:
        lease = RemoteLease(self, Client(self._address, self._token), self._time, self._clock)
        return lease if self._sealing is None else self._sealing.codec.wrap_lease(lease)

    @property
    def is_stale(self) -> bool:
        """True if the server refused the order of the batches, so that the worker has to register again."""
        return self._stale

    @property
    def outcomes_per_request(self) -> int:
        """The most outcomes that the server takes in one request."""
        return MAX_BATCH if self._limits is None else self._limits.batch

    def report_refusal(self, loop: asyncio.AbstractEventLoop, error: RedriveError) -> None:
        """Remember from another thread that the server refuses the token."""
        loop.call_soon_threadsafe(self.refuse, error)

    # -- work -----------------------------------------------------------------------------------------

    async def claim(self, claim: ClaimRequest) -> ClaimResult:
        keys = self._sealing is not None
        call = worker_protocol.ClaimCall(
            capacity=claim.capacity,
            suspect=claim.suspect,
            after=claim.after,
            keys=keys,
            max_bytes=worker_protocol.JOURNAL_BYTES,
        )
        try:
            reply: worker_protocol.ClaimReply = await self._call("claim", call, worker_protocol.ClaimReply)
        except NotFound:
            return ClaimResult(runs=[], now=self.now(), next_in=None, after=claim.after)
        unfinished = dict(reply.unfinished)
        runs = [await self._complete(run) if run.id in unfinished else run for run in reply.runs]
        found = ClaimResult(runs=runs, now=reply.now, next_in=reply.next_in, after=reply.after)
        return found if self._sealing is None else self._sealing.codec.open_claims(found)

    async def _complete(self, run: ClaimedRun) -> ClaimedRun:
        """Return a claimed run with the rest of its journal."""
        rest = await self._read_journal(run.id, len(run.journal))
        return msgspec.structs.replace(run, journal=(*run.journal, *rest))

    async def changed(self) -> None:
        call = worker_protocol.WaitCall(wait=int(self._wait * MICROS))
        while True:
            reply: worker_protocol.WaitReply = await self._ask("wait", call, worker_protocol.WaitReply)
            if reply.due:
                return

    async def settle(self, outcomes: Sequence[Outcome], carriers: Sequence[SinkLease] = ()) -> list[Settled]:
        worker, number = self._worker, self._number + 1
        if self._stale:
            return [make_refused(each) for each in outcomes]
        sealing = self._sealing
        sealed = outcomes if sealing is None else [sealing.seal_outcome(each) for each in outcomes]
        body = worker_protocol.encode_batch(number, sealed)
        if self._limits is not None and len(body) > self._limits.body:
            raise DataRefused(f"the batch has {len(body)} bytes, and the server takes at most {self._limits.body}")

        async def send() -> worker_protocol.Answers | None:
            if worker != self._worker:
                return None  # the worker was declared dead, and registered again
            answers: worker_protocol.Answers = await self._call("settle", body, worker_protocol.Answers)
            return answers

        try:
            reply = await repeat_until_answered(send, self._clock)
        except (InputError, PayloadError) as error:
            raise DataRefused(str(error)) from error
        except NotFound:
            reply = None
        except Conflict as error:
            log.error("the server refused a batch, the worker registers again: %s", error)
            self._stale, reply = True, None
        if reply is None or worker != self._worker:
            return [make_refused(each) for each in outcomes]
        self._number = number
        pairs = zip(outcomes, map(self._open_answer, outcomes, reply.answers), strict=True)
        return [worker_protocol.read_answer(outcome, answer, reply.now) for outcome, answer in pairs]

    def _open_answer(self, outcome: Outcome, answer: worker_protocol.Answer) -> worker_protocol.Answer:
        """Return the answer to an outcome with its failure decrypted."""
        sealing, (change, entry) = self._sealing, (answer.change, answer.entry)
        if sealing is None or not any(each is not None and each.failure for each in (change, entry)):
            return answer
        tenant = outcome.run.tenant
        if change is not None:
            change = msgspec.structs.replace(change, failure=sealing.open_text(change.failure, tenant))
        if entry is not None:
            entry = msgspec.structs.replace(entry, failure=sealing.open_text(entry.failure, tenant))
        return msgspec.structs.replace(answer, change=change, entry=entry)

    async def held(self, worker: int) -> list[RunView]:
        found: list[worker_protocol.HeldReply] = await self._call(
            "held", None, list[worker_protocol.HeldReply], method="GET"
        )
        return [each.to_view() for each in found]

    async def _history(self, run: int, after: int = 0) -> worker_protocol.History:
        path = f"runs/{run}/history?after={after}&max_bytes={worker_protocol.JOURNAL_BYTES}"
        found: worker_protocol.History = await repeat_until_answered(
            lambda: self._ask(path, None, worker_protocol.History, method="GET"),
            self._clock,
            patience=_HISTORY_PATIENCE,
        )
        return found

    async def _read_journal(self, run: int, after: int) -> list[EntryRow]:
        """Return the entries of a journal after so many, page by page."""
        journal: list[EntryRow] = []
        more = True
        while more:
            page = await self._history(run, after + len(journal))
            journal += page.journal
            more = page.more and bool(page.journal)
        return journal

    async def journal(self, run: int) -> list[EntryRow]:
        return self._open(await self._read_journal(run, 0))

    async def attempts(self, run: int) -> list[AttemptRow]:
        return self._open((await self._history(run)).attempts)

    async def mailbox(self, run: int, *, tasks: bool = False) -> Mailbox | None:
        try:
            reply: worker_protocol.MailboxReply = await self._call(
                f"runs/{run}/mailbox{'?tasks=true' if tasks else ''}", None, worker_protocol.MailboxReply, method="GET"
            )
        except NotFound:
            return None  # a worker that the server does not know holds no runs
        return self._open(reply.mailbox)

    async def wakeups(self, runs: Sequence[int]) -> dict[int, int]:
        reply: worker_protocol.WakeupsReply = await self._ask(
            "wakeups", worker_protocol.WakeupsCall(runs=tuple(runs)), worker_protocol.WakeupsReply
        )
        return dict(reply.wakeups)

    async def awaited_run(self, run: int, run_id: str) -> AwaitedRun | None:
        return await self._awaited(run, worker_protocol.AwaitedCall(run_id=run_id))

    async def children(self, run: RunView) -> list[Child]:
        return (await self._history(run.id)).children

    async def end_child(self, run: RunView, run_id: str, *, undo: bool) -> AwaitedRun | None:
        return await self._awaited(run.id, worker_protocol.AwaitedCall(run_id=run_id, ends=True, undo=undo))

    async def _awaited(self, run: int, call: worker_protocol.AwaitedCall) -> AwaitedRun | None:
        try:
            reply: worker_protocol.AwaitedReply = await self._call(
                f"runs/{run}/awaited", call, worker_protocol.AwaitedReply
            )
        except NotFound:
            return None  # as for the mailbox
        return self._open(reply.awaited)

    async def asked_question(self, run: int, index: int) -> AskedQuestion | None:
        call = worker_protocol.AskedCall(index=index)
        try:
            reply: worker_protocol.AskedReply = await self._call(f"runs/{run}/asked", call, worker_protocol.AskedReply)
        except NotFound:
            return None  # as for the mailbox
        return self._open(reply.asked)

    async def rollback_cause(self, run: ClaimedRun) -> RollbackCause:
        cause = (await self._history(run.id)).cause
        if (sealing := self._sealing) is None:
            return cause
        texts = {name: sealing.open_text(getattr(cause, name), run.tenant) for name in ("failure", "letter_failure")}
        return msgspec.structs.replace(cause, **texts)

    async def start(self, runs: Sequence[NewRun], *, worker: int | None = None) -> list[StartResult]:
        """Start runs. With a `worker`, which is this one, it holds those that are due."""
        call = worker_protocol.StartCall(runs=list(runs), claim=worker is not None)
        started: list[StartResult] = await self._call("start", call, list[StartResult])
        if (sealing := self._sealing) is None:
            return started
        opened = [None if each.claimed is None else sealing.codec.open_claimed(each.claimed) for each in started]
        pairs = zip(started, opened, strict=True)
        return [each if run is None else msgspec.structs.replace(each, claimed=run) for each, run in pairs]

    async def has_live_worker(self, workflow: str, version: str) -> bool:
        call = worker_protocol.VersionCall(workflow=workflow, version=version)
        reply: worker_protocol.VersionReply = await self._ask("version", call, worker_protocol.VersionReply)
        return reply.alive

    async def permit(self, ask: PermitRequest) -> Permit:
        permit: Permit = await self._ask("permit", ask, Permit)
        return permit

    async def evaluate_circuit(self, key: CircuitKey, settings: str) -> CircuitRow:
        call = worker_protocol.CircuitCall(tenant=key[0], key=key[1], settings=settings)
        row: CircuitRow = await self._ask("circuit", call, CircuitRow)
        return row

    async def circuits_changed_since(self, since: int) -> list[CircuitRow]:
        rows: list[CircuitRow] = await self._ask(
            "circuits", worker_protocol.CircuitsCall(since=since), list[CircuitRow]
        )
        return rows

    async def count_successes(self, number: int, counts: Sequence[SuccessCount]) -> None:
        call = worker_protocol.CircuitsCall(number=number, successes=tuple(counts))
        await self._ask("circuits", call, list[CircuitRow])

    def transaction(self, limit: float) -> Transaction:
        return _refuse_transaction()


def _refuse_transaction() -> NoReturn:
    raise StoreError("a transactional step needs a worker beside the store")  # `RemoteRuntime` refuses such an app


class RemoteLease:
    """The heartbeats of a remote worker, sent by the lease's thread."""

    def __init__(self, backend: RemoteBackend, client: Client, time: RemoteClock, clock: Clock) -> None:
        self._backend = backend
        self._client = client
        self._time = time
        self._clock = clock
        self._loop = asyncio.get_running_loop()

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        """Renew the lease; a server that does not know the worker any more has declared it dead."""
        return {worker: self._beat(worker, heartbeats) for worker, heartbeats in beats.items()}

    def _beat(self, worker: int, heartbeats: Mapping[tuple[int, int], str | None]) -> HeartbeatReply:
        if self._backend.is_stale:
            return HeartbeatReply(alive=False, held=frozenset(), now=self._time.now())
        steps = tuple(
            worker_protocol.StepHeartbeat(run=run, index=index, details=details)
            for (run, index), details in heartbeats.items()
        )
        asked_at = self._clock.monotonic()
        try:
            text = self._send("beat", msgspec.json.encode(worker_protocol.BeatCall(steps=steps)), worker)
        except NotFound:
            return HeartbeatReply(alive=False, held=frozenset(), now=self._time.now())
        except (NotSignedIn, NotAllowed) as error:
            self._backend.report_refusal(self._loop, error)
            raise
        except StoreUnavailable:
            self._backend.unanswered_beats += 1
            raise
        reply = msgspec.json.decode(text, type=worker_protocol.BeatReply)
        if reply.alive:
            self._backend.unanswered_beats = 0
        self._time.learn(reply.now, asked_at)
        return HeartbeatReply(
            alive=reply.alive, held=frozenset(reply.held), now=reply.now, drain=reply.drain, every=reply.every
        )

    def record(self, worker: int, marks: Sequence[Transition]) -> None:
        """Record that attempts began, while the loop is blocked."""
        most = self._backend.outcomes_per_request
        for begin in range(0, len(marks), most):
            outcomes = [_read_mark(each) for each in marks[begin : begin + most]]
            self._send("begun", worker_protocol.encode_begun(outcomes), worker)

    def close(self) -> None:
        self._client.close()

    def _send(self, path: str, body: bytes, worker: int) -> bytes:
        headers = {**self._backend.headers(), worker_protocol.WORKER_HEADER: str(worker)}
        return self._client.call("POST", f"{worker_protocol.WORKER_PATH}/{path}", body, headers)


def _read_mark(transition: Transition) -> AttemptStarted:
    """Return the outcome that a begin mark was made from."""
    (entry,) = transition.entries
    return AttemptStarted(
        run=RunView(
            id=transition.run,
            public_id="",
            tenant=transition.tenant,
            workflow="",
            fence=transition.fence,
            input="null",
            options=RunOptions(),
        ),
        place=EntryRef(entry.index, entry.key, entry.kind, entry.name),
        attempt=entry.attempt,
        input=entry.input or "null",
        options=entry.options or "{}",
        limit=entry.limit_in or 0,
        began_ago=entry.began_ago,
    )
