"""A message as those see it who receive it, and as a CloudEvent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from redrive.core.quick import quick
from redrive.duration import moment
from redrive.errors import ConfigurationError
from redrive.store.encryption.keyring import Unreadable
from redrive.store.outbox_records import MessageRow

__all__ = ["Message", "cloud_event", "received"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What was published. It may arrive more than once, always with the same `id`.

    `text` is the payload as JSON, `run_id` the run that published it, `committed_at` its time in microseconds
    since 1970, `traceparent` the trace it belongs to, if there is one.
    """

    id: str
    topic: str
    text: str
    key: str | None
    tenant: str
    committed_at: int
    run_id: str
    correlation_id: str
    traceparent: str | None = None

    @property
    def time(self) -> datetime:
        """When it was committed."""
        return moment(self.committed_at)

    @property
    def payload(self) -> Any:
        """What was published, as plain JSON."""
        return json.loads(self.text)


_Message = quick(Message)


def received(row: MessageRow) -> Message:
    """A message from its row. Raises ConfigurationError if it is sealed with a key that is not here."""
    if isinstance(row.payload, Unreadable):
        raise ConfigurationError(f"the message cannot be read: {row.payload.why}")
    return _Message(
        id=row.public_id,
        topic=row.topic,
        text=row.payload,
        key=row.key,
        tenant=row.tenant,
        committed_at=row.created_at,
        run_id=row.run_id,
        correlation_id=row.correlation_id,
        traceparent=row.trace,
    )


def cloud_event(message: Message) -> str:
    """The message as a CloudEvent 1.0 in JSON. Its `source` and `id` together are unique."""
    head = {
        "specversion": "1.0",
        "id": message.id,
        "source": f"urn:redrive:{quote(message.tenant, safe='')}",
        "type": message.topic,
        "subject": message.run_id,
        "time": message.time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "correlationid": message.correlation_id,
    }
    if message.key is not None:
        head["partitionkey"] = message.key
    if message.traceparent is not None:
        head["traceparent"] = message.traceparent
    return f'{json.dumps(head)[:-1]}, "data": {message.text}}}'
