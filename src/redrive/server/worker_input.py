"""Checks of what remote workers send: bodies, outcomes, messages and runs to start.

The machine of a worker is not trusted. What the server knows itself is rebuilt here from its own rows; the rest is
checked before the server decides on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec

from redrive.clock import MICROS
from redrive.core.children import MAX_DEPTH
from redrive.core.json_schema import find_json_fault
from redrive.core.keys_and_ids import decode_key, message_id
from redrive.core.new_run import check_name, check_sealed_hash, extract_index_values, read_sealed_index
from redrive.core.notification_rules import NotifyRule
from redrive.core.outbox import check_message_key, check_topic
from redrive.core.outcomes import Outcome, RunView
from redrive.core.questions import Audience, Question
from redrive.core.roles import Principal
from redrive.core.run_options import OnFailure, RunOptions, StepLimits, StepOptions, check_traceparent
from redrive.core.secret_and_sealed_text import SEALED_TEXT, is_sealed, make_sealed_value, sealed_limit
from redrive.core.states import EntryKind
from redrive.core.transitions import MessageWrite, NewRun
from redrive.core.waits_and_events import Wait, WaitMode
from redrive.desk.validation import require_long_text
from redrive.errors import InputError, NotAllowed, NotFound
from redrive.policy import Circuit
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.remote import worker_protocol
from redrive.server.problem_responses import ProblemError
from redrive.settle.settler import parse_run_options
from redrive.store.workers import VERSION, RemoteWorkerRow
from redrive.time_values import FOREVER, MAX_DURATION
from redrive.worker.rollback import NOTIFY_TOPIC

T = TypeVar("T")
_ENGINE_PREFIX = "redrive."


def make_protocol_error(given: str) -> ProblemError:
    """Return the error for a worker that speaks other versions of the protocol."""
    reason = Reason(ReasonCode.PROTOCOL_UNSUPPORTED, known=str(worker_protocol.PROTOCOL), given=given)
    return ProblemError(426, reason, code="protocol_unsupported", title="Other versions are needed")


def decode_body(body: bytes, kind: type[T]) -> T:
    """Return the body of a request as a record."""
    try:
        # Decoded first: parts that are passed on as they were written are not looked into.
        return msgspec.json.decode(body.decode(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise make_request_error(f"the body does not fit: {error}") from None


def decode_outcome(number: int, text: msgspec.Raw, most: int) -> worker_protocol.ReportedOutcome:
    """Return an outcome of a batch. `number`: counts from 0; `most`: the largest payload in bytes."""
    try:
        reported = worker_protocol.decode_outcome(text)
        check_fields(reported.fields, most)
        place = reported.fields.get("place")  # None if the workflow failed outside of its steps
        if place is not None and place.kind is EntryKind.WAIT:
            _check_wait(reported.fields.get("input"))
    except (ValueError, RecursionError, InputError) as error:  # msgspec's errors are ValueErrors
        raise _make_outcome_error(number, error) from None
    return reported


def _check_wait(text: str | None) -> None:
    """Refuse a wait that a page could not show."""
    if text is not None:
        wait = Wait.from_json(text)
        if (wait.mode is WaitMode.RUN and not wait.names) or (wait.mode is WaitMode.TASK and wait.question is None):
            raise make_request_error("this wait names no run or has no question")


def complete_outcome(number: int, reported: worker_protocol.ReportedOutcome, view: RunView) -> Outcome:
    """Return an outcome with the server's view of its run, and with messages that the server vouches for."""
    messages: tuple[MessageWrite, ...] = reported.fields.get("messages", ())
    if messages:
        try:
            index = reported.fields["place"].index
            rebuilt = tuple(_rebuild_message(view, index, count, each) for count, each in enumerate(messages))
        except InputError as error:
            raise _make_outcome_error(number, error) from None
        reported = replace(reported, fields={**reported.fields, "messages": rebuilt})
    return reported.complete(view)


def _make_outcome_error(number: int, error: Exception) -> ProblemError:
    reason = Reason(ReasonCode.OUTCOME_INVALID, number=number, why=str(error)[:500])
    return ProblemError(422, reason, code="bad_outcome", title="An outcome is invalid")


def _rebuild_message(view: RunView, index: int, number: int, message: MessageWrite) -> MessageWrite:
    """Return a message of a run with the id, the run and the correlation id that the server knows."""
    if message.topic.startswith(_ENGINE_PREFIX) and message.topic != NOTIFY_TOPIC:
        raise make_request_error(f"topics that begin with {_ENGINE_PREFIX!r} are those of the engine")
    if message.topic != NOTIFY_TOPIC:
        check_topic(message.topic)
    check_message_key(message.key)
    return replace(
        message,
        # Sinks deliver it as it is: its receiver may have the key.
        payload=json.dumps(make_sealed_value(message.payload)) if is_sealed(message.payload) else message.payload,
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
        check_options(options)
        kind, parts = ("", (run.tenant,)) if run.key is None else decode_key(run.key)
    except Exception as error:  # of any kind: the texts are the worker's
        raise make_request_error(f"the options or the key of a run cannot be read: {type(error).__name__}") from None
    if parts[0] != run.tenant or (kind == "idem_job" and parts[1] != run.workflow):
        raise make_request_error("the idempotency key belongs to another tenant or workflow")
    if run.key is not None and (kind not in ("idem_job", "idem_evt") or len(parts) != 3):
        raise make_request_error("the idempotency key is neither that of a start nor that of an event")
    for part in parts:
        check_name("idempotency_key", part, "")
    handlers = () if options.on_failure is None else options.on_failure.handlers
    if allowed is not None and any(each.workflow not in allowed for each in handlers):
        raise NotAllowed(Reason(ReasonCode.TOKEN_WORKFLOWS, workflows=tuple(sorted(allowed))))
    if run.parent is not None and all(view.public_id != run.parent for view in held.values()):
        raise NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(run.parent)))
    if run.owner not in (None, run.parent):
        raise make_request_error("a run may be owned by its parent only")
    parent = next((view for view in held.values() if view.public_id == run.parent), None)
    # Only a source gives a run an origin: a bridge ends the job that it names, and reads the data of that job.
    options = replace(options, origin=None, trace=check_traceparent(options.trace))
    starter = principal.who if parent is None else parent.options.started_by or f"run:{parent.public_id}"
    return replace(
        run,
        options=replace(options, started_by=starter).to_json(),
        version=row.version_of(run.workflow),
        key_maker=None if run.key is None else principal.digest,
        root=None,
        replay_of=None,
        generation=0,
        letter=None,
        handler_for=None if parent is None else parent.handler_for,
        index=read_sealed_index(run.index, options.index)
        if is_sealed(run.input)
        else extract_index_values(run.input, options.index),
    )


MAX_ITEMS = 10_000
"""Items of one list in a request: workflows and steps of a catalogue, heartbeats, runs, counts."""


_PAYLOADS = frozenset({"input", "output", "payload", "data", "schema_in", "schema_out", "events"})


_NUMBERS = frozenset({"index", "attempt", "made", "done", "seq", "generation", "calls"})


_PARTS = frozenset({"place", "messages", "plan", "open", "uses", "note", "admitted"})


_LARGEST_NUMBER = 2**31 - 1


_LONGEST_TIME = int(MAX_DURATION * MICROS)


_LATEST_TIME = 253_370_764_800 * MICROS  # the year 9999: no later time can be shown


_LONGEST_OPTIONS = 64 << 10


_LARGE_BODY = 1 << 20


_RUN_ID = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class _Head(msgspec.Struct):
    k: str
    run: int
    fence: int


class _Heads(msgspec.Struct):
    outcomes: list[_Head]


def make_request_error(why: str) -> InputError:
    """Return the error for a request that no worker of this protocol sends."""
    return InputError(Reason(ReasonCode.WORKER_REQUEST_INVALID, why=why))


def check_small(body: bytes, most: int) -> None:
    """Refuse a large body with too many outcomes: decoded, millions of tiny items need a hundred times its size."""
    if len(body) <= _LARGE_BODY:
        return
    try:
        count = len(msgspec.json.decode(body, type=_Heads).outcomes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise make_request_error(f"the body does not fit: {error}") from None
    if count > most:
        raise make_request_error(f"{count} outcomes are too many: send at most {most} in a request")


def check_fields(fields: Mapping[str, Any], most: int) -> None:
    """Refuse fields of a record, or of the records within it, that could not be stored or read back."""
    for name, value in fields.items():
        if value is None:
            continue
        if name in _PARTS:
            for part in value if isinstance(value, tuple) else (value,):
                check_fields(msgspec.structs.asdict(part), most)
        elif isinstance(value, Question):
            _check_question(value, most)
        elif isinstance(value, tuple):
            for each in value:
                check_fields({name: each}, most)
        elif name in _NUMBERS:
            _check_range(name, value, 0, _LARGEST_NUMBER)
        elif isinstance(value, str):
            if "\0" in value:
                raise InputError(Reason(ReasonCode.TEXT_UNSTORABLE, field=name))
            _check_size(name, value, _LONGEST_OPTIONS if name in _READERS else most)
            if name in _PAYLOADS:
                _check_json(name, value)
            elif name in _READERS:
                _check_declaration(name, value)


def _check_question(question: Question, most: int) -> None:
    """Refuse a question whose form or audience `redrive.ask` would not accept."""
    require_long_text("question", question.text)
    for name in ("schema", "shown"):
        if (text := getattr(question, name)) is not None:
            _check_size(name, text, most)
            _check_json(name, text)
    if not isinstance(msgspec.json.decode(question.schema), dict):
        raise make_request_error("schema must be a JSON object")
    audiences = [question.audience, *(step.to for step in question.plan if step.to is not None)]
    for audience in audiences:
        Audience.read([*([audience.role] if audience.role else []), *audience.people])
    for names in (question.plan, question.apart_from):
        check_count("question", names)
    for step in question.plan:
        _check_range("after", step.after, 0, _LONGEST_TIME)
    if question.notify is not None:
        check_name("notify", question.notify, "")


def check_count(name: str, items: tuple[Any, ...]) -> None:
    """Refuse a list that is too long."""
    if len(items) > MAX_ITEMS:
        raise make_request_error(f"{name} has {len(items)} items, and at most {MAX_ITEMS} are allowed")


def check_registration(call: worker_protocol.Registration, most: int) -> None:
    """Refuse a catalogue that others could not read."""
    items = (*call.catalogue.workflows, *call.catalogue.steps)
    check_count("the catalogue", items)
    if call.catalogue.version:
        check_name("version", call.catalogue.version, "")
    for item in items:
        check_name("name", item.name, "")
        if item.own is not None and not VERSION.fullmatch(item.own):
            raise make_request_error("the version of a workflow has up to 100 letters, digits and . _ + -")
        check_fields({name: getattr(item, name) for name in ("schema_in", "schema_out", "events")}, most)
    for item in call.catalogue.workflows:
        _check_declaration(_WORKFLOW_OPTIONS, item.options)
    for item in call.catalogue.steps:
        _check_declaration("options", item.options)


def check_new_run(run: NewRun, most: int) -> None:
    """Refuse a run whose texts and numbers `start` would not accept."""
    if not _RUN_ID.fullmatch(run.public_id):
        raise make_request_error("the id of a run has up to 100 letters, digits, dots, dashes and underscores")
    _check_size("options", run.options, most)
    check_fields({"input": run.input}, most)
    for name in ("queue", "correlation_id", "key_hash"):
        if (text := getattr(run, name)) is not None:
            check_sealed_hash(text) if name == "key_hash" and is_sealed(text) else check_name(name, text, "")
    _check_range("priority", run.priority, -1000, 1000)
    for name in ("delay", "key_keeps"):
        _check_range(name, getattr(run, name), 0, _LONGEST_TIME)
    if run.timeout is not None:
        _check_range("timeout", run.timeout, 1, 2 * _LONGEST_TIME)
    if run.deadline is not None:
        _check_range("deadline", run.deadline, 0, _LATEST_TIME)


class _OptionTypes(msgspec.Struct, kw_only=True):
    """The types and limits of the options of a run, as far as its policies do not check themselves."""

    dead_letter: bool
    max_crashes: Annotated[int, msgspec.Meta(ge=1, le=_LARGEST_NUMBER)]
    letter_keeps: Annotated[int, msgspec.Meta(ge=0, le=int(FOREVER * MICROS))]
    index: tuple[str, ...]
    rollback: bool
    reserves: bool
    depth: Annotated[int, msgspec.Meta(ge=0, le=MAX_DEPTH)]
    priority: Annotated[int, msgspec.Meta(ge=-1000, le=1000)]
    limits: StepLimits | None
    on_failure: OnFailure | None
    notify: NotifyRule | None


class _WorkflowOptions(msgspec.Struct):
    """The fields that the catalogue has of a workflow beside the options of its runs. `timeout` is in seconds."""

    timeout: Annotated[float, msgspec.Meta(gt=0, le=2 * MAX_DURATION)] | None = None
    retention_runs: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_NUMBER)] | None = None
    sealed: bool = False


def check_options(options: RunOptions) -> None:
    """Refuse options of a run that the engine could not work with; raise an error of any kind."""
    given = {name: msgspec.to_builtins(getattr(options, name)) for name in _OptionTypes.__struct_fields__}
    msgspec.convert(given, _OptionTypes)
    for handler in () if options.on_failure is None else options.on_failure.handlers:
        check_options(parse_run_options(handler.options))


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise make_request_error(f"{name} is {value}, and must be from {least} to {most}")


def _check_size(name: str, text: str, most: int) -> None:
    if is_sealed(text):
        most = sealed_limit(most)
    # A character has up to four bytes.
    if 4 * len(text) > most and (size := len(text.encode("utf-8", "surrogatepass"))) > most:
        raise make_request_error(f"{name} has {size} bytes, and at most {most} are allowed")


def _check_json(name: str, text: str) -> None:
    if is_sealed(text):
        if not SEALED_TEXT.fullmatch(text):
            raise make_request_error(f"{name} is not an encrypted text")
    elif (fault := find_json_fault(text)) is not None:
        raise make_request_error(f"{name} {fault}")


@lru_cache(maxsize=256)
def _read_step_options(text: str) -> None:
    options = StepOptions.from_json(text)
    for number in (options.timeout, options.heartbeat_timeout or 1.0):
        if not 0 < number <= MAX_DURATION:
            raise ValueError(number)
    for name in (options.effect, options.undo, options.confirm, options.cancel, options.action):
        if not isinstance(name, str | None):
            raise TypeError(name)


@lru_cache(maxsize=256)
def _read_circuit(text: str) -> None:
    Circuit.from_stored(dict(json.loads(text)))


def _read_workflow_options(text: str) -> None:
    check_options(RunOptions.from_json(text))
    msgspec.json.decode(text, type=_WorkflowOptions)


_WORKFLOW_OPTIONS = "options of a workflow"
_READERS: dict[str, Callable[[str], None]] = {
    "options": _read_step_options,
    "settings": _read_circuit,
    _WORKFLOW_OPTIONS: _read_workflow_options,
}


def _check_declaration(name: str, text: str) -> None:
    try:
        _READERS[name](text)
    except Exception as error:  # of any kind: the text is the worker's
        raise make_request_error(f"{name} cannot be read: {type(error).__name__}") from None
