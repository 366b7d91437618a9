"""Questions to people: who may answer them, and when more people are asked.

A question is a wait of a run with a row in a table, written in one commit. The row has the answer, which the run reads
under its fence. Manual compensations of a rollback have such a row, too, so that one list holds all tasks of people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from redrive.core.roles import ROLE_ALIASES, Permission, Role, find_lowest_role, parse_role, ranks_at_least
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode, quote
from redrive.settings import is_mail_address
from redrive.time_values import MICROS, parse_duration

TASK_KIND = "task"
"""The kind of a wait for an answer of a person."""

MAX_TEXT = 10_000
"""The most characters of a question, and of a note beside an answer."""

_MAX_OPTIONS = 50
_MAX_OPTION = 200
_MAX_PEOPLE = 100
_REMINDER_SHARE = 10  # users are reminded when a tenth of the time is left


class QuestionStatus(StrEnum):
    """The state of a question. WITHDRAWN: its run ended, or no longer waits for the answer."""

    OPEN = "OPEN"
    ANSWERED = "ANSWERED"
    EXPIRED = "EXPIRED"
    WITHDRAWN = "WITHDRAWN"


class QuestionKind(StrEnum):
    """The origin of a question: the code of a workflow, or a compensation that a person performs."""

    ASK = "ask"
    MANUAL = "manual"


class ManualAnswer(StrEnum):
    """The answers to a compensation that a person performs."""

    DONE = "done"
    SKIP = "skip"


class Audience(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The people who may answer: those with a role or a higher one, and some by their mail addresses."""

    role: Role | None = None
    people: tuple[str, ...] = ()

    @classmethod
    def read(cls, to: Any, field: str = "to") -> Audience:
        """Read an audience as workflow code gives it: a role, a mail address, or several of them."""
        if to is None:
            return cls(role=find_lowest_role(Permission.ANSWER))
        names = [to] if isinstance(to, str) else list(to) if isinstance(to, Iterable) else [to]
        roles: list[Role] = []
        people: list[str] = []
        for name in names:
            if isinstance(name, str) and _is_role(name):
                roles.append(_read_role(name, field))
            elif is_mail_address(name):
                people.append(name.lower())
            else:
                raise InputError(Reason(ReasonCode.AUDIENCE_INVALID, field=field, given=quote(name)))
        if not names or len(people) > _MAX_PEOPLE:
            raise InputError(Reason(ReasonCode.AUDIENCE_INVALID, field=field, given=quote(to)))
        lowest = next((role for role in ANSWERING_ROLES if role in roles), None)
        return cls(role=lowest, people=tuple(dict.fromkeys(people)))

    def includes(self, who: str, role: Role) -> bool:
        """Return True if a caller with this name and role belongs to it."""
        return (self.role is not None and ranks_at_least(role, self.role)) or who.lower() in self.people

    def widen(self, more: Audience) -> Audience:
        """Return this audience together with another one."""
        roles = [role for role in ANSWERING_ROLES if role in (self.role, more.role)]
        people = tuple(dict.fromkeys((*self.people, *more.people)))
        return Audience(role=roles[0] if roles else None, people=people)

    def __str__(self) -> str:
        return ", ".join([*([] if self.role is None else [self.role.value]), *self.people])


ANSWERING_ROLES = (Role.STAFF, Role.ADMIN, Role.OWNER)
"""The roles that may answer, the lowest first."""


def _is_role(name: str) -> bool:
    plain = name.upper().replace("-", "_")
    return plain in Role.__members__ or plain in ROLE_ALIASES


def _read_role(name: str, field: str) -> Role:
    role = parse_role(name)
    if role not in ANSWERING_ROLES:
        raise InputError(Reason(ReasonCode.AUDIENCE_ROLE, field=field, role=role.value, known=ANSWERING_ROLES))
    return role


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step that is due if a question is still open `after` microseconds: a reminder, or an escalation `to` people."""

    after: int
    to: Audience | None = None


Plan = tuple[PlannedStep, ...]


def read_plan(escalate: Any, timeout: float | None) -> Plan:
    """Return the steps for an open question: its escalations, and a reminder before its time limit."""
    steps: list[PlannedStep] = []
    if escalate is not None and not isinstance(escalate, Mapping):
        raise InputError(Reason(ReasonCode.ESCALATION_INVALID, given=quote(escalate)))
    for after, to in (escalate or {}).items():
        seconds = parse_duration(after, "escalate")
        if timeout is not None and seconds >= timeout:
            raise InputError(Reason(ReasonCode.ESCALATION_TOO_LATE, after=seconds, limit=timeout))
        steps.append(PlannedStep(after=int(seconds * MICROS), to=Audience.read(to, "escalate")))
    if timeout is not None:
        limit = int(timeout * MICROS)
        steps.append(PlannedStep(after=limit - limit // _REMINDER_SHARE))
    return tuple(sorted(steps, key=lambda step: step.after))


def encode_plan(plan: Plan) -> str | None:
    """Return the steps as they are stored, None if there are none."""
    return msgspec.json.encode(plan).decode() if plan else None


def decode_plan(text: str | None) -> Plan:
    """Return stored steps."""
    return () if text is None else msgspec.json.decode(text, type=Plan)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question as workflow code asks it. `schema`: the JSON Schema of the answer. `shown`: JSON to show with it.

    `apart_from`: names of callers who may not answer. `notify`: a channel that gets its notifications, too.
    """

    text: str
    schema: str
    audience: Audience
    shown: str | None = None
    apart_from: tuple[str, ...] = ()
    plan: Plan = ()
    notify: str | None = None


def task_id(run_id: str, index: int) -> str:
    """Return the id of the task of a journal entry. The index of an entry is never used again, so it is unique."""
    return f"tk-{run_id}-{index}"


def read_options(options: Any) -> dict[str, Any]:
    """Return the JSON Schema of an answer that is one of these texts."""
    texts = [options] if isinstance(options, str) else list(options) if isinstance(options, Iterable) else [options]
    valid = [text for text in texts if isinstance(text, str) and 0 < len(text) <= _MAX_OPTION and text.isprintable()]
    if not texts or len(valid) < len(texts) or len(set(valid)) < len(valid) or len(valid) > _MAX_OPTIONS:
        given, most = quote(options), _MAX_OPTIONS
        raise InputError(Reason(ReasonCode.OPTIONS_INVALID, given=given, most=most, longest=_MAX_OPTION))
    return {"enum": texts}


def encode_answer(value: str, by: str, at: int, note: str | None) -> str:
    """Return an answer as the journal records it. `value` is JSON text."""
    return f'{json.dumps({"by": by, "at": at, "note": note})[:-1]}, "value": {value}}}'
