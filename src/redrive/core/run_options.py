"""What a run and a step carry with them, so that a process without the user's code can decide."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from redrive.core.circuit import AdmittedCall, circuit_key
from redrive.core.notify_rules import NotifyRule
from redrive.duration import MICROS
from redrive.policy import Circuit, RetryPolicy
from redrive.records import as_dict, replace

# -- The trace that a run belongs to, as W3C Trace Context writes it: `00-<trace id>-<span id>-<flag -----


_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_PREFIX = '{"trace":"'
_TRACE_END = len(_TRACE_PREFIX) + 55


def check_traceparent(traceparent: str | None) -> str | None:
    """A traceparent of the known form; None for anything else, which is to be ignored."""
    return traceparent if traceparent is not None and _TRACEPARENT.fullmatch(traceparent) else None


def add_trace(options: str, traceparent: str | None) -> str:
    """The options of a run that belongs to a trace."""
    return options if traceparent is None else f'{_TRACE_PREFIX}{traceparent}",{split_trace(options)[1][1:]}'


def split_trace(options: str) -> tuple[str | None, str]:
    """The trace, and the options that do not speak of it."""
    if not options.startswith(_TRACE_PREFIX):
        return None, options
    return options[len(_TRACE_PREFIX) : _TRACE_END], "{" + options[_TRACE_END + 2 :]


def trace_id(traceparent: str | None) -> str | None:
    """The id that all spans of the trace share."""
    return None if traceparent is None else traceparent[3:35]


# -- What a run and a step carry with them, so that a process without the user's code can decide ---------


DEFAULT_RETRY = RetryPolicy()
_SPARSE_FIELDS = ("undo", "confirm", "cancel", "pivot", "action")


class FailureHandler(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workflow that is told of failures, with what it takes to start it where its code is not.

    `parameter` is what its one argument is called, `options` its own snapshot, `timeout` microseconds.
    """

    workflow: str
    parameter: str
    options: str
    timeout: int | None = None


class OnFailure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a failure of the run starts. `limit`: how large an event may be; `base_url`: where it links to."""

    handlers: tuple[FailureHandler, ...]
    limit: int
    base_url: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**as_dict(self), "handlers": [as_dict(each) for each in self.handlers]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OnFailure:
        return cls(**{**data, "handlers": tuple(FailureHandler(**each) for each in data["handlers"])})


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A run's snapshot: its own retry override, and its workflow's options when it started."""

    override: RetryPolicy | None = None
    retry: RetryPolicy | None = None
    dead_letter: bool = True
    max_crashes: int = 3
    letter_keeps: int = 30 * 86_400 * MICROS
    index: tuple[str, ...] = ()
    on_failure: OnFailure | None = None
    rollback: bool = False
    reserves: bool = False
    notify: NotifyRule | None = None
    trace: str | None = None

    @property
    def undoes(self) -> bool:
        """True if something may have to be undone when the run does not succeed.

        `reserves`: its code has steps that are confirmed or cancelled in the end.
        """
        return self.rollback or self.reserves

    def to_json(self) -> str:
        text = json.dumps(
            {
                "override": self.override and self.override.to_json(),
                "retry": self.retry and self.retry.to_json(),
                "dead_letter": self.dead_letter,
                "max_crashes": self.max_crashes,
                "letter_keeps": self.letter_keeps,
                **({"index": self.index} if self.index else {}),
                **({"on_failure": self.on_failure.to_json()} if self.on_failure else {}),
                **{name: True for name in ("rollback", "reserves") if getattr(self, name)},
                **({"notify": self.notify.to_json()} if self.notify else {}),
            },
            separators=(",", ":"),
        )
        return add_trace(text, self.trace)

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        data = json.loads(text)
        return cls(
            override=_read_policy(data["override"]),
            retry=_read_policy(data["retry"]),
            dead_letter=data["dead_letter"],
            max_crashes=data["max_crashes"],
            letter_keeps=data["letter_keeps"],
            index=tuple(data.get("index", ())),
            on_failure=_read_on_failure(data.get("on_failure")),
            rollback=data.get("rollback", False),
            reserves=data.get("reserves", False),
            notify=NotifyRule.from_json(data["notify"]) if "notify" in data else None,
            trace=data.get("trace"),
        )

    def traced(self, trace: str | None) -> RunOptions:
        """The same for a run that belongs to a trace."""
        return self if trace is None else replace(self, trace=trace)


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A step's snapshot, written with its begin mark. Times are seconds.

    `generation` and `probe` tell how its circuit let this attempt through.
    `undo`, `confirm` and `cancel` name the steps that do so; `action` is the kind of a declared one.
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

    def to_json(self) -> str:
        return json.dumps(
            {
                "retry": self.retry and self.retry.to_json(),
                "timeout": self.timeout,
                "heartbeat_timeout": self.heartbeat_timeout,
                "at_most_once": self.at_most_once,
                "transactional": self.transactional,
                "effect": self.effect,
                **self._circuit_json(),
                **{name: value for name in _SPARSE_FIELDS if (value := getattr(self, name))},
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> StepOptions:
        data = json.loads(text)
        return cls(
            retry=_read_policy(data["retry"]),
            timeout=data["timeout"],
            heartbeat_timeout=data["heartbeat_timeout"],
            at_most_once=data["at_most_once"],
            transactional=data["transactional"],
            effect=data["effect"],
            circuit=Circuit.from_stored(data["circuit"]) if "circuit" in data else None,
            generation=data.get("generation", 0),
            probe=data.get("probe", False),
            **{name: data[name] for name in _SPARSE_FIELDS if name in data},
        )

    def _circuit_json(self) -> dict[str, Any]:
        if self.circuit is None:
            return {}
        passed = {"generation": self.generation, "probe": self.probe} if self.generation else {}
        return {"circuit": self.circuit.to_json(), **passed}

    def admitted(self, workflow: str, step: str) -> AdmittedCall | None:
        """What let an attempt with this snapshot through, for those who did not see it begin."""
        if self.circuit is None:
            return None
        key, settings = circuit_key(self.circuit, workflow, step), json.dumps(self.circuit.to_json())
        return AdmittedCall(key, settings, self.generation, self.probe)

    @property
    def limit(self) -> float:
        """Seconds after which an attempt that shows no sign of life may be ended."""
        return min(self.timeout, self.heartbeat_timeout or self.timeout)


def _read_on_failure(data: Any) -> OnFailure | None:
    return None if data is None else OnFailure.from_json(data)


def _read_policy(data: Any) -> RetryPolicy | None:
    return None if data is None else RetryPolicy.from_stored(data)


StoredPolicies = dict[tuple[str, str, str], RetryPolicy]
"""The stored policies by (tenant, workflow, step); an empty string stands for any."""


def find_policy(
    stored: StoredPolicies, *, run: RunOptions, step: StepOptions, tenant: str, workflow: str, name: str
) -> RetryPolicy:
    """The policy in force for the next attempt, the most particular first.

    Run override, stored for the step, stored for the workflow, code on the step, code on the
    workflow, default. A policy stored for one tenant goes before one stored for all.
    """
    if run.override is not None:
        return run.override
    if stored:
        places = ((workflow, name), ("", name), (workflow, ""))
        for place in places:
            for owner in (tenant, ""):
                policy = stored.get((owner, *place))
                if policy is not None:
                    return policy
    return step.retry or run.retry or DEFAULT_RETRY
