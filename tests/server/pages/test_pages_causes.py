"""Pages of causes: the most frequent causes, one cause with its history, and muted causes."""

from __future__ import annotations

import re
import sqlite3
from datetime import UTC, datetime, timedelta
from html import unescape

from pages_kit import Looked, of_role, once
from server_kit import World

from redrive.server.pages.charts import CHART_RANGES, plot_chart, plot_failures, plot_sparkline

NOON = datetime(2026, 3, 2, 12, 30, tzinfo=UTC)


def _cause(world: World) -> str:
    return f"/admin/dlq/causes/{world.ids['acme']['fingerprint']}"


def test_a_cause_shows_its_error_its_failures_over_time_and_its_versions(site: World) -> None:
    with of_role(site, "VIEWER") as client:
        page = client.get(_cause(site) + "?range=1h").text
        said = Looked(page).text
        assert "1 failure needs attention." in said
        assert "Code versions" in said
        assert "Unassigned" in said
        assert not re.search(r"Retry \d|Mute|Assign…|Add comment", said), "a viewer changes nothing"
        column = re.search(r'<a href="/app([^"]+)" tabindex="-1"><title[^>]*>([^<]+)<', page)
        assert column
        assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:00 UTC: 1 failure", column[2])
        found = client.get(unescape(column[1])).text
        assert site.ids["acme"]["letter"] in found, "a column of the chart links to its failures"
        assert page.count("<time datetime=") >= 5
        assert client.get(_cause(site).replace("causes/", "causes/f")).status_code == 404
    with of_role(site, "VIEWER", tenant="globex") as stranger:
        assert stranger.get(_cause(site)).status_code == 404


def test_a_cause_is_assigned_commented_on_and_muted_until_a_date(site: World) -> None:
    with of_role(site, "ADMIN") as client:

        def send(verb: str, **fields: str) -> str:
            form = {"once": once(client.get(_cause(site)).text) + verb, **fields}
            answer = client.post(f"{_cause(site)}/{verb}", data=form)
            assert answer.status_code == 303, answer.text
            return Looked(client.get(answer.headers["location"].removeprefix("/app")).text).text

        assert "Assignee kim" in send("assign", to="kim")
        assert "asked the bank" in send("comment", text="asked the bank")
        before = Looked(client.get("/").text).text
        for typed, words in (("2020-01-01", "Until must be in the future"), ("soon", "Enter a date")):
            form = {"once": f"wrong-{typed}", "how": "date", "until": typed, "reason": "known to all"}
            refused = client.post(f"{_cause(site)}/mute", data=form)
            assert (refused.status_code, words in refused.text) == (422, True)
            assert f'value="{typed}" aria-invalid="true"' in refused.text
            assert 'value="known to all"' in refused.text
        day = f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%d}"
        assert f"Muted until {day}" in send("mute", how="date", until=day)
        muted = Looked(client.get("/").text).text
        needing = [int(re.search(r"(\d+) failures? needs? attention", text)[1]) for text in (before, muted)]  # type: ignore[index]
        assert needing[1] == needing[0] - 1
        assert "1 cause is muted." in muted
        link = f"/app{_cause(site)}"
        assert link not in client.get("/admin/dlq").text
        assert link in client.get("/admin/dlq?muted=yes").text
        assert "No longer muted." in send("unmute")
        assert link in client.get("/admin/dlq").text
    with of_role(site, "VIEWER") as viewer:
        for verb in ("assign", "comment", "mute", "unmute"):
            assert viewer.post(f"{_cause(site)}/{verb}", data={"once": verb}).status_code == 403


def test_causes_are_sorted_by_the_query_and_a_truncated_list_is_marked(site: World) -> None:
    with sqlite3.connect(site.url.removeprefix("sqlite:///")) as store:
        now = int(datetime.now(UTC).timestamp() * 1_000_000)
        rows = [
            ("globex", f"cause{n:02}", "fulfil", "s" * 100, n, n, now, now - n, 1000 - n, None) for n in range(1, 41)
        ]
        store.executemany("INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    with of_role(site, "VIEWER", tenant="globex") as client:

        def listed(path: str) -> tuple[list[str], str]:
            page = client.get(path).text
            return re.findall(r'<tr data-key="cause(\d\d)', page), page

        largest, page = listed("/admin/dlq")
        assert largest == [f"{n:02}" for n in range(40, 15, -1)]
        assert re.search(r'aria-sort="descending"><a href="[^"]*sort=count"', page)
        more = re.search(r'rel="next" href="/app([^"]+)">(\d+) more causes', page)
        assert more
        rest, page = listed(unescape(more[1]))
        assert len(rest) == 15
        total = 40 + int(more[2]) - 15
        assert f"{total} causes" in Looked(page).text
        previous = re.search(r'rel="prev" href="/app([^"]+)"', page)
        assert previous
        assert listed(unescape(previous[1]))[0] == largest
        assert listed("/admin/dlq?sort=newest")[0][:3] == ["01", "02", "03"]
        first = client.get("/").text
        assert f"{total - 8} more causes" in Looked(first).text
        assert "40 have one cause:" in Looked(first).text


def test_a_chart_has_a_readable_scale_and_time_labels() -> None:
    week = plot_failures([1] * 168, CHART_RANGES["7d"], NOON)
    assert ([each.upper for each in week.columns], week.highest, week.by_day) == ([6] * 28, 10, True)
    assert week.columns[-1].end == datetime(2026, 3, 2, 13, tzinfo=UTC)
    assert week.times[0] == datetime(2026, 2, 23, 13, tzinfo=UTC)
    day = plot_failures([0] * 23 + [41], CHART_RANGES["24h"], NOON)
    assert (day.highest, day.columns[-1].begin, day.total) == (100, datetime(2026, 3, 2, 12, tzinfo=UTC), 41)
    hour = plot_chart([1000, 0], [1, 0], NOON, timedelta(minutes=1))
    small = hour.columns[0]
    assert (hour.highest, small.upper_height) == (2000, 2.0), "a single failure among a thousand is visible"
    assert small.upper_y + small.upper_height == small.y
    low, high = (plot_sparkline([1, size], 100).split()[1] for size in (10, 100))
    assert (low, high) == ("120.0,23.6", "120.0,2.0"), "all charts of one list share a scale"
