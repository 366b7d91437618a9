"""What a message to one place carries: the notification, and where it goes."""

from __future__ import annotations

import json
from collections.abc import Callable

from redrive.core.notify import Target
from redrive.core.redact import Redactor
from redrive.core.saying import Notification, about
from redrive.frozen import dataclass
from redrive.notify.channels import Channels
from redrive.sinks import Message

__all__ = ["Opener", "Parcel", "opener"]


@dataclass(frozen=True, slots=True)
class Parcel:
    """A notification, and the place that it is brought to. `stored`: a stored rule names its URL."""

    notification: Notification
    target: Target
    stored: bool = False


Opener = Callable[[Message], Parcel]
"""Takes a message apart."""


def opener(redactor: Redactor, base_url: str, channels: Channels) -> Opener:
    """How messages are taken apart here. What is secret is hidden now, whoever wrote it down."""

    def opened(message: Message) -> Parcel:
        data = json.loads(message.text)
        told = about(data["id"], json.dumps(data["content"]), redactor, base_url)
        target = Target.from_json(data["target"])
        return Parcel(told, channels.find(target), stored=target.stored_url)

    return opened
