"""Remote workers of a server: their registrations, claims, batches of outcomes and heartbeats.

A worker says what happened, and the server decides: with the same settler, the same fences and the same store as a
worker beside the store. Nothing but caches lives here, so any server may answer any request of a worker.

    session     a worker that registered, bound to its token; the runs that it holds
    settle      decide on a batch, once: its receipt is part of the commit, and a repeat gets the recorded answer
    polls       long polls that wait for work (`live_updates`); `heartbeats` renews the leases of all workers

What a worker sends is checked in `worker_input`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.audit import AuditEvent
from redrive.core.decide_entry import record_start
from redrive.core.outcomes import AttemptStarted, Outcome, RunView
from redrive.core.roles import ALL_TENANTS, Principal
from redrive.core.run_options import takes_sealed
from redrive.core.transitions import AuditWrite, NewRun, Transition
from redrive.errors import InputError, NotAllowed, NotFound
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.remote import worker_protocol
from redrive.server.heartbeats import Heartbeats
from redrive.server.live_updates import LongPolls
from redrive.server.problem_responses import ProblemError
from redrive.server.worker_input import (
    check_count,
    check_fields,
    check_registration,
    check_small,
    check_start,
    complete_outcome,
    decode_body,
    decode_outcome,
    make_protocol_error,
    make_request_error,
)
from redrive.settle.cancellation import end_child
from redrive.settle.circuits import apply_samples, update_circuit
from redrive.settle.settler import LocalSettler, make_claimed_run_view, make_lenient_run_view, parse_run_options
from redrive.store.circuits import CircuitRow, Permit, PermitRequest
from redrive.store.claims import ClaimedRun, ClaimRequest
from redrive.store.encryption.codec import UnreadableJournal
from redrive.store.encryption.keyring import KEYS_VARIABLE, Unreadable
from redrive.store.port import DeskStore, Store
from redrive.store.runs import StartResult
from redrive.store.workers import NewWorker, Receipt, RemoteWorkerRow, StaleBatch
from redrive.worker.backend import RollbackCause, read_rollback_cause
from redrive.worker.committer import MAX_BATCH
from redrive.worker.worker import make_unreadable_outcome

if TYPE_CHECKING:
    from redrive.app.runtime import Runtime
    from redrive.store.tenant_view import TenantView

LIMITS = worker_protocol.WorkerLimits(payload=1 << 20, body=16 << 20, batch=MAX_BATCH, claim=1000)
MAX_WORKERS_PER_TOKEN = 100
"""Live workers of one token."""

MAX_HELD_RUNS = 10_000
"""Runs that the live workers of one token may hold."""

LONGEST_POLL = 20.0
"""Seconds of a long poll: shorter than the time after which proxies close a connection."""

# A shorter lease would expire between two heartbeats; a longer one would delay the recovery of the worker's runs.
_SHORTEST_LEASE, _LONGEST_LEASE = 2 * MICROS, 300 * MICROS
_MAX_SESSIONS = 10_000  # a session that was removed is read from the store again
_COUNT_LIFETIME = 1.0  # seconds for which the number of held runs of a token is trusted while it gets runs


class WorkerSession:
    """A registered worker. `views`: the runs that it holds, by id, as this server has seen them."""

    def __init__(self, row: RemoteWorkerRow, settler: LocalSettler) -> None:
        self.row = row
        self.settler = settler
        self.views: dict[int, RunView] = {}
        # Batches are settled one at a time: their numbers have an order.
        self.settling = asyncio.Lock()

    @property
    def kind(self) -> tuple[object, ...]:
        """Workers of one kind can do the same work."""
        return self.row.tenant, self.row.workflows, self.row.queues


class RemoteWorkers:
    """The remote workers of a server process."""

    def __init__(self, runtime: Callable[[], Runtime], clock: Clock, max_payload: int) -> None:
        self._runtime = runtime
        self._clock = clock
        self.limits = replace(LIMITS, payload=max_payload)
        self._sessions: OrderedDict[int, WorkerSession] = OrderedDict()
        self._held_counts: dict[str, tuple[float, int]] = {}  # by token: when the held runs were counted, their number
        self._heartbeats = Heartbeats(lambda: self._store, clock)
        self.polls = LongPolls(lambda: self._store.changed(), clock)

    @property
    def _store(self) -> Store:
        return self._runtime().store

    async def wait(self, session: WorkerSession, seconds: float) -> bool:
        """Wait until there may be work for the worker, for some seconds at most."""
        self._runtime().wake_listeners.add(self.polls.notify_all)
        return await self.polls.wait(session.row.worker, session.kind, seconds)

    def close(self) -> None:
        """End all long polls, and close the connection for heartbeats."""
        self.polls.close()
        self._heartbeats.close()

    # -- registration ---------------------------------------------------------------------------------

    async def register(
        self, principal: Principal, call: worker_protocol.Registration, address: str
    ) -> worker_protocol.Registered:
        """Register a worker with the code that it has."""
        if worker_protocol.PROTOCOL not in call.protocols:
            raise make_protocol_error(", ".join(map(str, call.protocols[:10])) or "none")
        tenant = "" if principal.tenant == ALL_TENANTS else principal.tenant
        catalogue = replace(call.catalogue, channels=())  # only processes beside the store have channels
        check_registration(call, self.limits.payload)
        names = [item.name for item in (*catalogue.workflows, *catalogue.steps)]
        workflows = tuple(item.name for item in catalogue.workflows)
        if principal.workflows is not None and not principal.workflows.issuperset(workflows):
            raise NotAllowed(Reason(ReasonCode.TOKEN_WORKFLOWS, workflows=tuple(sorted(principal.workflows))))
        # A worker of workflows decides what their steps return: a token for single steps must name the workflows, too.
        if principal.steps is not None and (
            (workflows and principal.workflows is None)
            or not principal.steps.issuperset(item.name for item in catalogue.steps)
        ):
            raise NotAllowed(Reason(ReasonCode.TOKEN_STEPS, steps=tuple(sorted(principal.steps))))
        if tenant and (taken := await self._store.names_for_all(names)):
            reason = Reason(ReasonCode.WORKFLOW_NAME_TAKEN, names=tuple(taken[:20]))
            raise ProblemError(409, reason, code="name_taken", title="The name is taken")
        if not call.keys and (sealed := await self._find_sealed(workflows, tenant)):
            raise InputError(Reason(ReasonCode.WORKFLOW_SEALED, workflow=sealed, variable=KEYS_VARIABLE))
        if await self._store.count_remote_workers(principal.token) >= MAX_WORKERS_PER_TOKEN:
            reason = Reason(ReasonCode.TOO_MANY_WORKERS, most=MAX_WORKERS_PER_TOKEN)
            raise ProblemError(429, reason, headers={"Retry-After": "30"})
        new = NewWorker(
            name=call.name,
            version=catalogue.version,
            workflows=workflows,
            lease=min(max(call.lease, _SHORTEST_LEASE), _LONGEST_LEASE),
            queues=call.queues,
            token=principal.token,
            tenant=tenant,
            previous=call.previous,
        )
        worker = await self._store.enlist(new, catalogue)
        after = {"worker": worker, "version": catalogue.version, "from": address}
        line = AuditWrite(
            event=AuditEvent.WORKER_REGISTERED.value,
            tenant=tenant,
            by=principal.who,
            subject=call.name,
            after=json.dumps(after),
            token=self._clock.new_id(),
        )
        await self._store.note([line])
        return worker_protocol.Registered(
            worker=worker,
            protocol=worker_protocol.PROTOCOL,
            now=self._store.now(),
            lease=new.lease,
            wait=int(LONGEST_POLL * MICROS),
            limits=self.limits,
            features=(worker_protocol.GZIP,),
        )

    async def _find_sealed(self, workflows: Sequence[str], tenant: str) -> str | None:
        """Return the first of these workflows whose workers encrypt its payloads; None if there is none."""
        rows = await self._store.known(list(workflows), tenant=tenant) if workflows else ()
        return next((row.name for row in rows if row.kind == "workflow" and takes_sealed(row.options)), None)

    async def find_session(self, principal: Principal, worker: int) -> WorkerSession:
        """Return the session of a worker; raise NotFound unless this token registered it."""
        session = self._sessions.get(worker)
        if session is None:
            row = await self._store.remote_worker(worker) if 0 < worker < 2**53 else None
            if row is None or row.token != principal.token:
                raise NotFound(Reason(ReasonCode.WORKER_UNKNOWN))
            settler = LocalSettler(self._store, self._clock, worker=worker, listeners=self._runtime().listeners)
            session = self._sessions[worker] = WorkerSession(row, settler)
            while len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        elif session.row.token != principal.token:
            raise NotFound(Reason(ReasonCode.WORKER_UNKNOWN))
        self._sessions.move_to_end(worker)
        return session

    async def retire(self, session: WorkerSession) -> None:
        """Mark a worker as stopped."""
        await self._store.retire(session.row.worker)
        self._sessions.pop(session.row.worker, None)

    # -- work -----------------------------------------------------------------------------------------

    async def claim(
        self, session: WorkerSession, principal: Principal, call: worker_protocol.ClaimCall
    ) -> worker_protocol.ClaimReply:
        """Give the worker due runs that its token reaches."""
        row = session.row
        workflows = tuple(name for name in row.workflows if principal.workflows is None or name in principal.workflows)
        # The last count may be old: only workers that get runs make it wrong, and idle ones should cost no query.
        free = self._known_free(row.token) or await self._count_free(row.token)
        if free <= 0:
            reason = Reason(ReasonCode.TOO_MANY_RUNS, most=MAX_HELD_RUNS)
            raise ProblemError(429, reason, headers={"Retry-After": "1"})
        capacity = min(call.capacity, self.limits.claim, free)
        claims = await self._store.claim(
            ClaimRequest(
                worker=row.worker,
                workflows=workflows,
                capacity=capacity,
                suspect=call.suspect,
                after=call.after,
                queues=row.queues,
                tenant=row.tenant or None,
                versions=row.versions,
            )
        )
        claimed = [pass_sealed(run) for run in claims.runs] if call.keys else claims.runs
        runs = [run for run in claimed if await self._can_send(session, run, sealed=call.keys)]
        for run in runs:
            self._remember(session, run)
        if claims.runs:
            self._add_held(row.token, len(claims.runs))
        if len(claims.runs) >= capacity:
            self.polls.notify_one(session.kind)  # there may be more than this worker could take
        runs, unfinished = _cut_journals(runs, call.max_bytes)
        return worker_protocol.ClaimReply(
            runs=runs, now=claims.now, next_in=claims.next_in, after=claims.after, unfinished=unfinished
        )

    def _known_free(self, token: str) -> int:
        """Return how many more runs the workers of a token may hold, as far as that is known; 0 if it is not."""
        return max(0, MAX_HELD_RUNS - self._held_counts.get(token, (0.0, MAX_HELD_RUNS))[1])

    async def _count_free(self, token: str) -> int:
        """Return how many more runs the workers of a token may hold."""
        at, count = self._held_counts.get(token, (-math.inf, 0))
        if self._clock.monotonic() - at > _COUNT_LIFETIME:
            if len(self._held_counts) >= _MAX_SESSIONS:
                self._held_counts.clear()
            at, count = self._clock.monotonic(), await self._store.count_held(token)
            self._held_counts[token] = (at, count)
        return MAX_HELD_RUNS - count

    def _add_held(self, token: str, runs: int) -> None:
        """Count runs that a worker got. If the last count is old, the next claim counts anew."""
        at, count = self._held_counts.get(token, (-math.inf, 0))
        if self._clock.monotonic() - at <= _COUNT_LIFETIME:
            self._held_counts[token] = (at, count + runs)
        else:
            self._held_counts.pop(token, None)

    async def _can_send(self, session: WorkerSession, run: ClaimedRun, *, sealed: bool) -> bool:
        """Return True if a run can be sent. One that cannot be read becomes a dead letter, as on a local worker.

        `sealed`: the worker decrypts payloads itself.
        """
        self._require_tenant(session, run.tenant)
        try:
            if isinstance(run.input, Unreadable) and not sealed:
                raise InputError(Reason(ReasonCode.TEXT, text=run.input.why))
            tuple(run.journal)
            parse_run_options(run.options)
        except Exception as error:  # of any kind, as in the worker
            outcome = make_unreadable_outcome(run, error)
            await session.settler.settle([outcome], store=self._view(session, [outcome.run]))
            return False
        return True

    def _remember(self, session: WorkerSession, run: ClaimedRun) -> None:
        options = parse_run_options(run.options)
        session.views[run.id] = make_claimed_run_view(run, options, session.row.version_of(run.workflow))

    async def find_view(self, session: WorkerSession, run: int, fence: int | None = None) -> RunView | None:
        """Return a run that the worker holds; None if it holds no such run, or held it under another fence."""
        view = session.views.get(run)
        if view is None or (fence is not None and view.fence != fence):
            await self._read_held(session)
            view = session.views.get(run)
        return None if view is None or (fence is not None and view.fence != fence) else view

    async def _read_held(self, session: WorkerSession) -> None:
        """Read the runs that the worker holds: another server gave them to it, or this one was started again."""
        row = session.row
        held = [each.run for each in await self._store.held(row.worker)]
        for run in held:
            self._require_tenant(session, run.tenant)
        before = session.views
        session.views = {}
        for run in held:
            known = before.get(run.id)
            view = make_lenient_run_view(run)
            if not view.undoing and run.version != (version := row.version_of(run.workflow)):
                view = replace(view, new_version=version)
            session.views[run.id] = known if known is not None and known.fence == run.fence else view

    async def list_held(self, session: WorkerSession) -> list[worker_protocol.HeldReply]:
        """Return the runs that the worker holds."""
        await self._read_held(session)
        return [
            worker_protocol.HeldReply(
                id=view.id, public_id=view.public_id, tenant=view.tenant, workflow=view.workflow, fence=view.fence
            )
            for view in session.views.values()
        ]

    async def settle(self, session: WorkerSession, body: bytes) -> bytes:
        """Decide on a batch of outcomes and record the decisions, once; return the answers as JSON."""
        check_small(body, self.limits.batch)
        batch = decode_body(body, worker_protocol.Batch)
        if not batch.number:
            raise make_request_error("the number of a batch is 1 or more")
        async with session.settling:
            return await self._settle(session, batch, worker_protocol.digest_batch(body))

    async def _settle(self, session: WorkerSession, batch: worker_protocol.Batch, digest: str) -> bytes:
        row, number = session.row, batch.number
        known = await self._read_outcomes(session, batch.outcomes)
        outcomes = [each for each in known if each is not None]
        answer = ""

        def make_receipt(transitions: Sequence[Transition]) -> Receipt:
            def make_answer(kept: Sequence[bool]) -> str:
                nonlocal answer
                made = map(worker_protocol.make_answer, transitions, kept)
                answers = [worker_protocol.Answer(kept=False) if each is None else next(made) for each in known]
                answer = msgspec.json.encode(answers).decode()
                return answer

            return Receipt(worker=row.worker, tenant=row.tenant, number=number, digest=digest, make_answer=make_answer)

        view = self._view(session, [each.run for each in outcomes])
        try:
            settled = await session.settler.settle(outcomes, make_receipt=make_receipt, store=view)
        except StaleBatch:
            latest = await self._store.remote_worker(row.worker)
            if latest is not None and (latest.number, latest.digest) == (number, digest):
                return _make_reply(number, latest.answered_at or self._store.now(), latest.answer)
            raise ProblemError(
                409, Reason(ReasonCode.BATCH_STALE), code="stale_batch", title="The batch is not the next one"
            ) from None
        for each in settled:
            change = each.transition.change
            if not each.kept or (change is not None and (change.take or change.release)):
                session.views.pop(each.transition.run, None)
        if any(each.kept and _makes_due(each.transition) for each in settled):
            self._runtime().wake_workers()
        return _make_reply(number, settled[0].now if settled else self._store.now(), answer)

    async def record_begun(self, session: WorkerSession, body: bytes) -> None:
        """Record attempts that began, for a worker whose event loop is blocked."""
        check_small(body, self.limits.batch)
        found = await self._read_outcomes(session, decode_body(body, worker_protocol.Begun).outcomes)
        marks = [each for each in found if isinstance(each, AttemptStarted)]
        if marks:
            view = self._view(session, [each.run for each in marks])
            await view.apply([record_start(each) for each in marks], worker=session.row.worker)

    async def _read_outcomes(self, session: WorkerSession, texts: Sequence[msgspec.Raw]) -> list[Outcome | None]:
        """Return outcomes with the server's view of their runs; None for a run that the worker does not hold."""
        if len(texts) > self.limits.batch:
            raise make_request_error(
                f"{len(texts)} outcomes are too many: send at most {self.limits.batch} in a request"
            )
        reported = [decode_outcome(number, text, self.limits.payload) for number, text in enumerate(texts)]
        views = session.views
        if any(each.run not in views or views[each.run].fence != each.fence for each in reported):
            await self._read_held(session)  # once for the whole batch
        held = [session.views.get(each.run) for each in reported]
        return [
            None if view is None or view.fence != each.fence else complete_outcome(number, each, view)
            for number, (each, view) in enumerate(zip(reported, held, strict=True))
        ]

    def _view(self, session: WorkerSession, runs: Sequence[RunView]) -> DeskStore:
        """Return the store as far as the worker's token reaches, for these runs."""
        if not session.row.tenant:
            return self._store
        view = cast("TenantView", self._store.tenant_view(session.row.tenant))
        view.admit(runs)
        return cast("DeskStore", view)

    async def beat(self, session: WorkerSession, call: worker_protocol.BeatCall) -> worker_protocol.BeatReply:
        """Renew the worker's lease, and record the heartbeats of its steps."""
        check_count("steps", call.steps)
        for each in call.steps:
            check_fields({"index": each.index, "data": each.details}, self.limits.payload)
        row = session.row
        steps = {(each.run, each.index): each.details for each in call.steps}
        reply = await self._heartbeats.renew(row.worker, row.lease, steps)
        every = self._heartbeats.space(row.lease)
        return worker_protocol.BeatReply(
            alive=reply.alive, held=sorted(reply.held), now=reply.now, drain=reply.drain, every=every
        )

    async def read_history(
        self, session: WorkerSession, run: int, after: int = 0, max_bytes: int = 0
    ) -> worker_protocol.History:
        """Return the record of a run that the worker holds: with `after`, only the entries behind so many."""
        view = await self.find_view(session, run)
        if view is None:
            raise NotFound(Reason(ReasonCode.WORKER_UNKNOWN))
        store = self._store
        journal = (await store.journal(run))[after:]
        count = max(1, worker_protocol.count_fitting(journal, max_bytes)[0]) if max_bytes else len(journal)
        page, more = journal[:count], count < len(journal)
        if after:
            cause = RollbackCause(failure=None, has_letter=False)
            return worker_protocol.History(journal=page, attempts=[], cause=cause, more=more)
        cause, attempts = await read_rollback_cause(store, run, view.public_id), await store.attempts(run)
        children = await store.children_of(view.public_id, view.tenant) if view.undoing else []
        return worker_protocol.History(journal=page, attempts=attempts, cause=cause, children=children, more=more)

    async def read_mailbox(
        self, session: WorkerSession, run: int, *, tasks: bool = False
    ) -> worker_protocol.MailboxReply:
        """Return the unread events of a run that the worker holds, and with `tasks` the answers of its remote steps."""
        view = await self.find_view(session, run)
        return worker_protocol.MailboxReply(
            mailbox=None if view is None else await self._store.mailbox(run, tasks=tasks)
        )

    async def read_awaited(
        self, session: WorkerSession, principal: Principal, run: int, call: worker_protocol.AwaitedCall
    ) -> worker_protocol.AwaitedReply:
        """Return the run that a run waits for, which the worker holds. Both belong to the same tenant."""
        view = await self.find_view(session, run)
        awaited = None
        if view is not None and call.ends:
            undo = call.undo and view.undoing
            settler = LocalSettler(self._store, self._clock, listeners=self._runtime().listeners)
            awaited = await end_child(self._store, settler, view, call.run_id, undo=undo)
            if awaited is not None and awaited.end is not None:
                # The state is enough, and the token may not reach the workflow of the child.
                awaited = replace(awaited, end=replace(awaited.end, output=None, failure=None))
            return worker_protocol.AwaitedReply(awaited=awaited)
        if view is not None:
            awaited = await self._store.awaited_run(run, call.run_id)
        allowed = principal.workflows
        if awaited is not None and awaited.end is not None and allowed is not None:
            if awaited.end.workflow not in allowed:
                awaited = replace(awaited, end=None)
        return worker_protocol.AwaitedReply(awaited=awaited)

    async def read_asked(
        self, session: WorkerSession, run: int, call: worker_protocol.AskedCall
    ) -> worker_protocol.AskedReply:
        """Return the answer to a question of a run that the worker holds."""
        view = await self.find_view(session, run)
        return worker_protocol.AskedReply(
            asked=None if view is None else await self._store.asked_question(run, call.index)
        )

    async def read_wakeups(
        self, session: WorkerSession, call: worker_protocol.WakeupsCall
    ) -> worker_protocol.WakeupsReply:
        """Return the wake-ups of those of the runs that the worker holds."""
        check_count("runs", call.runs)
        if not session.views.keys() >= set(call.runs):
            await self._read_held(session)  # once for all of them
        held = [run for run in call.runs if run in session.views]
        found = await self._store.wakeups(held) if held else {}
        return worker_protocol.WakeupsReply(wakeups=tuple(found.items()))

    async def start(
        self, session: WorkerSession, principal: Principal, call: worker_protocol.StartCall
    ) -> list[StartResult]:
        """Start runs of the worker's own workflows; with `claim`, the worker holds those that are due."""
        parents = {run.parent for run in call.runs} - {None}
        if parents - {view.public_id for view in session.views.values()}:
            await self._read_held(session)
        most = self.limits.payload
        runs = [check_start(run, session.row, principal, session.views, most) for run in call.runs]
        view = self._view(session, ())
        claims = call.claim and len(runs) <= min(self.limits.claim, await self._count_free(session.row.token))
        started = await view.start(runs, worker=session.row.worker if claims else None)
        for each in started:
            if each.claimed is not None:
                self._remember(session, each.claimed)
                self._add_held(session.row.token, 1)
        started = await _find_clashes(view, runs, started)
        if any(each.new and each.claimed is None for each in started):
            self._runtime().wake_workers()
        return started

    # -- circuits, code -------------------------------------------------------------------------------

    async def permit(self, session: WorkerSession, ask: PermitRequest) -> Permit:
        """Answer whether a run that the worker holds may call a dependency."""
        view = await self.find_view(session, ask.run, ask.fence)
        if view is None or view.tenant != ask.tenant:
            raise NotFound(Reason(ReasonCode.WORKER_UNKNOWN))
        check_fields(msgspec.structs.asdict(ask), self.limits.payload)
        return await self._store.permit(ask)

    async def evaluate_circuit(self, session: WorkerSession, call: worker_protocol.CircuitCall) -> CircuitRow:
        """Decide on a circuit about which calls were recorded."""
        self._require_tenant(session, call.tenant)
        check_fields({"key": call.key, "settings": call.settings}, self.limits.payload)
        key = (call.tenant, call.key)
        row, _ = await update_circuit(self._view(session, ()), key, lambda case: apply_samples(case, call.settings))
        return row

    async def read_circuits(self, session: WorkerSession, call: worker_protocol.CircuitsCall) -> list[CircuitRow]:
        """Count successful calls, and return the circuits that changed."""
        self._require_tenant(session, *(each.tenant for each in call.successes))
        check_count("successes", call.successes)
        if call.successes and not call.number:
            raise make_request_error("the number of a report of successes is 1 or more")
        for each in call.successes:
            check_fields(msgspec.structs.asdict(each), self.limits.payload)
        if call.successes:
            await self._store.count_successes(session.row.worker, call.number, call.successes)
        if call.since is None:
            return []
        rows = await self._store.circuits_changed_since(call.since)
        return [row for row in rows if session.row.tenant in ("", row.tenant)]

    async def has_live_worker(self, session: WorkerSession, workflow: str, version: str) -> bool:
        """Return True if a live worker has this version of a workflow, and may have runs of the caller's tenant."""
        return await self._store.has_live_worker(workflow, version, tenant=session.row.tenant)

    @staticmethod
    def _require_tenant(session: WorkerSession, *tenants: str) -> None:
        if session.row.tenant and any(tenant != session.row.tenant for tenant in tenants):
            raise NotFound(Reason(ReasonCode.WORKER_UNKNOWN))


def pass_sealed(run: ClaimedRun) -> ClaimedRun:
    """Return a run whose journal can be read although some of its payloads are encrypted by a worker."""
    journal = run.journal
    return replace(run, journal=tuple(journal.entries)) if isinstance(journal, UnreadableJournal) else run


def _cut_journals(runs: list[ClaimedRun], most: int) -> tuple[list[ClaimedRun], tuple[tuple[int, int], ...]]:
    """Leave out what makes the journals of a claim larger than `most` bytes; return the runs that this concerns."""
    left, cut, unfinished = most, list[ClaimedRun](), list[tuple[int, int]]()
    for run in runs:
        count, size = worker_protocol.count_fitting(run.journal, left) if most else (len(run.journal), 0)
        left = max(0, left - size)
        if count < len(run.journal):
            unfinished.append((run.id, count))
            run = msgspec.structs.replace(run, journal=run.journal[:count])
        cut.append(run)
    return cut, tuple(unfinished)


async def _find_clashes(view: DeskStore, runs: Sequence[NewRun], started: Sequence[StartResult]) -> list[StartResult]:
    """Mark starts whose id belongs to another run as clashes.

    A start that was sent twice gets the answer of the first one. So the store answers an id that it knows like a new
    run, and only the run itself shows whether it is the same one.
    """
    unsure = [each.public_id for each in started if each.new and each.claimed is None]
    found = {row.public_id: row for row in await view.runs_by_id(unsure)} if unsure else {}

    def is_same(run: NewRun) -> bool:
        row = found.get(run.public_id)
        return row is not None and (row.tenant, row.workflow, row.input) == (run.tenant, run.workflow, run.input)

    return [
        replace(each, new=False, clash=True) if each.public_id in unsure and not is_same(run) else each
        for run, each in zip(runs, started, strict=True)
    ]


def _make_reply(number: int, now: int, answers: str) -> bytes:
    """Return `worker_protocol.Answers` as JSON."""
    return b'{"number":%d,"now":%d,"answers":%b}' % (number, now, answers.encode())


def _makes_due(transition: Transition) -> bool:
    change = transition.change
    return bool(transition.starts) or (change is not None and change.release and change.wake_in == 0)
