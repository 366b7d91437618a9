"""Helper for the tests of the inbox: stores a notification as the engine does."""

from __future__ import annotations

from server_kit import opened

from redrive.core.engine_messages import NotificationFacts, encode_facts, notification_lane
from redrive.core.notification_rules import NotifyRule
from redrive.core.notification_text import encode_content
from redrive.store.notifications import LaneNotification, NewNotice, NewNotification


async def tell(url: str, tenant: str, cause: str) -> None:
    """Store the notification that the engine sends after a failure."""
    facts = NotificationFacts(
        event="dead_letter",
        tenant=tenant,
        workflow="fulfil",
        run_id=f"r-{cause}",
        error=f"ValueError: {cause} api_key=k3y",
        fingerprint=cause,
        letter=f"dl-r-{cause}",
        path=f"/app/admin/dlq/dl-r-{cause}",
    )
    async with opened(url) as store:
        notice = encode_facts(facts, NotifyRule(on=()))
        name = f"{tenant}-{cause}"
        await store.notifications.add(
            [NewNotice(public_id=name, tenant=tenant, lane=notification_lane(facts), notice=notice)]
        )
        due = await store.notifications.due(limit=9, newest=9)
        (case,) = [each for each in due if (each.tenant, each.lane) == (tenant, notification_lane(facts))]
        new = NewNotification(
            public_id=f"ntf-{name}",
            tenant=tenant,
            event=facts.event,
            workflow=facts.workflow,
            count=1,
            in_app=True,
            content=encode_content(facts, 1, 0),
        )
        assert await store.notifications.send(LaneNotification(case=case, every=10**12, notification=new))
