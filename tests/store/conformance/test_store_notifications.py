"""Conformance tests of notifications: notices are added without locks, reported once, and read per user."""

from __future__ import annotations

from typing import Any

import pytest
from outbox_kit import say, sink
from store_kit import DAY, HOUR, SECOND, Kit, noted

from redrive.errors import NotAllowed
from redrive.record_fields import replace
from redrive.store.chores import PurgeRequest
from redrive.store.filters import AuditFilter, OutboxFilter
from redrive.store.notifications import (
    DueLane,
    LaneNotification,
    NewNotice,
    NewNotification,
    NotificationFilter,
    RuleRow,
)

ALL = NotificationFilter()
SET, DELETED = noted("notify.set"), noted("notify.deleted")


def fact(name: str, lane: str = "a", tenant: str = "default") -> NewNotice:
    return NewNotice(public_id=name, tenant=tenant, lane=lane, notice=f'"{name}"')


def telling(case: DueLane, name: str = "n", **more: Any) -> LaneNotification:
    new = NewNotification(
        public_id=f"{name}-{case.tenant}-{case.lane}-{case.last}",
        tenant=case.tenant,
        event="dead_letter",
        workflow=more.pop("workflow", "w"),
        count=case.count,
        in_app=more.pop("in_app", True),
        content='"told"',
    )
    return LaneNotification(case=case, every=HOUR, notification=new, **more)


async def due(kit: Kit) -> list[DueLane]:
    return await kit.store.notifications.due(limit=10, newest=2)


async def tell_all(kit: Kit, **more: Any) -> int:
    return sum([await kit.store.notifications.send(telling(case, **more)) for case in await due(kit)])


async def inbox(kit: Kit, reader: str = "ann", **where: Any) -> list[tuple[str, bool]]:
    page = await kit.store.notifications.inbox(NotificationFilter(**where), reader, limit=50, cursor=None)
    return [(row.workflow, row.read_at is not None) for row in page.items]


async def test_a_lane_is_reported_with_its_notices_and_then_rests(kit: Kit) -> None:
    notices = kit.store.notifications
    await notices.add([fact("1"), fact("2"), fact("3"), fact("x", lane="b")])
    cases = {case.lane: case for case in await due(kit)}
    a = cases["a"]
    assert (a.count, [each.notice for each in a.notices], a.first_at) == (3, ['"3"', '"2"'], kit.clock.now())
    assert cases["b"].count == 1
    assert await notices.send(telling(a))
    await notices.add([fact("4"), fact("1")])
    assert [case.lane for case in await due(kit)] == ["b"], "a repeated notice is ignored, and the lane rests"
    kit.clock.move(HOUR)
    assert {case.lane: case.count for case in await due(kit)} == {"a": 1, "b": 1}


async def test_one_of_two_concurrent_reports_wins(kit: Kit) -> None:
    other = await kit.beside()
    await kit.store.notifications.add([fact("1")])
    (mine,), (theirs,) = await due(kit), await other.notifications.due(limit=10, newest=2)
    assert await kit.store.notifications.send(telling(mine))
    assert not await other.notifications.send(telling(theirs))
    assert await inbox(kit) == [("w", False)]


async def test_a_report_is_refused_if_its_notices_were_reported_meanwhile(kit: Kit) -> None:
    await kit.store.notifications.add([fact("1")])
    (case,) = await due(kit)
    await kit.by_hand("UPDATE redrive.notices SET sent_at = 1")
    assert not await kit.store.notifications.send(telling(case)), "another node reported it"
    assert await inbox(kit) == []
    await kit.by_hand("UPDATE redrive.notices SET sent_at = NULL")
    assert await tell_all(kit) == 1, "the refused report left nothing behind"


async def test_messages_are_published_in_the_commit_of_the_report(kit: Kit) -> None:
    await kit.store.put_sinks([sink("mail", "redrive.notify.email")])
    await kit.store.notifications.add([fact("1")])
    (case,) = await due(kit)
    sent = telling(case, messages=(say("m1", "redrive.notify.email"), say("m2", "redrive.notify.slack")))
    assert await kit.store.notifications.send(sent)
    assert not await kit.store.notifications.send(sent), "a repeat after a lost reply is refused"
    page = await kit.store.messages(OutboxFilter(), limit=10, cursor=None)
    assert {row.public_id: len(row.deliveries) for row in page.items} == {"m1": 1, "m2": 0}


async def test_each_user_has_a_separate_read_mark(kit: Kit) -> None:
    notices = kit.store.notifications
    for name in ("v", "w"):
        await notices.add([fact(name, lane=name)])
        await tell_all(kit, workflow=name)
    await notices.add([fact("hidden", lane="h")])
    await tell_all(kit, in_app=False)
    assert await inbox(kit) == [("w", False), ("v", False)]
    (newest, _) = (await notices.inbox(ALL, "ann", limit=2, cursor=None)).items
    assert await notices.mark_read(NotificationFilter(ids=(newest.public_id,)), "ann") == 1
    assert await notices.mark_read(NotificationFilter(ids=(newest.public_id,)), "ann") == 0
    assert await inbox(kit) == [("w", True), ("v", False)]
    assert await inbox(kit, unread=True) == [("v", False)]
    assert (await notices.unread(ALL, "ann"), await notices.unread(ALL, "bob")) == (1, 2)
    assert await notices.mark_read(ALL, "bob") == 2
    assert await inbox(kit, reader="bob", workflows=("w",)) == [("w", True)]
    page = await notices.inbox(ALL, "ann", limit=1, cursor=None)
    following = await notices.inbox(ALL, "ann", limit=1, cursor=page.next)
    assert [row.workflow for row in (*page.items, *following.items)] == ["w", "v"]


async def test_each_tenant_and_workflow_has_one_rule(kit: Kit) -> None:
    rule = RuleRow(tenant="", workflow="w", rule='{"on":[]}', updated_at=0, updated_by="ann")
    notices = kit.store.notifications
    await notices.set_rule(rule, SET)
    kit.clock.move(SECOND)
    await notices.set_rule(replace(rule, rule='{"on":[1]}'), noted("notify.set"))
    await notices.set_rule(replace(rule, tenant="acme"), noted("notify.set"))
    stored = [(row.tenant, row.rule, row.updated_at) for row in await notices.rules()]
    assert stored == [("", '{"on":[1]}', kit.clock.now()), ("acme", '{"on":[]}', kit.clock.now())]
    assert await notices.delete_rule("", "w", DELETED)
    assert not await notices.delete_rule("", "w", noted("notify.deleted"))
    lines = (await kit.store.audit(AuditFilter(), limit=9, cursor=None)).items
    assert [line.event for line in lines] == ["notify.deleted", *["notify.set"] * 3]


async def test_a_tenants_user_has_its_own_inbox_and_rules_and_creates_no_notification(kit: Kit) -> None:
    for tenant in ("acme", "umbrella"):
        await kit.store.notifications.add([fact(f"f-{tenant}", tenant=tenant)])
        await kit.store.notifications.set_rule(
            RuleRow(tenant=tenant, workflow="w", rule="{}", updated_at=0, updated_by="ann"), noted("notify.set")
        )
    await kit.store.notifications.set_rule(
        RuleRow(tenant="", workflow="", rule="{}", updated_at=0, updated_by="ann"), noted("notify.set")
    )
    assert await tell_all(kit) == 2
    acme, some = kit.store.tenant_view("acme").notifications, kit.store.tenant_view("acme", ["v"]).notifications
    assert [row.tenant for row in (await acme.inbox(ALL, "ann", limit=9, cursor=None)).items] == ["acme"]
    theirs = NotificationFilter(tenant="umbrella")
    assert (await acme.inbox(theirs, "ann", limit=9, cursor=None)).items == []
    assert (await acme.unread(ALL, "ann"), await acme.mark_read(ALL, "ann")) == (1, 1)
    assert await kit.store.notifications.unread(theirs, "ann") == 1
    assert [row.tenant for row in await acme.rules()] == ["", "acme"]
    assert (await some.unread(ALL, "bob"), await some.rules()) == (0, [])
    foreign = RuleRow(tenant="umbrella", workflow="w", rule="{}", updated_at=0, updated_by="ann")
    with pytest.raises(NotAllowed):
        await acme.set_rule(foreign, noted("notify.set"))
    own = replace(foreign, tenant="acme")
    with pytest.raises(NotAllowed):
        await some.set_rule(own, noted("notify.set", tenant="acme"))
    await acme.set_rule(own, noted("notify.set", tenant="acme"))
    assert await acme.delete_rule("acme", "w", noted("notify.deleted", tenant="acme"))
    for refused in (acme.add([]), acme.due(limit=1, newest=1)):
        with pytest.raises(NotAllowed):
            await refused


async def test_old_reported_notices_are_purged(kit: Kit) -> None:
    notices = kit.store.notifications
    await notices.add([fact("old")])
    await tell_all(kit)
    await notices.mark_read(ALL, "ann")
    kit.clock.move(2 * DAY)
    await notices.add([fact("waits", lane="b"), fact("new", lane="c")])
    await kit.by_hand("DELETE FROM redrive.notice_lanes WHERE lane = 'c'")
    everything = 100 * DAY
    kept = PurgeRequest(
        runs=everything, letters=30 * DAY, messages=DAY, workers=everything, audit=everything, keep=None, limit=100
    )
    assert await kit.store.purge(kept) == 2, "the reported notice and its lane"
    assert await inbox(kit) == [("w", True)]
    assert sorted(case.lane for case in await due(kit)) == ["b", "c"], "a purged lane is created again"
    assert await kit.store.purge(replace(kept, letters=DAY)) == 1
    assert await inbox(kit) == []
