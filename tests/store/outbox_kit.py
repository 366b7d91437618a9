"""Helpers for tests of the outbox: a store with sinks, runs that publish, and short queries."""

from __future__ import annotations

from typing import Any

from store_kit import SECOND, Kit, entry, writes

from redrive.core.outbox import DeliveryResult, TopicPattern
from redrive.core.states import DeliveryStatus
from redrive.core.transitions import MessageWrite
from redrive.store.claims import ClaimedRun
from redrive.store.filters import OutboxFilter
from redrive.store.outbox import MessageRow, NewSink
from redrive.store.outbox_claims import ClaimedDeliveries, ClaimedDelivery
from redrive.store.port import Store

LEASE = 60 * SECOND
PENDING, DELIVERED = DeliveryStatus.PENDING, DeliveryStatus.DELIVERED
DEAD, SKIPPED = DeliveryStatus.DEAD, DeliveryStatus.SKIPPED


def sink(name: str = "s", *topics: str) -> NewSink:
    return NewSink(name=name, kind="test", topics=tuple(map(TopicPattern.read, topics or ("*",))))


def say(name: str, topic: str = "orders.paid", key: str | None = None, **more: Any) -> MessageWrite:
    """Return a message whose id is its name."""
    given = {"public_id": name, "topic": topic, "key": key, "payload": f'"{name}"'}
    return MessageWrite(**{**given, "run_id": "r1", "correlation_id": "c1", **more})


class Outbox:
    """A store with sinks, and a run that publishes."""

    def __init__(self, kit: Kit, worker: int, run: ClaimedRun) -> None:
        self.kit, self.worker, self.run = kit, worker, run
        self._index = 0

    @classmethod
    async def open(cls, kit: Kit, *sinks: NewSink, **run: Any) -> Outbox:
        await kit.store.put_sinks(sinks or (sink(),))
        return cls(kit, *await kit.held(**run))

    async def publish(self, *messages: MessageWrite, store: Store | None = None) -> bool:
        """Commit messages with a step of the run. Each call is another step."""
        transition = writes(self.run, entry(self._index, done=self._index), messages=messages)
        self._index += 1
        answers = await (store or self.kit.store).apply([transition], worker=self.worker)
        return answers[0].kept

    async def say(self, *names: str, key: str | None = None) -> None:
        """Publish messages with these names, each in a separate commit."""
        for name in names:
            await self.publish(say(name, key=key))

    async def claim(
        self, name: str = "s", limit: int = 100, store: Store | None = None, **more: Any
    ) -> ClaimedDeliveries:
        return await (store or self.kit.store).claim_deliveries(name, limit=limit, lease=LEASE, **more)

    async def claimed(self, name: str = "s", limit: int = 100, store: Store | None = None) -> list[str]:
        """Return the names of the messages that a claim gets."""
        return [each.message.public_id for each in (await self.claim(name, limit, store)).items]

    async def note(self, *marks: DeliveryResult, name: str = "s") -> None:
        await self.kit.store.record_deliveries(name, marks)

    async def deliver(self, name: str = "s", limit: int = 100) -> list[str]:
        """Claim and deliver once; return the names in order."""
        claims = await self.claim(name, limit)
        await self.note(*(mark(each) for each in claims.items), name=name)
        return [each.message.public_id for each in claims.items]

    async def message(self, name: str) -> MessageRow:
        found = await self.kit.store.message(name)
        assert found is not None
        return found

    async def status(self, name: str, at: str = "s") -> DeliveryStatus:
        return {each.sink: each.status for each in (await self.message(name)).deliveries}[at]

    async def listed(self, **where: Any) -> list[str]:
        page = await self.kit.store.messages(OutboxFilter(**where), limit=100, cursor=None)
        return [row.public_id for row in page.items]


def mark(claimed: ClaimedDelivery, status: DeliveryStatus = DELIVERED, **more: Any) -> DeliveryResult:
    given: dict[str, Any] = {
        "message": claimed.message.id,
        "tenant": claimed.message.tenant,
        "fence": claimed.fence,
        "status": status,
        "attempt": claimed.attempt,
        "keyed": claimed.message.key is not None,
    }
    return DeliveryResult(**{**given, **more})
