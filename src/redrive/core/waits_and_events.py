"""Waits of a run for events, other runs and people, and which event answers which wait; names and limits of events.

An event that was sent to a run is kept until a wait takes it. Three rules decide, whichever process looks and whenever:

* Events are taken in the order of their numbers, and waits are served in the order in which they began.
* An event counts for a wait with a limit if it came at or before the limit.
* A wait that collects takes what came within a time after the first event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from redrive.core.questions import TASK_KIND
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode, quote

EVENT_KIND = "event"
"""The kind of a wait for events."""

RUN_KIND = "run"
"""The kind of a wait for the end of another run. An open dead letter of that run does not end the wait."""

LETTER_KIND = "letter"
"""The kind of a wait for the end of another run, or for its dead letter."""

STEP_KIND = "step"
"""The kind of a wait for a step that workers of a queue execute. Its subject is the queue."""

MAX_UNREAD = 10_000
"""The largest number of events that may wait unread for one run."""

MAX_UNREAD_BYTES = 16 * 1024 * 1024
"""The largest size of the unread events of one run, in bytes. A worker reads all of them at once."""

MAX_EVENT_NUMBER = 2**31 - 1
"""The largest number of an event."""

_MAX_NAME = 200


def check_event_name(name: Any) -> str:
    """Return the name of an event, if it can be one."""
    # A server that could not decode a path puts U+FFFD in the place of the invalid bytes.
    valid = isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()
    if not valid or name != name.strip() or set(name) & {"/", "#", "\ufffd"}:
        raise InputError(Reason(ReasonCode.EVENT_NAME_INVALID, name=quote(name), longest=_MAX_NAME))
    return str(name)


def check_event_declared(workflow: str, name: str, declared: Mapping[str, Any] | None) -> None:
    """Refuse an event that its workflow does not declare; a workflow that declares none at all takes any."""
    if declared is not None and name not in declared:
        known = ", ".join(sorted(declared)) or "none"
        raise InputError(Reason(ReasonCode.EVENT_UNDECLARED, workflow=workflow, event=name, known=known))


class WaitMode(StrEnum):
    """The answer of a wait: one event of a name, one of several, many of a name, the end of a run, or a person's."""

    ONE = "one"
    ANY = "any"
    MANY = "many"
    RUN = "run"
    TASK = "task"


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A wait as its journal entry records it. `upto` and `within` (microseconds) limit a wait for many events.

    `names`: the events, or the id of the run. `schema`: the JSON Schema of a payload, for a user who gives the answer
    by hand. `letters`: a dead letter of the run ends the wait. `question`: the question to people.
    """

    mode: WaitMode
    names: tuple[str, ...]
    upto: int = 1
    within: int = 0
    schema: Any = None
    letters: bool = False
    question: str | None = None

    @property
    def kind(self) -> str:
        """The kind of its rows among the open waits."""
        if self.mode is WaitMode.TASK:
            return TASK_KIND
        if self.mode is not WaitMode.RUN:
            return EVENT_KIND
        return LETTER_KIND if self.letters else RUN_KIND

    def to_json(self) -> str:
        """Return the wait as text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Wait:
        """Parse the text of a recorded wait."""
        return msgspec.json.decode(text, type=cls)

    def answer_schema(self) -> Any:
        """Return the JSON Schema of the recorded answer."""
        payload = {} if self.schema is None else self.schema
        if self.mode in (WaitMode.ONE, WaitMode.RUN):
            return payload
        if self.mode is WaitMode.MANY:
            return {"type": "array", "items": payload}
        if self.mode is WaitMode.TASK:
            return {"type": "object", "properties": {"value": payload}, "required": ["value"]}
        return {
            "type": "object",
            "properties": {"name": {"enum": list(self.names)}, "payload": {}},
            "required": ["name", "payload"],
        }


class UnreadEvent(Protocol):
    """The facts about an event that decide which wait takes it."""

    @property
    def seq(self) -> int: ...
    @property
    def at(self) -> int: ...
    @property
    def name(self) -> str: ...


class OpenWait(msgspec.Struct, frozen=True, kw_only=True):
    """A wait that has no answer yet. `limit_at`: the time of its limit, None without one."""

    index: int
    wait: Wait
    limit_at: int | None = None


class WaitState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an open wait: its events, or the time at which it has to be looked at again.

    `events`: numbers of the events that answer it. `expired`: its limit has passed without one. `due_at`: None if only
    another event changes its state.
    """

    events: tuple[int, ...] = ()
    expired: bool = False
    due_at: int | None = None


def match_events(waits: Iterable[OpenWait], unread: Sequence[UnreadEvent], now: int) -> dict[int, WaitState]:
    """Return the state of each wait by its index. No event answers two waits."""
    left = sorted(unread, key=lambda event: event.seq)
    states: dict[int, WaitState] = {}
    for each in sorted(waits, key=lambda each: each.index):
        wait, limit_at = each.wait, each.limit_at
        fitting = [e for e in left if e.name in wait.names and (limit_at is None or e.at <= limit_at)]
        if not fitting:
            states[each.index] = WaitState(expired=limit_at is not None and now >= limit_at, due_at=limit_at)
            continue
        closes_at = fitting[0].at + wait.within
        found = [event for event in fitting if event.at <= closes_at][: wait.upto]
        left = [event for event in left if event not in found]  # those that are collected belong to this wait
        if len(found) < wait.upto and now < closes_at:
            states[each.index] = WaitState(due_at=closes_at)
        else:
            states[each.index] = WaitState(events=tuple(event.seq for event in found))
    return states


def encode_answer(wait: Wait, events: Sequence[Any]) -> str:
    """Return the answer of a wait as its journal entry records it. The payloads of `events` are JSON texts."""
    if wait.mode is WaitMode.ONE:
        return str(events[0].payload)
    if wait.mode is WaitMode.MANY:
        return f"[{','.join(event.payload for event in events)}]"
    (event,) = events
    beside = {"name": event.name, "at": event.at, "by": event.by}
    return f'{json.dumps(beside)[:-1]}, "payload": {event.payload}}}'
