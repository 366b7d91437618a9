"""The sender of events to runs, with the checks that need no code of the workflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.payload import Signature, signature_of_type
from redrive.core.secret_and_sealed_text import is_sealed, read_sealed_value
from redrive.core.waits_and_events import MAX_UNREAD, MAX_UNREAD_BYTES, check_event_declared, check_event_name
from redrive.desk.actor import UNKNOWN_ACTOR, Actor, require_actor
from redrive.desk.models import Caller, SentEvent
from redrive.desk.validation import PayloadChecker, require_text
from redrive.errors import Conflict, NotFound, TooManyEvents
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.encryption.keyring import Unreadable
from redrive.store.events import NewEvent, SendResult
from redrive.store.port import DeskStore
from redrive.store.runs import RunRow

DeclaredEvents = Mapping[str, Signature] | None
"""The events that a workflow declares, by name; None if it takes any."""


class EventRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An event as a caller of `runs.send` gives it. `audited`: the audit log names the sender."""

    run_id: str
    name: str
    payload: Any
    key: str | None = None
    tenant: str | None = None
    by: str = UNKNOWN_ACTOR
    audited: bool = True


class EventSender:
    """Sends events to runs.

    `here` returns the events that a workflow of this process declares; it raises KeyError for other workflows, whose
    schemas are in the catalogue. `on_sent` gets each event that was stored. `caller` is the credential of a request
    over HTTP, None for this process itself.
    """

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        checker: PayloadChecker,
        here: Callable[[str], DeclaredEvents],
        on_sent: Callable[[SendResult], None],
        caller: Caller | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._checker = checker
        self._here = here
        self._on_sent = on_sent
        self._caller = caller or Caller()

    async def send(self, row: RunRow, request: EventRequest) -> SentEvent:
        """Store an event for a run. The same key with the same event gets the first answer."""
        name, key, by = check_event_name(request.name), request.key, require_actor(request.by)
        if key is not None:
            require_text("key", key)
        text = await self._encode(row, name, request.payload)
        audit = None
        if request.audited:
            after = json.dumps({"event": name, "key": key})
            audit = Actor(by).make_audit(self._clock, AuditEvent.EVENT_SENT, row.tenant, row.public_id, after=after)
        event = NewEvent(
            run_id=row.public_id,
            tenant=row.tenant,
            name=name,
            payload=text,
            by=by,
            most=MAX_UNREAD,
            most_bytes=MAX_UNREAD_BYTES,
            key=key,
            audit=audit,
        )
        result = await self._store.send(event)
        if result is None:
            raise NotFound(Reason(ReasonCode.RUN_NOT_FOUND, id=quote(row.public_id)))
        if result.seq is not None:
            self._on_sent(result)
            return SentEvent(seq=result.seq, run_id=result.run_id, status=result.status)
        return self._repeat(event, result)

    def _repeat(self, event: NewEvent, result: SendResult) -> SentEvent:
        """Return the answer to an event that was not stored: the first one of its key, or the refusal."""
        first = result.first
        if first is None and result.full:
            size = MAX_UNREAD_BYTES // 1024**2
            raise TooManyEvents(Reason(ReasonCode.TOO_MANY_EVENTS, run=result.run_id, most=MAX_UNREAD, size=size))
        if first is None:
            raise Conflict(Reason(ReasonCode.EVENTS_REFUSED, run=result.run_id, status=result.status))
        # An answer that depended on the payload would let a caller guess it.
        if not self._caller.sees_payloads and first.by != event.by:
            raise Conflict(Reason(ReasonCode.EVENT_KEY_OF_OTHER, run=result.run_id))
        if isinstance(first.payload, Unreadable):
            equal = is_sealed(event.payload)  # payloads that the sender encrypted cannot be compared here
        else:
            equal = _sort_keys(first.payload) == _sort_keys(event.payload)
        if first.name != event.name or not equal:
            raise Conflict(Reason(ReasonCode.EVENT_KEY_USED, run=result.run_id))
        return SentEvent(seq=first.seq, run_id=result.run_id, status=result.status)

    async def _encode(self, row: RunRow, name: str, payload: Any) -> str:
        """Return the payload as it is stored. An event that the workflow declares has to fit its type."""
        what = Reason(ReasonCode.EVENT_PAYLOAD, event=name)
        sealed = read_sealed_value(payload)
        try:
            declared = self._here(row.workflow)
        except KeyError:
            items = await self._store.known([row.workflow])
            texts = [item.events for item in items if item.kind == "workflow"]
            schemas = json.loads(texts[0]) if texts and texts[0] else None
            check_event_declared(row.workflow, name, schemas)
            if sealed is not None:
                return self._checker.check_sealed(sealed, what)
            return await self._checker.encode_by_schema(payload, {} if schemas is None else schemas[name], what)
        check_event_declared(row.workflow, name, declared)
        if sealed is not None:
            return self._checker.check_sealed(sealed, what)
        signature = ANY_PAYLOAD if declared is None else declared[name]
        return await self._checker.encode_value(signature, payload, what)


def _sort_keys(text: str) -> str:
    """Return a JSON text with sorted keys. Texts are compared, because Python takes 1, 1.0 and True as equal."""
    return json.dumps(json.loads(text), sort_keys=True)


ANY_PAYLOAD = signature_of_type(Any)
"""Encodes payloads of events that no workflow declares, such as a dataclass of the sender."""
