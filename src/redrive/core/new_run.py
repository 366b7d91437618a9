"""Starting a run: what a caller may ask for, checked, and the run that comes of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from redrive.core.idempotency import event_hash, event_key, job_key, payload_hash, schedule_key
from redrive.core.roles import DEFAULT_TENANT, check_tenant_name
from redrive.core.run_options import RunOptions, add_trace
from redrive.core.transitions import NewRun
from redrive.duration import MICROS, Duration, parse_duration
from redrive.errors import InputError
from redrive.policy import RetryPolicy
from redrive.records import replace

# -- Fields of an input to search by: what is declared, and the texts that are kept of it ----------------


MAX_INDEX_FIELDS = 16
_MAX_VALUES = 100  # of one field; a longer list is searched by its beginning
_ENCRYPTED_PREFIX = "det1:"  # what the sealed store makes of a value; a filter is made more than once on its way
_MAX_INDEX_LENGTH = 200  # an index of a database holds no long texts, and not every sign: of those a hash is kept


def split_field_path(field: str) -> list[str]:
    """The names that lead to a field."""
    return field.split(".")


def extract_index_values(text: str, fields: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What is kept of an input: pairs of field and value, each once. Nothing of one that cannot be read."""
    if not fields:
        return ()
    try:
        data = json.loads(text)
    except ValueError:
        return ()
    found = ((field, value) for field in fields for value in _format_values(get_field(data, field)))
    return tuple(dict.fromkeys(found))


def format_index_value(value: Any) -> str:
    """A value as it is kept and looked for."""
    if not isinstance(value, str | int | float):
        raise InputError(f"fields to search by hold texts, numbers and truth values, not {value!r:.60}")
    text = value if isinstance(value, str) else json.dumps(value)
    if (len(text) <= _MAX_INDEX_LENGTH and text.isprintable()) or text.startswith(_ENCRYPTED_PREFIX):
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def get_field(data: Any, field: str) -> Any:
    """The value of a field in an input; None if it is not there."""
    for name in split_field_path(field):
        if not isinstance(data, dict):
            return None
        data = data.get(name)
    return data


def _format_values(value: Any) -> Iterator[str]:
    values = value[:_MAX_VALUES] if isinstance(value, list) else [value]
    return (format_index_value(each) for each in values if isinstance(each, str | int | float))


# -- Starting a run: what a caller may ask for, checked, and the run that comes of it --------------------


START_OPTIONS = frozenset(
    {"tenant", "idempotency_key", "delay", "deadline", "priority", "queue", "correlation_id", "retry"}
)
"""Names that `start` takes for itself, which no parameter of a workflow may have."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME_LIMIT = 255


class StartableWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow as far as starting it goes. `text` is how `options` are written; `timeout` is in seconds."""

    name: str
    version: str
    options: RunOptions
    text: str
    timeout: float | None = None


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
    """The run that a workflow, an input and options make; InputError if an option is wrong."""
    unknown = options.keys() - START_OPTIONS
    if unknown:
        raise InputError(f"start has no option {_join_names(unknown)}; it has {_join_names(START_OPTIONS)}")
    tenant = check_tenant_name(check_name("tenant", options.get("tenant"), DEFAULT_TENANT))
    key = options.get("idempotency_key")
    delay = _to_micros("delay", options.get("delay")) or 0
    return NewRun(
        public_id=public_id,
        tenant=tenant,
        workflow=workflow.name,
        input=input,
        options=add_trace(_encode_options(workflow, options.get("retry")), trace),
        queue=check_name("queue", options.get("queue"), "default"),
        priority=_check_priority(options.get("priority")),
        delay=delay,
        timeout=None if workflow.timeout is None else delay + int(workflow.timeout * MICROS),
        deadline=_resolve_deadline(options.get("deadline"), now),
        version=workflow.version,
        correlation_id=_check_optional_name("correlation_id", options.get("correlation_id")),
        parent=parent,
        handler_for=handler_for,
        key=None if key is None else job_key(tenant, workflow.name, check_name("idempotency_key", key, "")),
        key_hash=None if key is None else payload_hash(input),
        key_keeps=key_keeps,
        index=extract_index_values(input, workflow.options.index),
    )


def set_event_key(run: NewRun, event: tuple[str, str]) -> NewRun:
    """The run under the key of an event of a stream; what the event stands for is the workflow, too."""
    stream, event_id = event
    key = event_key(run.tenant, check_name("stream", stream, ""), check_name("event_id", event_id, ""))
    return replace(run, key=key, key_hash=event_hash(run.workflow, run.input))


def set_schedule_key(run: NewRun, name: str, at: int, keeps: int) -> NewRun:
    """The run under the key of a time of a schedule. `keeps`: how long somebody may still try to start it."""
    key = schedule_key(run.tenant, run.workflow, name, at)
    return replace(run, key=key, key_hash=payload_hash(run.input), key_keeps=max(run.key_keeps, keeps))


def describe_key_conflict(run: NewRun, first: str, event: tuple[str, str] | None) -> str:
    """What to say of a key or an event that started another run before."""
    where = f"(workflow {run.workflow!r}, tenant {run.tenant!r})"
    if event is not None:
        stream, event_id = event
        return (
            f"event {event_id!r} of stream {stream!r} was received before, with another content or for "
            f"another workflow, and started run {first}; a new event needs a new id, and a second consumer "
            f"a stream name of its own {where}"
        )
    return (
        f"the idempotency key of this start was used for run {first} with another input; use a new key for a "
        f"new input {where}"
    )


def _encode_options(workflow: StartableWorkflow, override: RetryPolicy | None) -> str:
    if override is None:
        return workflow.text
    if not isinstance(override, RetryPolicy):
        raise InputError(f"retry takes a RetryPolicy, not {type(override).__name__}")
    return replace(workflow.options, override=override).to_json()


def _resolve_deadline(value: datetime | Duration | None, now: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        return now + int(parse_duration(value, "deadline") * MICROS)
    if value.tzinfo is None:
        raise InputError("deadline needs a time zone: use datetime.now(UTC) + ... or a duration")
    try:
        value = value.astimezone(UTC)
    except OverflowError:
        raise InputError(f"deadline {value} is beyond what a clock can show; leave it out") from None
    return (value - _EPOCH) // timedelta(microseconds=1)


def check_name(what: str, value: Any, default: str) -> str:
    """A name that people give: not empty, not huge, and storable anywhere."""
    value = default if value is None else value
    if not isinstance(value, str) or not value or len(value) > _NAME_LIMIT:
        raise InputError(f"{what} must be a text of 1 to {_NAME_LIMIT} characters, not {value!r:.60}")
    if "\x00" in value or (not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)):
        raise InputError(f"{what} contains a NUL byte or a lone surrogate: {value!r:.60}")
    return value


def _check_optional_name(what: str, value: Any) -> str | None:
    return None if value is None else check_name(what, value, "")


def _check_priority(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 1000:
        raise InputError(f"priority must be a whole number from -1000 to 1000, not {value!r}")
    return value


def _to_micros(what: str, value: Any) -> int | None:
    return None if value is None else int(parse_duration(value, what) * MICROS)


def _join_names(names: Any) -> str:
    return ", ".join(sorted(names))
