"""The overview page: current problems, and links to their details."""

from __future__ import annotations

import re

import pytest
from pages_kit import Looked, of_role
from server_kit import World


def test_the_overview_shows_open_failures_and_the_missing_worker(site: World) -> None:
    open_letters = len(site.client("acme", "VIEWER").get("/workflow-dlq?status=OPEN").json()["items"])
    assert open_letters > 0
    with of_role(site, "VIEWER") as client:
        page = client.get("/").text
        said = Looked(page).text
        assert re.search(rf"\b{open_letters} failures? needs? attention\.", said)
        assert "2 circuits are open." in said
        assert "No worker is running." in said
        assert re.search(r"[1-9]\d* started · \d+\.\d % failed", said)
        assert 'href="/app/admin/dlq/causes/' in page
        assert re.search(
            r'href="/app/runs\?since=[^"]+until=[^"]+"[^>]*><title[^>]*>[^<]* UTC: \d+ runs?, \d+ failed<', page
        )
        assert "No run is overdue." in said, "a healthy area takes one line"
        chosen = re.findall(r'class="choice" href="([^"]+)"( aria-current="true")?', client.get("/?range=7d").text)
        one = [("/app/?range=1h", ""), ("/app/?range=24h", ""), ("/app/?range=7d", ' aria-current="true"')]
        assert chosen == one * 2, "the charts of failures and of runs show the same time"
    with of_role(site, "OWNER", headers={"Accept-Language": "pl"}) as owner:
        assert re.search(rf"{2 * open_letters} nieudan\w+ spraw\w* wymaga", Looked(owner.get("/?tenant=*").text).text)
        assert site.client("acme", "OWNER").post("/tenants", json={"name": "newcomer"}).status_code == 201
        assert "redrive demo" in Looked(owner.get("/?tenant=newcomer").text).text


def test_a_chart_of_very_many_runs_shows_the_time_that_it_covers(site: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.desk.overview._MAX_CHARTED_RUNS", 2)  # the server is a thread of this process
    with of_role(site, "VIEWER") as client:
        said = Looked(client.get("/").text).text
        assert re.search(r"more than 2 started · .* Only the newest 2 runs are counted, since \d", said)
