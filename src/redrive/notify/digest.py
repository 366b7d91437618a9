"""Digests of notifications: the first fact of a lane is sent at once, later ones together.

    deliver     stores the facts that a relay delivers in their lane
    run_once    for every due lane: writes the notification and one message per recipient, in one commit

A process that dies in between leaves facts in a due lane, which any other process picks up. Repeating either
call changes nothing: facts are identified by the id of their message, a digest by the version of its lane.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence

from redrive.clock import MICROS, Clock
from redrive.core import engine_messages
from redrive.core.engine_messages import NOTIFICATION_TOPIC, USER_MESSAGE_TOPIC, NotificationFacts
from redrive.core.keys_and_ids import encode_key
from redrive.core.notification_rules import CHANNEL_KIND, TARGET_KINDS, NotificationEvent, NotifyRule, NotifyTarget
from redrive.core.notification_text import NotificationRenderer, encode_content
from redrive.core.outbox import parse_patterns
from redrive.core.transitions import MessageWrite
from redrive.errors import ConfigurationError
from redrive.notify.channels import (
    Channels,
    DeliveryReader,
    EmailSender,
    HttpSender,
    RequestFormat,
    format_slack,
    format_teams,
    format_webhook,
)
from redrive.settings import AllowedHost, Settings, run_page_path
from redrive.sinks import Message, Sink, SinkDefinition
from redrive.store.encryption.keyring import Unreadable
from redrive.store.notifications import DueLane, LaneNotification, NewNotice, NewNotification
from redrive.store.port import Store

log = logging.getLogger("redrive.notify")

_TOPICS = (NOTIFICATION_TOPIC, USER_MESSAGE_TOPIC)

_LANE_BATCH = 50
_NEWEST_FACTS = 20  # facts of a lane whose recipients are used: rules may have changed in between
_DIGEST_SINK = "redrive.notices"

SENDER_SINKS = frozenset(f"redrive.{kind}" for kind in TARGET_KINDS)
"""The sinks to which only the digest sends."""

_SENDER_TIMEOUT = 30.0
_SENDER_CONCURRENCY = 4  # receivers are mailboxes and chats, which limit how fast messages may come


CODE_PATIENCE = 60 * MICROS
"""Time for which a process leaves what it lacks the code for to other processes."""


class Digest:
    """The sink of facts, and the chore that sends digests. It calls `on_messages` after writing messages.

    `has_code` says whether workflows are registered here: a server has none, and workers beside it have the channels.
    """

    def __init__(
        self,
        store: Store,
        channels: Channels,
        every: float,
        on_messages: Callable[[], None],
        has_code: Callable[[], bool],
    ) -> None:
        self._store = store
        self._channels = channels
        self._every = int(every * MICROS)
        self._on_messages = on_messages
        self._has_code = has_code

    async def deliver(self, message: Message) -> None:
        """Store the facts of a message, and send them if their lane is due."""
        new: NewNotice | None
        if message.topic == NOTIFICATION_TOPIC:
            facts, targets, _ = engine_messages.decode_facts(message.text)
            lane = engine_messages.notification_lane(facts, targets)
            new = NewNotice(public_id=message.id, tenant=message.tenant, lane=lane, notice=message.text)
        else:
            new = self._make_channel_notice(message)
        if new is not None:
            await self._store.notifications.add([new])
            await self.run_once()

    async def close(self) -> None:
        """Do nothing: a digest has no connection to close."""

    def _make_channel_notice(self, message: Message) -> NewNotice | None:
        """Return the notice that workflow code sent to a channel; None if this app has no such channel."""
        given = message.payload
        channel = given.get("channel") if isinstance(given, dict) else None
        if not isinstance(channel, str) or not self._channels.knows(channel):
            if not self._has_code():
                raise ConfigurationError(
                    f"channel {channel!r:.80} is not registered in this process: a worker that registers it with "
                    "app.channel will send the message"
                )
            log.info("message %s is for channel %r, which is not registered here", message.id, channel)
            return None
        facts = NotificationFacts(
            event=NotificationEvent.MESSAGE.value,
            tenant=message.tenant,
            run_id=message.run_id,
            correlation_id=message.correlation_id,
            at=message.committed_at,
            path=run_page_path(message.run_id),
            subject=str(given.get("subject") or f"a message of run {message.run_id}"),
            text=str(given.get("text", "")),
        )
        rule = NotifyRule(on=(), targets=(NotifyTarget(kind=CHANNEL_KIND, to=channel),), app=True)
        # Each of these messages has its own lane, so that none waits for a digest.
        lane = encode_key(facts.event, message.id)
        return NewNotice(
            public_id=message.id, tenant=message.tenant, lane=lane, notice=engine_messages.encode_facts(facts, rule)
        )

    async def run_once(self) -> int:
        """Send every due lane; return how many there were."""
        sent = 0
        while True:
            cases = await self._store.notifications.due(limit=_LANE_BATCH, newest=_NEWEST_FACTS)
            before = sent
            for case in cases:
                digest = await self._make_digest(case)
                if digest is not None and await self._store.notifications.send(digest):
                    sent += 1
            if len(cases) < _LANE_BATCH or sent == before:
                break
        if sent:
            self._on_messages()
        return sent

    async def _make_digest(self, case: DueLane) -> LaneNotification | None:
        newest = case.notices[0].notice
        if isinstance(newest, Unreadable):
            log.error("a notification of tenant %r cannot be read: %s", case.tenant, newest.why)
            return None
        facts, _, _ = engine_messages.decode_facts(newest)
        read = [
            engine_messages.decode_facts(each.notice)
            for each in case.notices
            if not isinstance(each.notice, Unreadable)
        ]
        if facts.fingerprint and await self._store.is_muted(case.tenant, facts.fingerprint):
            read = []  # the lane is emptied, and no user is notified
        targets = self._channels.resolve([target for _, wanted, _ in read for target in wanted])
        unknown = any(target.kind == CHANNEL_KIND for target in targets)
        if unknown and self._store.now() - case.first_at < CODE_PATIENCE:
            return None  # another process has the channel in its code; if none has, the delivery says so
        id = engine_messages.notification_id(case.tenant, case.lane, case.last)
        # A notice is stored after its event, and of a long lane only the newest notices were read.
        first_at = min(case.first_at, *(each.at for each, _, _ in read))
        content = encode_content(facts, case.count, first_at)
        return LaneNotification(
            case=case,
            every=self._every,
            notification=NewNotification(
                public_id=id,
                tenant=case.tenant,
                event=facts.event,
                workflow=facts.workflow,
                count=case.count,
                in_app=any(app for _, _, app in read),
                content=content,
            ),
            messages=tuple(_make_message(id, number, target, facts, content) for number, target in enumerate(targets)),
        )


def _make_message(id: str, number: int, target: NotifyTarget, facts: NotificationFacts, content: str) -> MessageWrite:
    """Return the message for one destination. The webhook sink gets unknown channels, and reports them."""
    kind = target.kind if target.kind in TARGET_KINDS else "webhook"
    payload = json.dumps({"id": id, "target": {**target.to_json(), "kind": kind}})
    return MessageWrite(
        public_id=f"{id}-{number}",
        topic=f"{USER_MESSAGE_TOPIC}.{kind}",
        payload=f'{payload[:-1]}, "content": {content}}}',
        run_id=facts.run_id,
        correlation_id=facts.correlation_id,
    )


def make_notify_sinks(
    digest: Digest,
    reader: DeliveryReader,
    texts: NotificationRenderer,
    settings: Settings,
    allowed: Sequence[AllowedHost],
    clock: Clock,
) -> list[SinkDefinition]:
    """Return the sink of facts and the sinks that send notifications."""

    def http(format: RequestFormat) -> HttpSender:
        return HttpSender(format, reader, texts, allowed, _SENDER_TIMEOUT)

    senders: dict[str, Sink] = {
        "email": EmailSender(settings.smtp_url, settings.smtp_from, reader, texts, _SENDER_TIMEOUT),
        "slack": http(format_slack),
        "teams": http(format_teams),
        "webhook": http(format_webhook(lambda: clock.now() // MICROS)),
    }
    first = SinkDefinition(name=_DIGEST_SINK, kind="notify", topics=parse_patterns(_TOPICS), sink=digest)
    others = [
        SinkDefinition(
            name=f"redrive.{kind}",
            kind="notify",
            topics=parse_patterns(f"{USER_MESSAGE_TOPIC}.{kind}"),
            sink=senders[kind],
            timeout=_SENDER_TIMEOUT,
            concurrency=_SENDER_CONCURRENCY,
        )
        for kind in TARGET_KINDS
    ]
    return [first, *others]
