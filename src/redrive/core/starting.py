"""Starting a run: what a caller may ask for, checked, and the run that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.core.index import index_values
from redrive.core.keys import event_hash, event_key, job_key, payload_hash, schedule_key
from redrive.core.options import RunOptions
from redrive.core.quick import quick
from redrive.core.roles import DEFAULT_TENANT, one_tenant
from redrive.core.tracing import with_trace
from redrive.core.transition import NewRun
from redrive.duration import MICROS, Duration, seconds
from redrive.errors import InputError
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy

__all__ = ["START_OPTIONS", "Startable", "clash", "for_event", "for_schedule", "name_text", "new_run"]

START_OPTIONS = frozenset(
    {"tenant", "idempotency_key", "delay", "deadline", "priority", "queue", "correlation_id", "retry"}
)
"""Names that `start` takes for itself, which no parameter of a workflow may have."""

_NewRun = quick(NewRun)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME_LIMIT = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Startable:
    """A workflow as far as starting it goes. `text` is how `options` are written; `timeout` is in seconds."""

    name: str
    version: str
    options: RunOptions
    text: str
    timeout: float | None = None


def new_run(
    workflow: Startable,
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
        raise InputError(f"start has no option {_listed(unknown)}; it has {_listed(START_OPTIONS)}")
    tenant = one_tenant(name_text("tenant", options.get("tenant"), DEFAULT_TENANT))
    key = options.get("idempotency_key")
    delay = _micros("delay", options.get("delay")) or 0
    return _NewRun(
        public_id=public_id,
        tenant=tenant,
        workflow=workflow.name,
        input=input,
        options=with_trace(_snapshot(workflow, options.get("retry")), trace),
        queue=name_text("queue", options.get("queue"), "default"),
        priority=_priority(options.get("priority")),
        delay=delay,
        timeout=None if workflow.timeout is None else delay + int(workflow.timeout * MICROS),
        deadline=_deadline(options.get("deadline"), now),
        version=workflow.version,
        correlation_id=_optional("correlation_id", options.get("correlation_id")),
        parent=parent,
        handler_for=handler_for,
        key=None if key is None else job_key(tenant, workflow.name, name_text("idempotency_key", key, "")),
        key_hash=None if key is None else payload_hash(input),
        key_keeps=key_keeps,
        index=index_values(input, workflow.options.index),
    )


def for_event(run: NewRun, event: tuple[str, str]) -> NewRun:
    """The run under the key of an event of a stream; what the event stands for is the workflow, too."""
    stream, event_id = event
    key = event_key(run.tenant, name_text("stream", stream, ""), name_text("event_id", event_id, ""))
    return replace(run, key=key, key_hash=event_hash(run.workflow, run.input))


def for_schedule(run: NewRun, name: str, at: int, keeps: int) -> NewRun:
    """The run under the key of a time of a schedule. `keeps`: how long somebody may still try to start it."""
    key = schedule_key(run.tenant, run.workflow, name, at)
    return replace(run, key=key, key_hash=payload_hash(run.input), key_keeps=max(run.key_keeps, keeps))


def clash(run: NewRun, first: str, event: tuple[str, str] | None) -> str:
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


def _snapshot(workflow: Startable, override: RetryPolicy | None) -> str:
    if override is None:
        return workflow.text
    if not isinstance(override, RetryPolicy):
        raise InputError(f"retry takes a RetryPolicy, not {type(override).__name__}")
    return replace(workflow.options, override=override).to_json()


def _deadline(value: datetime | Duration | None, now: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        return now + int(seconds(value, "deadline") * MICROS)
    if value.tzinfo is None:
        raise InputError("deadline needs a time zone: use datetime.now(UTC) + ... or a duration")
    try:
        value = value.astimezone(UTC)
    except OverflowError:
        raise InputError(f"deadline {value} is beyond what a clock can show; leave it out") from None
    return (value - _EPOCH) // timedelta(microseconds=1)


def name_text(what: str, value: Any, default: str) -> str:
    """A name that people give: not empty, not huge, and storable anywhere."""
    value = default if value is None else value
    if not isinstance(value, str) or not value or len(value) > _NAME_LIMIT:
        raise InputError(f"{what} must be a text of 1 to {_NAME_LIMIT} characters, not {value!r:.60}")
    if "\x00" in value or (not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)):
        raise InputError(f"{what} contains a NUL byte or a lone surrogate: {value!r:.60}")
    return value


def _optional(what: str, value: Any) -> str | None:
    return None if value is None else name_text(what, value, "")


def _priority(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 1000:
        raise InputError(f"priority must be a whole number from -1000 to 1000, not {value!r}")
    return value


def _micros(what: str, value: Any) -> int | None:
    return None if value is None else int(seconds(value, what) * MICROS)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
