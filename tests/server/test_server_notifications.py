"""The inbox and the rules about notifications over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from server_inbox import tell
from server_kit import World


def runs(inbox: dict[str, Any]) -> list[str]:
    return [each["notification"]["run_id"] for each in inbox["items"]]


def test_the_inbox_shows_notifications_of_the_tenant_and_their_readers(world: World) -> None:
    client, other = world.client("acme", "VIEWER"), world.client("acme", "STAFF")
    third = world.client("globex", "VIEWER")
    for each in (client, other, third):
        each.post("/notifications/read", json={})  # what the failures of the shared world caused by default
    for tenant, cause in (("acme", "one"), ("acme", "two"), ("globex", "three")):
        asyncio.run(tell(world.url, tenant, cause))
    inbox = client.get("/notifications").json()
    newest_runs = [each["notification"]["run_id"] for each in inbox["items"][:2]]
    assert (newest_runs, inbox["unread"]) == (["r-two", "r-one"], 2)
    newest = inbox["items"][0]
    assert (newest["notification"]["error"], newest["notification"]["letter"]) == (
        "ValueError: two api_key=••••••",
        "dl-r-two",
    )
    assert client.get(f"/notifications/{newest['id']}").json() == newest
    assert client.get("/notifications/ntf-globex-three").status_code == 404
    assert client.post("/notifications/read", json={"ids": ["ntf-globex-three"]}).json() == {"marked": 0}
    assert client.post("/notifications/read", json={"ids": [newest["id"]]}).json() == {"marked": 1}
    unread = client.get("/notifications", params={"unread": True, "limit": 1}).json()
    assert (runs(unread), unread["unread"]) == (["r-one"], 1)
    assert other.get("/notifications").json()["unread"] == 2
    assert other.post("/notifications/read", json={}).json() == {"marked": 2}
    assert third.get("/notifications").json()["unread"] == 1


def test_notification_rules_are_stored_shown_without_secrets_and_removed(world: World) -> None:
    client = world.client("acme", "ADMIN")
    rule = {"email": "ops@example.org", "slack": "https://hooks.slack.com/services/s3cret"}
    stored = client.put("/notification-rules", json={"workflow": "fulfil", "rule": rule}).json()
    assert stored["targets"] == ["email ops@example.org", "slack https://hooks.slack.com/••••••"]
    assert (stored["tenant"], stored["on"]) == ("acme", ["dead_letter"])
    (listed,) = client.get("/notification-rules").json()
    assert listed["targets"] == stored["targets"]
    assert world.client("globex", "ADMIN").get("/notification-rules").json() == []
    inside = client.put("/notification-rules", json={"rule": {"slack": "http://10.0.0.1/"}})
    assert (inside.status_code, inside.json()["code"]) == (422, "invalid_input")
    assert client.delete("/notification-rules", params={"workflow": "fulfil"}).status_code == 204
    assert client.delete("/notification-rules", params={"workflow": "fulfil"}).status_code == 404
