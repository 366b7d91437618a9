"""Notifications by HTTP: to the incoming webhooks of Slack and Teams, and signed to anybody's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from redrive.allowed import Allowed
from redrive.core.saying import Notification, Said, Saying
from redrive.errors import NonRetryable
from redrive.http.client import HttpClient, HttpRequest
from redrive.http.ssrf import check_url
from redrive.notify.parcel import Opener, Parcel
from redrive.sinks import Message
from redrive.sinks.message import cloud_event
from redrive.sinks.signature import read_secrets, signed_headers

__all__ = ["Posting", "Request", "in_slack", "in_teams", "signed"]

_GONE = 410
_MOST_OF_ANSWER = 16 << 10
_MARKS = re.compile(r"[\\`*_~\[\]<>]")
_FIRST = re.compile(r"^(\s*(?:\d+(?=[.)])|(?=[-+#])))", re.MULTILINE)  # what begins a list, or a heading
_LONGEST = 3_000  # characters of a text in a chat; more than that nobody reads there

Request = Callable[[Parcel, Said, Message], tuple[dict[str, str], bytes]]
"""Headers and body for a notification."""


class Posting:
    """Posts each notification to its URL. 2xx is delivered, 410 is the end of it, the rest is tried again.

    Hosts that the operator lets through are for URLs in the code. A stored rule is written by somebody of a
    tenant: its URLs must be public, and nothing of what is answered there is repeated in an error.
    """

    def __init__(
        self, request: Request, opener: Opener, words: Saying, allowed: Sequence[Allowed], timeout: float
    ) -> None:
        self._request = request
        self._open = opener
        self._words = words
        self._allowed = tuple(allowed)
        self._timeout = timeout
        self._clients: dict[bool, HttpClient] = {}

    async def deliver(self, message: Message) -> None:
        """Send it, and see what the receiver says."""
        parcel = self._open(message)
        allowed = () if parcel.stored else self._allowed
        if parcel.stored not in self._clients:
            self._clients[parcel.stored] = HttpClient(allowed)
        headers, body = self._request(parcel, self._words(parcel.notification), message)
        url = parcel.target.to
        answer = await self._clients[parcel.stored].send(
            HttpRequest(url=url, headers=headers, body=body, timeout=self._timeout, max_body=_MOST_OF_ANSWER)
        )
        origin = check_url(url, allowed).origin
        if answer.status_code == _GONE:
            raise NonRetryable(f"{origin} answered 410 Gone: it wants no more notifications")
        answer.raise_for_status(origin, quoted=not parcel.stored)

    async def close(self) -> None:
        """Let go of the connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.__aexit__(None, None, None)


def in_slack(parcel: Parcel, said: Said, message: Message) -> tuple[dict[str, str], bytes]:
    """A message for Slack. What users wrote is escaped, so that it mentions nobody and links nowhere."""
    lines = [f"*{_escaped(said.subject)}*", _escaped(_short(said.text))]
    if parcel.notification.url:
        lines.append(f"<{parcel.notification.url}|Open in Redrive>")
    return _json({"text": "\n".join(lines)})


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(text: str) -> str:
    """Text that Teams, which reads Markdown in cards, shows as it is: no links, no lists, nothing bold."""
    return _FIRST.sub(r"\1\\", _MARKS.sub(r"\\\g<0>", text))


def in_teams(parcel: Parcel, said: Said, message: Message) -> tuple[dict[str, str], bytes]:
    """An adaptive card for Teams, with a button that opens the page. What users wrote is shown as it is."""
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": _plain(said.subject), "weight": "Bolder", "wrap": True},
            {"type": "TextBlock", "text": _plain(_short(said.text)).replace("\n", "\n\n"), "wrap": True},
        ],
    }
    if parcel.notification.url:
        card["actions"] = [
            {"type": "Action.OpenUrl", "title": "Open in Redrive", "url": parcel.notification.url}
        ]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
    return _json({"type": "message", "attachments": [attachment]})


def signed(now: Callable[[], int]) -> Request:
    """A CloudEvent as the outbox's webhooks send it, signed with the place's own secret."""

    def request(parcel: Parcel, said: Said, message: Message) -> tuple[dict[str, str], bytes]:
        told: Notification = parcel.notification
        data = json.dumps({**told.to_json(), "title": said.subject, "body": said.text})
        body = cloud_event(replace(message, topic=f"redrive.{told.event}", text=data)).encode()
        keys = read_secrets(parcel.target.secret or "", "a webhook of a notification")
        headers = signed_headers(keys, message.id, now(), body)
        return {**headers, "content-type": "application/cloudevents+json"}, body

    return request


def _json(value: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    return {"content-type": "application/json"}, json.dumps(value).encode()


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
