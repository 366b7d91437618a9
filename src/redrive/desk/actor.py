"""The actor of a decision: the user who makes it, the reason that the user gives, and the line of the audit log."""

from __future__ import annotations

import unicodedata
from typing import Any, TypedDict

import msgspec

from redrive.clock import Clock
from redrive.core.audit import ENGINE_ACTOR, AuditEvent
from redrive.core.transitions import AuditWrite
from redrive.desk.validation import require_long_text, require_text
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode

UNKNOWN_ACTOR = "unknown"
"""The actor of a call that names none."""


def require_actor(by: Any) -> str:
    """Return the name of a user. The name of the engine is reserved."""
    if isinstance(by, str) and unicodedata.normalize("NFKC", by).strip().casefold() == ENGINE_ACTOR:
        raise InputError(Reason(ReasonCode.ENGINE_NAME_TAKEN, name=ENGINE_ACTOR))
    return require_text("by", by)


def check_reason(reason: Any) -> str | None:
    return None if reason is None else require_long_text("reason", reason)


class Acting(TypedDict, total=False):
    """Keywords of every call that decides something: the user who does it, and why."""

    by: str
    reason: str | None


class Actor(msgspec.Struct, frozen=True, gc=False):
    """The user who does something, and the reason that the user gave."""

    by: str = UNKNOWN_ACTOR
    reason: str | None = None

    def __post_init__(self) -> None:
        require_actor(self.by)
        check_reason(self.reason)

    def make_audit(self, clock: Clock, event: AuditEvent, tenant: str, subject: str, **more: Any) -> AuditWrite:
        """Return the line of the audit log about what the actor did."""
        more |= {"by": self.by, "reason": self.reason, "token": clock.new_id()}
        return AuditWrite(event=event.value, tenant=tenant, subject=subject, **more)
