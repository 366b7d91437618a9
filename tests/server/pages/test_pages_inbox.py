"""The inbox: what was told, where it leads, and what is read."""

from __future__ import annotations

import asyncio

from pages_kit import Looked, of_role, once
from server_kit import World
from server_telling import tell


def test_the_inbox_shows_what_was_told_and_is_read_by_each_for_themselves(site: World) -> None:
    with of_role(site, "VIEWER") as client:
        assert "Nobody was told anything yet" in client.get("/inbox").text
        for tenant, cause in (("acme", "one"), ("acme", "two"), ("globex", "three")):
            asyncio.run(tell(site.url, tenant, cause))
        page = client.get("/inbox").text
        looked = Looked(page)
        assert looked.inline == []
        assert "ValueError: two api_key=••••••" in looked.text
        assert "three" not in looked.text
        assert {"/app/admin/dlq/dl-r-one", "/app/admin/dlq/dl-r-two"} <= set(looked.links)
        assert page.count(">new<") == 2
        read = client.post("/inbox/read", data={"once": once(page), "ids": "ntf-acme-two ntf-globex-three"})
        assert read.status_code == 303
        again = client.get("/inbox?unread=1").text
        assert "dl-r-one" in again
        assert "dl-r-two" not in again
    with of_role(site, "STAFF") as other:
        assert other.get("/inbox").text.count(">new<") == 2
    with of_role(site, "VIEWER", tenant="globex", headers={"Accept-Language": "pl"}) as polish:
        shown = Looked(polish.get("/inbox").text).text
        assert "Nieudana sprawa" in shown
        assert "nowe" in shown
