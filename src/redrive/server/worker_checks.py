"""Checks of what remote workers send: bodies, outcomes, messages and runs to start.

The machine of a worker is not trusted. What the server knows itself is rebuilt here from its own rows; the rest is
checked before the server decides on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from redrive.core.idempotency import decode_key, message_id
from redrive.core.new_run import check_name, extract_index_values
from redrive.core.outbox import check_message_key, check_topic
from redrive.core.outcomes import Outcome, RunView
from redrive.core.roles import Principal
from redrive.core.transitions import MessageWrite, NewRun
from redrive.errors import InputError, NotAllowed, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.remote import wire
from redrive.server.problem_responses import ProblemError
from redrive.server.worker_input import check_fields, check_new_run, refuse_request
from redrive.settle.settler import parse_run_options
from redrive.store.workers import RemoteWorkerRow
from redrive.worker.rollback import NOTIFY_TOPIC

T = TypeVar("T")
_ENGINE_PREFIX = "redrive."


def refuse_protocol(given: str) -> ProblemError:
    """Return the error for a worker that speaks other versions of the protocol."""
    reason = Reason(ReasonCode.PROTOCOL_UNSUPPORTED, known=str(wire.PROTOCOL), given=given)
    return ProblemError(426, reason, code="protocol_unsupported", title="Other versions are needed")


def decode_body(body: bytes, kind: type[T]) -> T:
    """Return the body of a request as a record."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse_request(f"the body does not fit: {error}") from None


def decode_outcome(number: int, text: msgspec.Raw, most: int) -> wire.ReportedOutcome:
    """Return an outcome of a batch. `number`: counts from 0; `most`: the largest payload in bytes."""
    try:
        reported = wire.decode_outcome(text)
        check_fields(reported.fields, most)
    except (ValueError, RecursionError, InputError) as error:  # msgspec's errors are ValueErrors
        raise _refuse_outcome(number, error) from None
    return reported


def complete_outcome(number: int, reported: wire.ReportedOutcome, view: RunView) -> Outcome:
    """Return an outcome with the server's view of its run, and with messages that the server vouches for."""
    messages: tuple[MessageWrite, ...] = reported.fields.get("messages", ())
    if messages:
        try:
            index = reported.fields["place"].index
            rebuilt = tuple(_rebuild_message(view, index, count, each) for count, each in enumerate(messages))
        except InputError as error:
            raise _refuse_outcome(number, error) from None
        reported = replace(reported, fields={**reported.fields, "messages": rebuilt})
    return reported.complete(view)


def _refuse_outcome(number: int, error: Exception) -> ProblemError:
    reason = Reason(ReasonCode.OUTCOME_INVALID, number=number, why=str(error)[:500])
    return ProblemError(422, reason, code="bad_outcome", title="An outcome is invalid")


def _rebuild_message(view: RunView, index: int, number: int, message: MessageWrite) -> MessageWrite:
    """Return a message of a run with the id, the run and the correlation id that the server knows."""
    if message.topic.startswith(_ENGINE_PREFIX) and message.topic != NOTIFY_TOPIC:
        raise refuse_request(f"topics that begin with {_ENGINE_PREFIX!r} are those of the engine")
    if message.topic != NOTIFY_TOPIC:
        check_topic(message.topic)
    check_message_key(message.key)
    return replace(
        message,
        public_id=message_id(view.public_id, index, number),
        run_id=view.public_id,
        correlation_id=view.correlation_id or view.public_id,
    )


def check_start(
    run: NewRun, row: RemoteWorkerRow, principal: Principal, held: Mapping[int, RunView], most: int
) -> NewRun:
    """Return a run to start, with everything rebuilt that a worker cannot vouch for.

    `held`: the runs that the worker holds; the parent of the run, if any, is one of them. `most`: the largest input in
    bytes.
    """
    allowed = principal.workflows
    if row.tenant and run.tenant != row.tenant:
        raise NotAllowed(Reason(ReasonCode.OTHER_TENANT, tenant=row.tenant))
    if run.workflow not in row.workflows or (allowed is not None and run.workflow not in allowed):
        raise NotAllowed(Reason(ReasonCode.TOKEN_WORKFLOWS, workflows=row.workflows))
    check_new_run(run, most)
    try:
        options = parse_run_options(run.options)
        kind, parts = ("", (run.tenant,)) if run.key is None else decode_key(run.key)
    except Exception as error:  # of any kind: the texts are the worker's
        raise refuse_request(f"the options or the key of a run cannot be read: {type(error).__name__}") from None
    if parts[0] != run.tenant or (kind == "idem_job" and parts[1] != run.workflow):
        raise refuse_request("the idempotency key belongs to another tenant or workflow")
    if run.key is not None and (kind not in ("idem_job", "idem_evt") or len(parts) != 3):
        raise refuse_request("the idempotency key is neither that of a start nor that of an event")
    for part in parts:
        check_name("idempotency_key", part, "")
    handlers = () if options.on_failure is None else options.on_failure.handlers
    if allowed is not None and any(each.workflow not in allowed for each in handlers):
        raise NotAllowed(Reason(ReasonCode.TOKEN_WORKFLOWS, workflows=tuple(sorted(allowed))))
    if run.parent is not None and all(view.public_id != run.parent for view in held.values()):
        raise NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(run.parent)))
    if run.owner not in (None, run.parent):
        raise refuse_request("a run may be owned by its parent only")
    parent = next((view for view in held.values() if view.public_id == run.parent), None)
    starter = principal.who if parent is None else parent.options.started_by or f"run:{parent.public_id}"
    return replace(
        run,
        options=replace(options, started_by=starter).to_json() if options.started_by != starter else run.options,
        version=row.version,
        key_maker=None if run.key is None else principal.digest,
        root=None,
        replay_of=None,
        generation=0,
        letter=None,
        handler_for=None,
        index=extract_index_values(run.input, options.index),
    )
