"""Records of the step worker protocol: `POST /worker/steps/...`, for workers in any language.

Durations are whole milliseconds. Inputs, outputs and errors are JSON values, passed on as they were written.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

STEPS_PATH = "worker/steps"
"""The first part of the paths of these calls, below the prefix of the API."""

MAX_TASKS = 256
"""Tasks of one poll, and answers of one request."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Ticket = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


def _make_null() -> msgspec.Raw:
    return msgspec.Raw(b"null")


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class TaskPoll(_Record, frozen=True, kw_only=True):
    """A request for up to `capacity` tasks of these steps. With `wait_ms` it is answered when there is one.

    `begin`: the worker calls the steps at once; otherwise it calls `begin` for each ticket before. `keys`: the worker
    decrypts payloads itself.
    """

    queue: _Name
    steps: Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1, max_length=1000)]
    capacity: Annotated[int, msgspec.Meta(ge=1, le=MAX_TASKS)] = 1
    wait_ms: _Count = 0
    begin: bool = True
    keys: bool = False


class OfferedTask(_Record, frozen=True, kw_only=True):
    """An attempt of a step that the worker makes. `idempotency_key` is the same for all attempts and replays."""

    ticket: str
    run_id: str
    workflow: str
    step: str
    attempt: int
    input: msgspec.Raw
    idempotency_key: str
    timeout_ms: int
    tenant: str
    correlation_id: str
    heartbeat_timeout_ms: int | None = None
    traceparent: str | None = None


class TaskPollReply(_Record, frozen=True, kw_only=True):
    """The tasks of a poll. `now`: the server's time in microseconds since 1970."""

    tasks: list[OfferedTask]
    now: int


class BeginReply(_Record, frozen=True, kw_only=True):
    """The answer to `begin`. `cached_result`: the recorded output, if another worker was quicker."""

    should_execute: bool
    now: int
    cached_result: Any = None


class BeginCall(_Record, frozen=True, kw_only=True):
    """A request to begin with many tasks."""

    tickets: Annotated[tuple[_Ticket, ...], msgspec.Meta(min_length=1, max_length=MAX_TASKS)]


class BeginReplies(_Record, frozen=True, kw_only=True):
    """The answers to the tickets, in order."""

    answers: list[BeginReply]


class TaskHeartbeatCall(_Record, frozen=True, kw_only=True):
    """A heartbeat of a task. `details` is any JSON value for users."""

    details: msgspec.Raw = msgspec.field(default_factory=_make_null)


class TaskHeartbeatReply(_Record, frozen=True, kw_only=True):
    """The answer to a heartbeat. `cancelled`: the worker should stop; its answer would be refused."""

    cancelled: bool
    now: int


class TaskOutput(_Record, frozen=True, kw_only=True):
    """The result of a task."""

    output: msgspec.Raw = msgspec.field(default_factory=_make_null)


class TaskError(_Record, frozen=True, kw_only=True):
    """The failure of a task: a text, or an object with the fields of `ReportedError`."""

    error: Any
    non_retryable: bool = False
    retry_after_ms: _Count | None = None


class TicketReport(_Record, frozen=True, kw_only=True):
    """An answer to one of several tickets: an output, or an error."""

    ticket: _Ticket
    output: msgspec.Raw = msgspec.field(default_factory=_make_null)
    error: Any = None
    non_retryable: bool = False
    retry_after_ms: _Count | None = None


class StepSettlement(_Record, frozen=True, kw_only=True):
    """Answers to many tickets."""

    answers: Annotated[list[TicketReport], msgspec.Meta(max_length=MAX_TASKS)]


class ReportReply(_Record, frozen=True, kw_only=True):
    """The recorded status: `SUCCESS`, `RETRYING`, `FAILED`; `LOST` if the task was taken from the worker before.

    `problem`: why an output could not be used.
    """

    status: str
    next_in_ms: int | None = None
    problem: str | None = None
    ticket: str | None = None


class SettlementReply(_Record, frozen=True, kw_only=True):
    """The replies to the answers, in order."""

    answers: list[ReportReply]
    now: int
