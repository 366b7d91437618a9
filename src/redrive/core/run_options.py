"""Snapshots of the options of runs and steps, so that a process without the user's code can decide.

A run that belongs to a trace carries its `traceparent` (W3C Trace Context: `00-<trace id>-<span id>-<flags>`) at the
start of its options, where it can be cut off without parsing them. A run that a source started carries its origin
behind that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from redrive.core.circuit import AdmittedCall, circuit_key
from redrive.core.notification_rules import NotifyRule
from redrive.policy import Circuit, RetryPolicy
from redrive.record_fields import as_dict
from redrive.time_values import MICROS

DEFAULT_RETRY = RetryPolicy()

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
TRACE_PREFIX = '{"trace":"'
"""The beginning of the encoded options of a run that belongs to a trace."""

ORIGIN_PREFIX = '{"origin":'
"""The beginning of the encoded options of a run that a source started, behind the trace."""

SEALED_OPTION = "sealed"
"""The option in the catalogue of a workflow whose workers encrypt its payloads themselves."""

_TRACE_END = len(TRACE_PREFIX) + 55
_DECODER = json.JSONDecoder()
_SPARSE_FIELDS = ("undo", "confirm", "cancel", "pivot", "action", "remote")


def takes_sealed(options: str) -> bool:
    """Return True for the options in the catalogue of a workflow that takes encrypted inputs only."""
    return json.loads(options).get(SEALED_OPTION) is True


def check_traceparent(traceparent: str | None) -> str | None:
    """Return a valid traceparent unchanged, and None for any other text, which is ignored."""
    return traceparent if traceparent is not None and _TRACEPARENT.fullmatch(traceparent) else None


def add_trace(options: str, traceparent: str) -> str:
    """Return the encoded options of a run that belongs to a trace."""
    return f'{TRACE_PREFIX}{traceparent}",{split_trace(options)[1][1:]}'


def add_option(options: str, name: str, value: str | int) -> str:
    """Return the encoded options of a run with one more of them."""
    trace, rest = split_trace(options)
    text = f'{{"{name}":{json.dumps(value)},{rest[1:]}'
    return text if trace is None else add_trace(text, trace)


def add_origin(options: str, origin: tuple[str, str]) -> str:
    """Return the encoded options of a run that a source started. The origin is the stream and the id of the message."""
    trace, rest = split_trace(options)
    text = f"{ORIGIN_PREFIX}{json.dumps(origin)},{rest[1:]}"
    return text if trace is None else add_trace(text, trace)


def split_origin(options: str) -> tuple[tuple[str, str] | None, str]:
    """Return the origin in encoded options without a trace, and the options without it."""
    if not options.startswith(ORIGIN_PREFIX):
        return None, options
    (stream, id), end = _DECODER.raw_decode(options, len(ORIGIN_PREFIX))
    return (stream, id), "{" + options[end + 1 :]


def split_trace(options: str) -> tuple[str | None, str]:
    """Return the traceparent in encoded options, and the options without it."""
    if not options.startswith(TRACE_PREFIX):
        return None, options
    return options[len(TRACE_PREFIX) : _TRACE_END], "{" + options[_TRACE_END + 2 :]


def trace_id(traceparent: str | None) -> str | None:
    """Return the id that all spans of the trace share."""
    return None if traceparent is None else traceparent[3:35]


class FailureHandler(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow that handles failures, with all that a process without its code needs to start it.

    `parameter`: the name of its argument. `options`: its own snapshot. `timeout`: in microseconds. `for_all`: it
    handles the failures of all workflows, also beside a handler that a start names.
    """

    workflow: str
    parameter: str
    options: str
    timeout: int | None = None
    for_all: bool = False


class OnFailure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The handlers of a run's failure, and the queue of their runs.

    `limit`: the maximum size of an event. `base_url`: the start of its link.
    """

    handlers: tuple[FailureHandler, ...]
    limit: int
    base_url: str = ""
    queue: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {**as_dict(self), "handlers": [as_dict(each) for each in self.handlers]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OnFailure:
        return cls(**{**data, "handlers": tuple(FailureHandler(**each) for each in data["handlers"])})


class StepLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Time limits of all steps of a run, in seconds. The defaults are for steps without a limit in the code."""

    timeout: float | None = None
    heartbeat_timeout: float | None = None
    default_timeout: float | None = None
    default_heartbeat_timeout: float | None = None


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A run's snapshot: its own retry override, and the options of its workflow when it started.

    `limits`: time limits of its steps, from the start and from the workflow. `letter_keeps`: microseconds for which its
    dead letter is kept. `rollback`: a failed run is rolled back. `reserves`: its code has steps that are confirmed or
    cancelled at the end. `depth`: the number of runs above it that wait for each other. `priority`: that of its
    children. `origin`: the stream and the id of the message for which a source started it. `started_by`:
    the person, token or schedule that started it, or the run above it.
    """

    override: RetryPolicy | None = None
    retry: RetryPolicy | None = None
    limits: StepLimits | None = None
    dead_letter: bool = True
    max_crashes: int = 3
    letter_keeps: int = 30 * 86_400 * MICROS
    index: tuple[str, ...] = ()
    on_failure: OnFailure | None = None
    rollback: bool = False
    reserves: bool = False
    notify: NotifyRule | None = None
    depth: int = 0
    priority: int = 0
    started_by: str | None = None
    trace: str | None = None
    origin: tuple[str, str] | None = None

    @property
    def undoes(self) -> bool:
        """True if effects may have to be undone when the run does not succeed."""
        return self.rollback or self.reserves

    def to_json(self) -> str:
        data: dict[str, Any] = {
            "override": self.override and self.override.to_json(),
            "retry": self.retry and self.retry.to_json(),
            "dead_letter": self.dead_letter,
            "max_crashes": self.max_crashes,
            "letter_keeps": self.letter_keeps,
        }
        optional = {
            "limits": self.limits and as_dict(self.limits),
            "index": self.index,
            "on_failure": self.on_failure and self.on_failure.to_json(),
            "rollback": self.rollback,
            "reserves": self.reserves,
            "notify": self.notify and self.notify.to_json(),
            "depth": self.depth,
            "priority": self.priority,
            "started_by": self.started_by,
        }
        data |= {name: value for name, value in optional.items() if value}
        text = json.dumps(data, separators=(",", ":"))
        text = text if self.origin is None else add_origin(text, self.origin)
        return text if self.trace is None else add_trace(text, self.trace)

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        data = json.loads(text)
        # A newer version of this code may have stored more fields.
        known = {name: data[name] for name in cls.__struct_fields__ if name in data}
        known |= {"override": _read_policy(data["override"]), "retry": _read_policy(data["retry"])}
        known["index"] = tuple(data.get("index", ()))
        if "limits" in data:
            known["limits"] = StepLimits(**data["limits"])
        if "on_failure" in data:
            known["on_failure"] = OnFailure.from_json(data["on_failure"])
        if "origin" in data:
            known["origin"] = tuple(data["origin"])
        if "notify" in data:
            known["notify"] = NotifyRule.from_json(data["notify"])
        return cls(**known)


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A step's snapshot, recorded when an attempt starts. Times are seconds.

    `generation`, `probe`: the way in which its circuit admitted this attempt. `undo`, `confirm`, `cancel`: names of the
    steps that do so. `action`: the kind of a declared action. `remote`: the queue whose workers execute the step.
    """

    retry: RetryPolicy | None = None
    timeout: float = 600.0
    heartbeat_timeout: float | None = None
    at_most_once: bool = False
    transactional: bool = False
    effect: str | None = None
    circuit: Circuit | None = None
    generation: int = 0
    probe: bool = False
    undo: str | None = None
    confirm: str | None = None
    cancel: str | None = None
    pivot: bool = False
    action: str | None = None
    remote: str | None = None

    def to_json(self) -> str:
        data: dict[str, Any] = {
            "retry": self.retry and self.retry.to_json(),
            "timeout": self.timeout,
            "heartbeat_timeout": self.heartbeat_timeout,
            "at_most_once": self.at_most_once,
            "transactional": self.transactional,
            "effect": self.effect,
        }
        if self.circuit is not None:
            data["circuit"] = self.circuit.to_json()
            if self.generation:
                data |= {"generation": self.generation, "probe": self.probe}
        data |= {name: value for name in _SPARSE_FIELDS if (value := getattr(self, name))}
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StepOptions:
        data = json.loads(text)
        known = {name: data[name] for name in cls.__struct_fields__ if name in data}
        known["retry"] = _read_policy(data["retry"])
        if "circuit" in data:
            known["circuit"] = Circuit.from_stored(data["circuit"])
        return cls(**known)

    def build_admitted_call(self, workflow: str, step: str) -> AdmittedCall | None:
        """Return how the circuit admitted the attempt, for a process that did not see it start."""
        if self.circuit is None:
            return None
        key, settings = circuit_key(self.circuit, workflow, step), json.dumps(self.circuit.to_json())
        return AdmittedCall(key, settings, self.generation, self.probe)

    @property
    def limit(self) -> float:
        """Seconds after which an attempt without a heartbeat may be ended."""
        return min(self.timeout, self.heartbeat_timeout or self.timeout)


def _read_policy(data: Any) -> RetryPolicy | None:
    return None if data is None else RetryPolicy.from_stored(data)


StoredPolicies = dict[tuple[str, str, str], RetryPolicy]
"""Stored policies by (tenant, workflow, step). An empty string stands for any; without both names it is the default."""


def find_policy(
    stored: StoredPolicies, *, run: RunOptions, step: StepOptions, tenant: str, workflow: str, name: str
) -> RetryPolicy:
    """Return the policy in force for the next attempt, the most specific first.

    The order is: override of the run, stored for the step, stored for the workflow, code of the step, code of the
    workflow, stored default, built-in default. A policy stored for one tenant precedes one stored for all tenants.
    An empty `name` stands for code of the workflow between its steps.
    """
    if run.override is not None:
        return run.override
    of_step = ((workflow, name), ("", name)) if name else ()
    found = _find_stored(stored, tenant, *of_step, (workflow, "")) or step.retry or run.retry
    return found or _find_stored(stored, tenant, ("", "")) or DEFAULT_RETRY


def _find_stored(stored: StoredPolicies, tenant: str, *targets: tuple[str, str]) -> RetryPolicy | None:
    for target in targets if stored else ():
        for owner in (tenant, ""):
            policy = stored.get((owner, *target))
            if policy is not None:
                return policy
    return None
