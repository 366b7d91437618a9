"""The start of a run: the options of a caller, checked, and the values of the input to search by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from redrive.core.keys_and_ids import event_hash, event_key, job_key, payload_hash, schedule_key
from redrive.core.roles import ALL_TENANTS, DEFAULT_TENANT
from redrive.core.run_options import OnFailure, RunOptions, StepLimits, add_option, add_trace
from redrive.core.transitions import NewRun
from redrive.errors import InputError
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.time_values import MICROS, Duration, parse_duration

_SNAPSHOT_OPTIONS = frozenset({"retry", "step_timeout", "heartbeat_timeout", "on_failure", "failure_queue"})

START_OPTIONS = _SNAPSHOT_OPTIONS | {
    *("tenant", "idempotency_key", "delay", "deadline", "timeout", "priority", "queue", "correlation_id"),
    *("on_parent_end", "started_by"),
}
"""The options of `start`. No parameter of a workflow may have one of these names, or `on_letter`."""

DEFAULT_QUEUE = "default"
MAX_INDEX_FIELDS = 16
_MAX_VALUES = 100  # of one field; the rest of a longer list cannot be searched
_MAX_INDEX_LENGTH = 200  # an index of a database holds no long texts: longer ones are stored as a hash
_ENCRYPTED_PREFIX = "det1:"  # of values that the store encrypted; a filter is formatted more than once
_MAX_SEALED_LENGTH = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME_LIMIT = 255


class StartableWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow as far as a start needs it. `text`: the encoded `options`. `timeout`: in seconds.

    `sealed`: its workers encrypt its payloads, so it takes encrypted inputs only.
    """

    name: str
    version: str
    options: RunOptions
    text: str
    timeout: float | None = None
    sealed: bool = False


def build_new_run(
    workflow: StartableWorkflow,
    input: str,
    options: Mapping[str, Any],
    *,
    public_id: str,
    now: int,
    key_keeps: int,
    parent: str | None = None,
    handler_for: str | None = None,
    trace: str | None = None,
) -> NewRun:
    """Return the run that a caller requests; raise InputError if an option is wrong.

    The option `on_failure` is an `OnFailure` here, which names the handler that replaces that of the workflow.
    """
    unknown = options.keys() - START_OPTIONS
    if unknown:
        names, known = ", ".join(sorted(unknown)), tuple(sorted(START_OPTIONS))
        raise InputError(Reason(ReasonCode.START_OPTION_UNKNOWN, names=names, known=known))
    tenant = check_tenant_name(check_name("tenant", options.get("tenant"), DEFAULT_TENANT))
    delay, key, correlation_id = options.get("delay"), options.get("idempotency_key"), options.get("correlation_id")
    delay = 0 if delay is None else int(parse_duration(delay, "delay") * MICROS)
    priority = options.get("priority")
    if priority is None:
        priority = 0
    elif not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 1000:
        given = quote(priority)
        raise InputError(Reason(ReasonCode.WHOLE_NUMBER_NEEDED, field="priority", least=-1000, most=1000, given=given))
    encoded = workflow.text
    if not _SNAPSHOT_OPTIONS.isdisjoint(options):
        encoded = _build_snapshot(workflow.options, options).to_json()
    if priority:
        encoded = add_option(encoded, "priority", priority)
    if (started_by := options.get("started_by")) is not None:
        encoded = add_option(encoded, "started_by", check_name("started_by", started_by, ""))
    timeout = workflow.timeout if options.get("timeout") is None else read_time_limit("timeout", options["timeout"])
    # Not more than 15 keyword arguments: Python passes more as a dict, which takes several times as long.
    run = NewRun(
        public_id=public_id,
        tenant=tenant,
        workflow=workflow.name,
        input=input,
        options=encoded if trace is None else add_trace(encoded, trace),
        queue=check_name("queue", options.get("queue"), DEFAULT_QUEUE),
        priority=priority,
        delay=delay,
        timeout=None if timeout is None else delay + int(timeout * MICROS),
        deadline=_resolve_deadline(options.get("deadline"), now),
        version=workflow.version,
        correlation_id=None if correlation_id is None else check_name("correlation_id", correlation_id, ""),
        parent=parent,
        key_keeps=key_keeps,
        index=extract_index_values(input, workflow.options.index),
    )
    if key is not None:
        job = job_key(tenant, workflow.name, check_name("idempotency_key", key, ""))
        run = replace(run, key=job, key_hash=payload_hash(input))
    return run if handler_for is None else replace(run, handler_for=handler_for)


def _build_snapshot(options: RunOptions, given: Mapping[str, Any]) -> RunOptions:
    """Return the options of a workflow with those that a start gives for all steps of the run and for its failure."""
    override = given.get("retry")
    if override is not None and not isinstance(override, RetryPolicy):
        raise InputError(Reason(ReasonCode.RETRY_POLICY_NEEDED, given=type(override).__name__))
    names = {"timeout": "step_timeout", "heartbeat_timeout": "heartbeat_timeout"}
    found = {field: read_time_limit(name, given.get(name)) for field, name in names.items()}
    limits = replace(options.limits or StepLimits(), **found) if any(found.values()) else options.limits
    rules, handled = given.get("on_failure"), options.on_failure
    if isinstance(rules, OnFailure):
        own = {each.workflow for each in rules.handlers}
        others = () if handled is None else handled.handlers
        kept = tuple(each for each in others if each.for_all and each.workflow not in own)
        handled = replace(rules, handlers=rules.handlers + kept, queue=None if handled is None else handled.queue)
    queue = given.get("failure_queue")
    if queue is not None:
        if handled is None:
            raise InputError(Reason(ReasonCode.FAILURE_QUEUE_UNUSED))
        handled = replace(handled, queue=check_name("failure_queue", queue, ""))
    return replace(options, override=override, limits=limits, on_failure=handled)


def read_time_limit(what: str, value: Duration | None) -> float | None:
    """Return a time limit that a caller gives in seconds, or None if there is none."""
    length = None if value is None else parse_duration(value, what)
    if length == 0:
        raise InputError(Reason(ReasonCode.TIME_LIMIT_ZERO, field=what))
    return length


def _resolve_deadline(value: datetime | Duration | None, now: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        return now + int(parse_duration(value, "deadline") * MICROS)
    if value.tzinfo is None:
        raise InputError(Reason(ReasonCode.DEADLINE_WITHOUT_ZONE))
    try:
        return (value.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except OverflowError:
        raise InputError(Reason(ReasonCode.DEADLINE_TOO_FAR, given=str(value))) from None


def check_tenant_name(name: str) -> str:
    """Return the name; refuse the one that stands for all tenants."""
    if name == ALL_TENANTS:
        raise InputError(Reason(ReasonCode.TENANT_NAME_RESERVED, name=ALL_TENANTS))
    return name


def check_name(what: str, value: Any, default: str, longest: int = _NAME_LIMIT) -> str:
    """Return a name that a caller gives; raise InputError if it is empty, too long or not storable."""
    value = default if value is None else value
    if not isinstance(value, str) or not value or len(value) > longest:
        raise InputError(Reason(ReasonCode.LONG_TEXT_NEEDED, field=what, longest=longest, given=quote(value)))
    if "\x00" in value or (not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)):
        raise InputError(Reason(ReasonCode.TEXT_UNSTORABLE, field=what))
    return value


def set_event_key(run: NewRun, event: tuple[str, str]) -> NewRun:
    """Return the run with the key of an event, given as stream and id. The key covers the workflow, too."""
    stream, event_id = event
    key = event_key(run.tenant, check_name("stream", stream, ""), check_name("event_id", event_id, ""))
    return replace(run, key=key, key_hash=event_hash(run.workflow, run.input))


def set_schedule_key(run: NewRun, name: str, at: int, keeps: int) -> NewRun:
    """Return the run with the key of a time of a schedule. `keeps`: the time in which a repeat is possible."""
    key = schedule_key(run.tenant, run.workflow, name, at)
    return replace(run, key=key, key_hash=payload_hash(run.input), key_keeps=max(run.key_keeps, keeps))


def describe_key_conflict(run: NewRun, first: str, event: tuple[str, str] | None) -> Reason:
    """Return the reason why a start is refused whose key or event started another run, `first`."""
    workflow, tenant = run.workflow, run.tenant
    if event is None:
        return Reason(ReasonCode.START_KEY_USED, run=first, workflow=workflow, tenant=tenant)
    stream, event_id = event
    return Reason(ReasonCode.EVENT_USED, event=event_id, stream=stream, run=first, workflow=workflow, tenant=tenant)


def read_sealed_index(given: Iterable[tuple[str, str]], fields: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return the searchable values that the sender of an encrypted input computed and encrypted."""
    pairs = tuple(given)
    most = MAX_INDEX_FIELDS * _MAX_VALUES
    for field, value in pairs:
        if field not in fields or not value.startswith(_ENCRYPTED_PREFIX) or len(value) > _MAX_SEALED_LENGTH:
            raise InputError(Reason(ReasonCode.SEALED_INDEX_INVALID, field=quote(field)))
    if len(pairs) > most:
        raise InputError(Reason(ReasonCode.SEALED_INDEX_INVALID, field=quote(pairs[most][0])))
    return pairs


def check_sealed_hash(value: str | None) -> str:
    """Return the encrypted hash of an encrypted input, by which a repeated start is recognised."""
    if value is None or not value.startswith(_ENCRYPTED_PREFIX) or len(value) > _MAX_SEALED_LENGTH:
        raise InputError(Reason(ReasonCode.SEALED_HASH_NEEDED))
    return value


def split_field_path(field: str) -> list[str]:
    return field.split(".")


def get_field(data: Any, field: str) -> Any:
    """Return the value of a field in an input; None if it is missing."""
    for name in split_field_path(field):
        if not isinstance(data, dict):
            return None
        data = data.get(name)
    return data


def extract_index_values(text: str, fields: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of field and value by which an input is found; none if the input cannot be read."""
    if not fields:
        return ()
    try:
        data = json.loads(text)
    except ValueError:
        return ()
    found: list[tuple[str, str]] = []
    for field in fields:
        value = get_field(data, field)
        values = value[:_MAX_VALUES] if isinstance(value, list) else [value]
        found += [(field, format_index_value(each)) for each in values if isinstance(each, str | int | float)]
    return tuple(dict.fromkeys(found))


def format_index_value(value: Any) -> str:
    """Return a value as it is stored and searched."""
    if not isinstance(value, str | int | float):
        raise InputError(Reason(ReasonCode.INDEX_VALUE_INVALID, given=quote(value)))
    text = value if isinstance(value, str) else json.dumps(value)
    if (len(text) <= _MAX_INDEX_LENGTH and text.isprintable()) or text.startswith(_ENCRYPTED_PREFIX):
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
