"""Telling: facts become notifications, the first of a lane at once, the others together, once in a while.

    deliver     facts that a relay brings are kept in their lane
    run_once    every lane whose turn it is: what is told, and a message for each who hears it, in one commit

Whoever dies in between leaves facts in a lane that is due, for any other node. A repeat of either changes
nothing: facts are known by the id of their message, a telling by the version of its lane.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from redrive.clock import MICROS
from redrive.core.addresses import run_page
from redrive.core.keys import encode
from redrive.core.notice import NOTICES, SAID, Facts, lane_of, notification_id, read_notice, written
from redrive.core.notify import CHANNEL, KINDS, NoticeEvent, NotifyRule, Target
from redrive.core.saying import content_text
from redrive.core.transition import MessageWrite
from redrive.notify.channels import Channels
from redrive.sinks import Message
from redrive.store.encryption.keyring import Unreadable
from redrive.store.notifications import LaneCase, NewNotice, NewNotification, Telling
from redrive.store.port import Store

__all__ = ["TOPICS", "Teller"]

log = logging.getLogger("redrive.notify")

TOPICS = (NOTICES, SAID)
"""What the teller wants to hear."""

_LANES = 50
_NEWEST = 20  # facts of a lane that are asked whom to tell: rules may have changed in between


class Teller:
    """The sink of facts, and the chore that tells them. `told` hears that there are messages."""

    def __init__(
        self, store: Store, channels: Channels, every: float, told: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._channels = channels
        self._every = int(every * MICROS)
        self._told = told

    # -- as a sink -----------------------------------------------------------------------------------

    async def deliver(self, message: Message) -> None:
        """Keep what a message says, and tell it if its turn has come."""
        new = _notice(message) if message.topic == NOTICES else self._wanted(message)
        if new is not None:
            await self._store.notices.add([new])
            await self.run_once()

    async def close(self) -> None:
        """It holds nothing."""

    def _wanted(self, message: Message) -> NewNotice | None:
        """What workflow code wants said on a channel. One that is not registered is for somebody else."""
        given = message.payload
        channel = given.get("channel") if isinstance(given, dict) else None
        if not isinstance(channel, str) or not self._channels.knows(channel):
            log.info("message %s is for channel %r, which is not registered here", message.id, channel)
            return None
        facts = Facts(
            event=NoticeEvent.MESSAGE.value,
            tenant=message.tenant,
            run_id=message.run_id,
            correlation_id=message.correlation_id,
            at=message.committed_at,
            path=run_page(message.run_id),
            subject=str(given.get("subject") or f"a message of run {message.run_id}"),
            text=str(given.get("text", "")),
        )
        rule = NotifyRule(on=(), targets=(Target(kind=CHANNEL, to=channel),), app=True)
        lane = encode(facts.event, message.id)  # whatever is said is said by itself
        return NewNotice(public_id=message.id, tenant=message.tenant, lane=lane, notice=written(facts, rule))

    # -- as a chore ----------------------------------------------------------------------------------

    async def run_once(self) -> int:
        """Tell every lane whose turn it is; returns how many there were."""
        told = 0
        while True:
            cases = await self._store.notices.due(limit=_LANES, newest=_NEWEST)
            before = told
            for case in cases:
                telling = self._telling(case)
                if telling is not None and await self._store.notices.tell(telling):
                    told += 1
            if len(cases) < _LANES or told == before:
                break
        if told:
            self._told()
        return told

    def _telling(self, case: LaneCase) -> Telling | None:
        newest = case.notices[0].notice
        if isinstance(newest, Unreadable):
            log.error("a notification of tenant %r cannot be read: %s", case.tenant, newest.why)
            return None
        facts, _, _ = read_notice(newest)
        read = [read_notice(each.notice) for each in case.notices if not isinstance(each.notice, Unreadable)]
        targets = self._channels.resolved([target for _, wanted, _ in read for target in wanted])
        id = notification_id(case.tenant, case.lane, case.last)
        content = content_text(facts, case.count, case.first_at)
        return Telling(
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
            messages=tuple(
                _message(id, number, target, facts, content) for number, target in enumerate(targets)
            ),
        )


def _notice(message: Message) -> NewNotice:
    facts, _, _ = read_notice(message.text)
    return NewNotice(public_id=message.id, tenant=message.tenant, lane=lane_of(facts), notice=message.text)


def _message(id: str, number: int, target: Target, facts: Facts, content: str) -> MessageWrite:
    """What brings a notification to one place. A channel nobody knows goes where that is said."""
    kind = target.kind if target.kind in KINDS else "webhook"
    payload = json.dumps({"id": id, "target": {**target.to_json(), "kind": kind}})
    return MessageWrite(
        public_id=f"{id}-{number}",
        topic=f"{SAID}.{kind}",
        payload=f'{payload[:-1]}, "content": {content}}}',
        run_id=facts.run_id,
        correlation_id=facts.correlation_id,
    )
