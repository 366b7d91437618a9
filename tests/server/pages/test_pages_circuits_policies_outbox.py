"""Pages of runs, circuits, policies, workflows, workers, audit, members and health, for each role."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import re
from collections import Counter
from typing import Any

import httpx2
import pytest
from pages_kit import Looked, of_role, once
from server_kit import World, opened

from redrive.core.audit import AuditEvent
from redrive.policy import RetryPolicy
from redrive.server.pages import lists
from redrive.server.pages.audit_notifications import EVENT_KINDS
from redrive.server.pages.texts import CODE_EXPLANATIONS, ROLES
from redrive.store.settings import NewSchedule
from redrive.store.workers import Catalogue, NewWorker

LISTS = (
    *("/runs", "/circuits", "/policies", "/workflows", "/workflows/one?name=fulfil", "/queues", "/schedules"),
    *("/outbox", "/outbox/{message}", "/workers", "/audit", "/health", "/notifications"),
)
POSTS = {
    "/runs/{run}/cancel": "STAFF",
    "/runs/{run}/events": "STAFF",
    "/runs/{run}/again": "ADMIN",
    "/runs/{run}/saga/resume": "ADMIN",
    "/circuits/one": "ADMIN",
    "/circuits/settings": "ADMIN",
    "/policies": "ADMIN",
    "/policies/remove": "ADMIN",
    "/members": "ADMIN",
    "/members/{user}": "ADMIN",
    "/keys": "ADMIN",
    "/keys/{token}/revoke": "ADMIN",
    "/notifications/read": "VIEWER",
    "/notifications/rules": "ADMIN",
    "/notifications/rules/remove": "ADMIN",
    "/schedules/run": "STAFF",
    "/schedules/pause": "ADMIN",
    "/schedules/resume": "ADMIN",
    "/schedules/remove": "ADMIN",
    "/outbox/{message}/retry": "ADMIN",
    "/outbox/{message}/skip": "ADMIN",
    "/workflows/start": "STAFF",
    "/workflows/pause": "OWNER",
    "/workflows/resume": "OWNER",
}
RANKS = ["VIEWER", "STAFF", "ADMIN", "OWNER"]


def sent(client: httpx2.Client, page: str, path: str, **fields: str) -> httpx2.Response:
    """Send a form as a browser does from a page with such forms on it."""
    return client.post(path, data={"once": once(client.get(page).text), **fields})


def repeated_ids(page: str) -> list[str]:
    return [id for id, times in Counter(re.findall(r' id="([^"]+)"', page)).items() if times > 1]


@pytest.mark.parametrize("role", RANKS)
def test_every_page_is_visible_and_offers_only_permitted_actions(site: World, role: str) -> None:
    run = site.ids["acme"]["run"]
    with of_role(site, role) as client:
        for path in (*LISTS, f"/runs/{run}"):
            page = client.get(path.format(**site.ids["acme"]))
            assert page.status_code == 200, path
            looked = Looked(page.text)
            assert looked.inline == []
            assert repeated_ids(page.text) == [], path
            actions = set(re.findall(r'<form method="post" action="/app([^"?#]+)"', page.text))
            needed = {place.format(**site.ids["acme"]): least for place, least in POSTS.items()}
            offered = actions - {"/look", "/logout"}
            assert all(RANKS.index(needed[action]) <= RANKS.index(role) for action in offered), path
        seen = client.get("/members")
        assert seen.status_code == (200 if role in ("ADMIN", "OWNER") else 403)
        assert repeated_ids(seen.text) == []


def test_actions_above_the_role_are_refused(site: World) -> None:
    for place, least in POSTS.items():
        if least == "VIEWER":
            continue
        below = RANKS[RANKS.index(least) - 1]
        with of_role(site, below) as client:
            answer = client.post(place.format(**site.ids["acme"]), data={"once": f"no-{place}-{below}"})
        assert answer.status_code == 403, place
        missing = f"requires the role {ROLES[least]} or higher"
        assert missing in Looked(answer.text).text, "a refusal names the role that is missing"


def test_data_of_another_tenant_is_not_found(site: World) -> None:
    other = site.ids["globex"]
    with of_role(site, "ADMIN") as client:
        assert client.get(f"/runs/{other['run']}").status_code == 404
        assert client.get(f"/runs/{other['run']}/again").status_code == 404
        assert client.post(f"/members/{other['user']}", data={"once": "x1", "role": "VIEWER"}).status_code == 404
        assert client.post(f"/keys/{other['token']}/revoke", data={"once": "x2"}).status_code == 404
        assert other["run"] not in client.get("/runs").text
        assert "globex" not in client.get("/audit?format=json").text


def test_a_list_is_filtered_by_its_url_and_downloaded_as_a_file(site: World) -> None:
    ids = site.ids["acme"]
    with of_role(site, "VIEWER") as client:
        bad = client.get("/runs?kind=person").text
        assert ids["run"] in bad
        assert ids["good"] not in bad
        assert ids["good"] in client.get("/runs?status=SUCCESS").text
        assert ids["run"] not in client.get("/runs?status=SUCCESS").text
        assert client.get("/runs?status=NONSENSE").status_code == 422
        assert ids["run"] in client.get("/runs?correlation_id=c-1&since=24h").text
        assert "No matching runs" in client.get("/runs?workflow=nothing").text
        rows = list(csv.DictReader(io.StringIO(client.get("/runs?kind=good&format=csv").text)))
        assert [row["id"] for row in rows] == [ids["good"]]
        wrong = client.get("/runs?since=yesterday")
        assert wrong.status_code == 422
        assert "Enter a duration" in wrong.text
        for field in ("code", "category"):
            wrong = client.get(f"/admin/dlq?{field}=late")
            assert wrong.status_code == 422
            assert f"{field} must be " in wrong.text


def test_a_long_list_shows_that_only_its_time_can_be_sorted(site: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MAX_SORTED", 1)  # the server is a thread of this process
    with of_role(site, "VIEWER") as client:
        for path in ("/runs", "/admin/dlq?view=items"):
            page = client.get(path).text
            assert "Newest first · other columns can be sorted when at most 1 rows match" in Looked(page).text
            assert "Sort by this column" not in page
        assert "Only lists of up to 1 rows can be sorted by this column" in client.get("/runs?sort=status").text
        assert "other columns can be sorted" not in client.get("/runs?workflow=nothing").text


def test_a_downloaded_file_contains_no_formula(site: World) -> None:
    with of_role(site, "ADMIN") as client:
        name = "=cmd|' /C calc'!A0"
        assert sent(client, "/policies", "/policies", workflow=name, max_retries="1", anyway=name).status_code == 303
        lines = list(csv.DictReader(io.StringIO(client.get("/audit?event=policy.&format=csv").text)))
        assert lines[0]["subject"].startswith("'=")
        assert sent(client, "/policies", "/policies/remove", workflow=name).status_code == 303


def test_a_policy_is_stored_shown_and_removed_and_an_invalid_one_stays_in_its_form(site: World) -> None:
    with of_role(site, "ADMIN") as client:
        wrong = sent(client, "/policies", "/policies", workflow="fulfil", max_retries="many", jitter="0.2")
        assert wrong.status_code == 422
        assert "Enter a whole number, or -1 for no limit." in wrong.text, "the fault is at its field"
        assert re.findall(r'name="(\w+)"[^>]* aria-invalid="true"', wrong.text) == ["max_retries"]
        several = {"max_retries": "2", "factor": "0", "base_delay": "soon", "delays": "1s, x", "retry_on": "storm"}
        bad = sent(client, "/policies", "/policies", workflow="fulfil", **several)
        assert re.findall(r'name="(\w+)"[^>]* aria-invalid="true"', bad.text) == [
            "base_delay",
            "factor",
            "delays",
            "retry_on",
        ]
        assert "Give a timedelta" not in bad.text
        assert 'value="many"' in wrong.text
        nowhere = sent(client, "/policies", "/policies", max_retries="2")
        both = sent(client, "/policies", "/policies", max_retries="2", workflow="fulfil", default="yes")
        for refused in (nowhere, both):
            assert refused.status_code == 422
            assert "Name the workflow or the step that the policy is for, or choose the default" in refused.text
        assert 'name="default" value="yes" checked' in both.text
        done = sent(client, "/policies", "/policies", workflow="fulfil", max_retries="7", base_delay="2s")
        assert done.status_code == 303
        assert "7 retries" in Looked(client.get("/policies").text).text
        assert 'value="7"' in client.get("/policies?workflow=fulfil").text
        unknown = "no workflow with this name is registered"
        assert unknown not in client.get("/policies").text
        asked = sent(client, "/policies", "/policies", workflow="fullfil", max_retries="9")
        assert (asked.status_code, 'value="9"' in asked.text) == (422, True)
        assert "Did you mean: fulfil?" in Looked(asked.text).text
        assert unknown not in client.get("/policies").text, "nothing is stored before the user confirms it"
        sent(client, "/policies", "/policies", workflow="fullfil", max_retries="9", anyway="fullfil")
        assert unknown in client.get("/policies").text
        sent(client, "/policies", "/policies/remove", workflow="fullfil")
        assert sent(client, "/policies", "/policies/remove", workflow="fulfil").status_code == 303
        assert "7 retries" not in Looked(client.get("/policies").text).text


def policy_form(page: str) -> dict[str, str]:
    """Return the fields of the form for a policy, as a browser would send them."""
    form = page[page.index('<section class="card" id="set"') :]
    fields = {name: html.unescape(text) for name, text in re.findall(r'<input name="(\w+)"[^>]* value="([^"]*)"', form)}
    fields |= dict(re.findall(r'<select name="(\w+)">.*?<option value="(\w+)" selected>', form))
    return fields | dict.fromkeys(re.findall(r'type="checkbox" name="(\w+)" value="yes" checked', form), "yes")


@pytest.mark.parametrize("where", [{"step": "charge"}, {}], ids=["step", "default"])
def test_an_edit_of_one_field_of_a_policy_keeps_all_others(site: World, where: dict[str, str]) -> None:
    first = RetryPolicy.from_json({
        "max_retries": 9, "base_delay": 0.00001, "factor": 1.5, "max_delay": "2h", "jitter": 0.25, "cap": "mean",
        "max_elapsed": "1d", "retry_on": ["shop.errors.Gone"], "never_retry_on": ["unknown", "Gone"],
        "delays": [20, 0.5],
    }).to_json()  # fmt: skip
    edits: dict[str, list[tuple[str, Any]]] = {
        "max_retries": [("-1", -1)], "base_delay": [("3s", 3.0)], "factor": [("3", 3.0)], "max_delay": [("60", 60.0)],
        "jitter": [("0", 0.0)], "cap": [("clip", "clip")], "max_elapsed": [("", None)],
        "delays": [("", None), ("5s, 7", [5.0, 7.0])],
        "retry_on": [("", None), ("[]", []), ("shop.*", ["shop.*"])],
        "never_retry_on": [("", []), ("transient", ["network", "server_error", "dependency_unavailable"])],
    }  # fmt: skip
    assert edits.keys() == first.keys(), "each field is edited"
    assert all(first[name] != value for name, value in RetryPolicy().to_json().items())

    def stored() -> dict[str, Any]:
        rows = api.get("/policies").json()
        scopes = [(row["step"], row["workflow"], row["tenant"]) for row in rows]
        policy: dict[str, Any] = rows[scopes.index((where.get("step"), None, "acme"))]["policy"]
        return policy

    api, address = site.client("acme", "ADMIN"), {**where, **({} if where else {"default": "yes"})}
    with of_role(site, "ADMIN") as client:
        for name, values in edits.items():
            for typed, value in values:
                assert api.put("/policies", json={**where, "policy": first}).status_code == 200
                assert stored() == first
                form = policy_form(client.get("/policies", params=address).text)
                assert form.keys() >= first.keys()
                sent(client, "/policies", "/policies", **{**form, name: typed})
                assert stored() == {**first, name: value}, "the page keeps the other fields"
                assert api.put("/policies", json={**where, "policy": {**first, name: value}}).status_code == 200
                assert stored() == {**first, name: value}, "the API keeps the other fields"
        listed = Looked(client.get("/policies").text).text
        assert "the maximum on average" in listed
        assert "only on shop.errors.Gone" in listed
        assert ("Steps without a policy in the code" in listed) is (not where)
        assert sent(client, "/policies", "/policies/remove", **address).status_code == 303
    assert api.delete("/policies", params=where).status_code == 404


def test_a_circuit_is_opened_configured_and_closed(site: World) -> None:
    with of_role(site, "ADMIN") as client:
        assert client.get("/circuits/one?key=bank").status_code == 404
        form = {"key": "bank", "way": "open", "reason": "it burns"}
        assert client.post("/circuits/one", data={"once": "c1", **form}).status_code == 303
        page = "/circuits/one?key=bank"
        assert "it burns" in client.get(page).text
        wrong = sent(client, page, "/circuits/settings", key="bank", failures="a few")
        assert (wrong.status_code, 'value="a few" placeholder="5" aria-invalid="true"' in wrong.text) == (422, True)
        assert sent(client, page, "/circuits/settings", key="bank", failures="9").status_code == 303
        assert "9 errors" in Looked(client.get(page).text).text
        assert "Set manually: Errors before opening: 9" in Looked(client.get(page).text).text
        assert "Errors before opening: 9" in Looked(client.get("/policies").text).text
        assert sent(client, page, "/circuits/one", key="bank", way="close").status_code == 303
        closed = Looked(client.get(page).text).text
        assert "Calls are allowed." in closed
        assert "0 runs are waiting" not in closed


def test_a_user_is_invited_once_and_a_key_is_shown_once(site: World) -> None:
    with of_role(site, "ADMIN") as client:
        form = {"once": once(client.get("/members").text), "email": "new@acme.example", "role": "VIEWER"}
        invited = client.post("/members", data=form)
        code = re.search(r'<code id="secret">([^<]+)</code>', invited.text)
        assert code is not None
        again = client.post("/members", data=form)
        assert (again.status_code, again.headers["location"]) == (303, "/app/members")
        assert code[1] not in client.get("/members").text
        known = sent(client, "/members", "/members", email="new@acme.example", role="VIEWER")
        assert (known.status_code, "already has an account" in known.text) == (422, True)
        over = sent(client, "/members", "/members", email="boss@acme.example", role="OWNER")
        assert "This needs the role OWNER" in over.text
        made = sent(client, "/members", "/keys", name="till", role="STAFF", lasts="soon")
        assert (made.status_code, 'value="till"' in made.text) == (422, True)
        made = sent(client, "/members", "/keys", name="till", role="STAFF", lasts="1d")
        secret = re.search(r'<code id="secret">([^<]+)</code>', made.text)
        assert secret is not None
        assert secret[1] not in client.get("/members").text
        assert site.bearer(secret[1]).get("/me").json()["role"] == "STAFF"
        page = client.get("/members").text
        (revoke,) = re.findall(r'action="/app(/keys/[^"]+/revoke)"[^>]*>(?:(?!</form>).)*Revoke till', page, re.S)
        assert client.post(revoke, data={"once": "k1"}).status_code == 303
        assert site.bearer(secret[1]).get("/me").status_code == 401


def test_a_stored_rule_notifies_users_who_mark_it_as_read_once(site: World) -> None:
    with of_role(site, "ADMIN") as client:
        page, rules = "/notifications", "/notifications/rules"
        wrong = sent(client, page, rules, workflow="remind", on="dead_letter", email="not an address")
        assert (wrong.status_code, 'value="not an address"' in wrong.text) == (422, True)
        stored = {"workflow": "remind", "on": "dead_letter", "email": "ops@acme.example", "app": "yes"}
        assert sent(client, page, rules, **stored).status_code == 303
        shown = Looked(client.get(page).text).text
        assert "remind : a run failed and needs attention → email ops@acme.example, inbox" in shown
        assert sent(client, page, f"{rules}/remove", workflow="remind").status_code == 303
        assert sent(client, page, f"{rules}/remove", workflow="remind").status_code == 404
        assert client.post("/notifications/read", data={"once": "n1"}).status_code == 303


def test_only_an_owner_pauses_a_workflow_for_all_tenants(site: World) -> None:
    with of_role(site, "OWNER") as client:
        assert sent(client, "/workflows", "/workflows/pause", name="fulfil").status_code == 303
        assert "Paused" in Looked(client.get("/workflows").text).text
        assert "fulfil was paused by" in Looked(client.get("/health").text).text
        assert sent(client, "/workflows", "/workflows/resume", name="fulfil").status_code == 303
        assert client.post("/workflows/pause", data={"once": "w1", "name": "nothing"}).status_code == 404


def test_a_run_is_started_with_a_generated_form_that_keeps_typed_values(site: World) -> None:
    page = "/workflows/one?name=fulfil"
    with of_role(site, "VIEWER") as client:
        told = Looked(client.get(page).text).text
        assert "Starting a run needs the role Staff." in told
        for other in ("/policies", f"/circuits/one?key={site.ids['acme']['key']}"):
            assert "needs the role Administrator." in Looked(client.get(other).text).text
    with of_role(site, "STAFF") as client:
        shown = client.get(page).text
        assert re.search(r'name="f:order" dir="auto" required value=""', shown), "a text without a default is needed"
        assert re.search(r'name="f:amount" dir="auto" value="1"', shown), "a default is filled in"
        form = {"name": "fulfil", "f:order": "B-77", "f:amount": "many", "f:api_key": "", "correlation_id": "c-77"}
        wrong = sent(client, page, "/workflows/start", **form)
        assert (wrong.status_code, 'value="many"' in wrong.text, 'value="c-77"' in wrong.text) == (422, True, True)
        assert re.search(r'name="f:amount" dir="auto" aria-invalid="true"', wrong.text)
        assert '<p class="wrong" id="wrong-2">Enter a whole number.</p>' in wrong.text
        as_json = sent(client, page, "/workflows/start", **{**form, "f:amount": "3", "as": "json"})
        assert "&#34;order&#34;: &#34;B-77&#34;" in as_json.text
        back = sent(
            client,
            page,
            "/workflows/start",
            name="fulfil",
            input='{"order": "B-78", "amount": 4, "api_key": ""}',
            **{"as": "fields"},
        )
        assert (back.status_code, 'value="B-78"' in back.text) == (200, True)
        broken = sent(client, page, "/workflows/start", name="fulfil", input='{"order": ')
        assert (broken.status_code, "{&#34;order&#34;: " in broken.text) == (422, True)
        done = sent(client, page, "/workflows/start", **{**form, "f:amount": "3"})
        assert done.status_code == 303
        run = site.client("acme", "ADMIN").get(f"/runs/{done.headers['location'].rsplit('/', 1)[1]}").json()
        assert (run["workflow"], run["correlation_id"], run["input"]["amount"]) == ("fulfil", "c-77", 3)
        assert "c-77" in client.get(page).text, "the new run is among the recent runs"
        assert site.client("acme", "STAFF").post(f"/runs/{run['id']}/cancel", json={}).status_code == 200
        assert client.get("/workflows/one?name=nothing").status_code == 404


def test_a_schedule_is_run_now_paused_and_resumed(site: World) -> None:
    daily = {"workflow": "remind", "name": "daily"}
    with of_role(site, "ADMIN") as client:
        refused = sent(client, "/schedules", "/schedules/run", **daily)
        assert (refused.status_code, "No live worker has schedule" in refused.text) == (409, True)
        _keep_daily_schedule(site)
        assert "Run now" in client.get("/schedules").text
        assert sent(client, "/schedules", "/schedules/run", **daily, reason="month end").status_code == 303
        shown = Looked(client.get("/schedules").text).text
        assert "Run requested" in shown
        assert "Run now" not in shown, "one request at a time"
        assert sent(client, "/schedules", "/schedules/pause", **daily).status_code == 303
        assert "Paused by" in Looked(client.get("/schedules").text).text
        assert sent(client, "/schedules", "/schedules/resume", **daily).status_code == 303
        assert sent(client, "/schedules", "/schedules/remove", **daily).status_code == 409
        lines = client.get("/audit?event=schedule.&format=json").json()
        assert {"schedule.requested", "schedule.paused", "schedule.resumed"} <= {line["event"] for line in lines}
    with of_role(site, "ADMIN", "globex") as client:
        assert "remind" not in client.get("/schedules").text
        assert client.post("/schedules/run", data={"once": "s9", **daily}).status_code == 404


def test_a_message_that_blocks_its_key_is_retried_or_skipped(site: World) -> None:
    message = site.ids["acme"]["message"]
    with of_role(site, "VIEWER") as client:
        told = Looked(client.get("/outbox").text).text
        assert "Blocked keys" in told
        assert "needs the role Administrator" in told
        assert client.get(f"/outbox/{site.ids['globex']['message']}").status_code == 404
        rows = client.get("/outbox?format=json").json()
        assert [row["id"] for row in rows] == [message]
    with of_role(site, "ADMIN") as client:
        assert "1 not delivered" in Looked(client.get("/").text).text, "the navigation shows a badge"
        page, sink = f"/outbox/{message}", rows[0]["deliveries"][0]["sink"]
        assert sent(client, page, f"{page}/retry", sink="elsewhere").status_code == 409
        assert sent(client, page, f"{page}/skip", sink=sink, reason="by hand").headers["location"] == f"/app{page}"
        assert "Skipped" in Looked(client.get(page).text).text
        emptied = client.get("/outbox").text
        assert "Blocked keys" not in emptied
        assert "No messages in this state" in emptied
        assert "appear under Not delivered" not in emptied, "the page is Not delivered itself"
        assert "not delivered" not in Looked(client.get("/").text).text
        assert message in client.get("/outbox?status=SKIPPED").text
        assert client.get("/outbox?status=LOST").status_code == 422


def test_crashed_workers_are_distinguished_from_stopped_workers(site: World) -> None:
    async def enlist() -> None:
        async with opened(site.url) as store:
            nothing = Catalogue(version="1", workflows=(), steps=())
            for number in range(5):
                name = f"crashed-{number}"
                await store.enlist(NewWorker(name=name, version="1", workflows=("fulfil",), lease=1), nothing)
            new = NewWorker(name="stopped", version="1", workflows=("fulfil",), lease=3_600_000_000)
            await store.retire(await store.enlist(new, nothing))

    with of_role(site, "VIEWER") as client:
        assert "crashed" not in Looked(client.get("/health").text).text
        asyncio.run(enlist())
        health = Looked(client.get("/health").text).text
        assert "Problem Workers 5 workers crashed in the last hour." in health
        assert "5 workers crashed in the last hour." in Looked(client.get("/").text).text
        page = Looked(client.get("/workers").text).text
        assert ("Crashed crashed-4" in page, "Stopped stopped" in page) == (True, True)
        assert "5 crashed" in Looked(client.get("/runs").text).text, "the navigation shows a badge"
    states = {each["name"]: each["state"] for each in site.client("acme", "VIEWER").get("/workers").json()}
    assert (states["crashed-0"], states["stopped"]) == ("CRASHED", "STOPPED")


def test_owners_drain_and_retire_workers(site: World) -> None:
    async def enlist(name: str, lease: int, token: str = "") -> int:
        async with opened(site.url) as store:
            nothing = Catalogue(version="1", workflows=(), steps=())
            new = NewWorker(name=name, version="1", workflows=("fulfil",), lease=lease, token=token)
            return await store.enlist(new, nothing)

    worker = asyncio.run(enlist("to-be-drained", 3_600_000_000, token="t"))
    with of_role(site, "ADMIN") as client:
        assert '/workers/drain"' not in client.get("/workers").text
        assert sent(client, "/policies", "/workers/drain", id=str(worker)).status_code == 403
    with of_role(site, "OWNER") as client:
        assert f"Running to-be-drained remote, number {worker} 0" in Looked(client.get("/workers").text).text
        drained = sent(client, "/workers", "/workers/drain", id=str(worker), reason="a new machine")
        assert drained.headers["location"] == "/app/workers"
        assert "Draining to-be-drained" in Looked(client.get("/workers").text).text
        assert sent(client, "/workers", "/workers/retire", id=str(worker)).status_code == 303
        assert "Stopped to-be-drained" in Looked(client.get("/workers").text).text
        assert sent(client, "/policies", "/workers/retire", id=str(worker)).status_code == 404
        assert sent(client, "/policies", "/workers/drain", id="\u0661").status_code == 404
        assert sent(client, "/policies", "/workers/restart", id=str(worker)).status_code == 404
        log = Looked(client.get("/audit?tenant=*").text).text
        assert ("A worker was drained" in log, "A worker was retired" in log) == (True, True)


def test_queues_show_the_number_and_age_of_waiting_runs(site: World) -> None:
    for _ in range(2):
        assert (
            site.client("globex", "STAFF")
            .post("/runs", json={"workflow": "book", "input": {"order": "B-9"}})
            .status_code
            == 201
        )
    with of_role(site, "VIEWER", "globex") as client:
        assert re.search(r"default book \d+ \S+ No worker 0", Looked(client.get("/queues").text).text)
    found = site.client("globex", "VIEWER").get("/queues").json()
    assert [(each["tenant"], each["workflow"], each["workers"]) for each in found if each["workflow"] != "remind"] == [
        ("globex", "book", 0)
    ]
    assert [each["due"] for each in found if each["workflow"] == "book"] == [2]
    with of_role(site, "VIEWER") as client:
        assert "book" not in Looked(client.get("/queues").text).text


def _keep_daily_schedule(site: World) -> None:
    """Register a live worker that owns the schedule."""
    daily = NewSchedule(tenant="acme", workflow="remind", name="daily", expression="0 6 * * *", zone="UTC")
    new = NewWorker(name="w", version="1", workflows=(), lease=3_600_000_000)

    async def keep() -> None:
        async with opened(site.url) as store:
            worker = await store.enlist(new, Catalogue(version="1", workflows=(), steps=()))
            await store.schedules.keep([daily], worker=worker)

    asyncio.run(keep())


def test_a_workflow_shows_its_next_scheduled_run_in_the_tenant(site: World) -> None:
    _keep_daily_schedule(site)
    for tenant, told in (("acme", True), ("globex", False)):
        with of_role(site, "VIEWER", tenant) as client:
            assert ("remind Next scheduled run" in Looked(client.get("/workflows").text).text) is told
    assert site.client("acme", "VIEWER").get("/schedules").json()[0]["next"][0].endswith("T06:00:00Z")


def test_runs_without_a_worker_are_shown_to_their_tenant_and_to_owners(site: World) -> None:
    assert site.client("globex", "STAFF").post("/runs", json={"workflow": "remind"}).status_code == 201
    looking = [("acme", "OWNER", True), ("acme", "ADMIN", False), ("acme", "VIEWER", False)]
    for tenant, role, told in [*looking, ("globex", "VIEWER", True)]:
        with of_role(site, role, tenant) as client:
            page = Looked(client.get("/health").text).text
            assert ("1 due run of remind has no worker" in page) is told, (tenant, role)
            row = Looked(client.get("/workflows").text).text
            assert ("1 run has no worker" in row) is told, (tenant, role)


def test_a_failed_run_previews_its_retry_and_is_retried_once(site: World) -> None:
    run = site.ids["globex"]["run"]
    with of_role(site, "ADMIN", "globex") as client:
        assert "Will run again" in client.get(f"/runs/{run}/again").text
        page = f"/runs/{run}/again?way=skip_failed"
        assert "entered manually" in client.get(f'{page}&output="paid"').text
        wrong = sent(client, page, f"/runs/{run}/again", way="skip_failed", output="{half")
        assert (wrong.status_code, "{half" in wrong.text, "is not JSON" in wrong.text) == (422, True, True)
        assert client.get(f"/runs/{run}/again?way=sideways").status_code == 404
        form = {"once": once(client.get(page).text), "way": "from_failed", "reason": "the bank is back"}
        first, second = (client.post(f"/runs/{run}/again", data=form) for _ in range(2))
        assert (first.status_code, first.headers["location"]) == (303, f"/app/runs/{run}")
        assert second.headers["location"] == first.headers["location"]
        shown = Looked(client.get(f"/runs/{run}").text).text
        assert "Queued" in shown
        assert sent(client, f"/runs/{run}", f"/runs/{run}/cancel").status_code == 303
        assert "Cancelled" in Looked(client.get(f"/runs/{run}").text).text


def test_a_rollback_with_nothing_to_undo_is_explained_and_not_offered(site: World) -> None:
    with of_role(site, "ADMIN") as client:
        text = client.get(f"/runs/{site.ids['acme']['run']}/again?way=rollback").text
        page = Looked(text).text
        assert "Nothing to roll back" in page
        assert 'name="way"' not in text
        assert "Will be rolled back" not in page


def test_the_audit_log_is_filtered_by_letter_or_run(site: World) -> None:
    ids = site.ids["acme"]
    with of_role(site, "VIEWER") as client:
        found = client.get("/audit", params={"subject": ids["letter"], "format": "json"}).json()
        assert "dlq.created" in {line["event"] for line in found}
        assert {line["letter"] for line in found} == {ids["letter"]}
        assert f'value="{ids["letter"]}"' in client.get("/audit", params={"subject": ids["letter"]}).text
        assert client.get("/audit", params={"subject": ids["run"], "format": "json"}).json()
        other = {"subject": site.ids["globex"]["letter"], "format": "json"}
        assert client.get("/audit", params=other).json() == []


def test_the_audit_log_shows_user_actions_and_engine_actions_on_request(site: World) -> None:
    with of_role(site, "ADMIN") as client:
        sent(client, "/policies", "/policies", workflow="audited", anyway="audited", max_retries="1")
        people = client.get("/audit", params={"format": "json"}).json()
        assert "policy.set" in {line["event"] for line in people}
        assert "redrive" not in {line["by"] for line in people}
        everything = client.get("/audit", params={"format": "json", "engine": "1"}).json()
        assert {"redrive", people[0]["by"]} <= {line["by"] for line in everything}
        assert client.get("/audit", params={"event": "error.", "by": "redrive", "format": "json"}).json()
        shown = client.get("/audit").text
        assert "audited" in shown
        assert "--people" in shown
        assert (
            "System"
            in Looked(client.get("/audit", params={"event": "error.", "by": "redrive"}).text.split("<tbody>")[1]).words
        )
        sent(client, "/policies", "/policies/remove", workflow="audited")


def test_a_refused_action_links_back_to_its_object(site: World) -> None:
    ids = site.ids["acme"]
    refused = {
        f"/admin/dlq/{ids['letter']}/comment": (422, "Back to the failure"),
        f"/runs/{ids['good']}/cancel": (409, "Back to the run"),
        f"/admin/bulk-replays/{ids['set']}/stop": (409, "Back to the bulk action"),
    }
    with of_role(site, "ADMIN") as client:
        for path, (status, words) in refused.items():
            page = client.post(path, data={"once": path})
            assert page.status_code == status, path
            assert f'href="/app{path.rsplit("/", 1)[0]}">{words}</a>' in page.text
        assert "Back to" not in client.get("/runs?status=NONSENSE").text


def test_the_audit_log_can_be_filtered_by_every_kind_of_event() -> None:
    assert {f"{event.split('.')[0]}." for event in AuditEvent} == set(EVENT_KINDS)


def test_pages_are_polish_for_polish_browsers(site: World) -> None:
    with of_role(site, "OWNER", headers={"Accept-Language": "pl"}) as client:
        assert "Przebiegi" in client.get("/runs").text
        assert "Utworzono użytkownika" in client.get("/audit?event=user.").text
        run = client.get(f"/runs/{site.ids['acme']['run']}?tenant=acme").text
        bars = re.findall(r"<title>(próba [^<]*)</title>", run)
        assert bars
        assert not [bar for bar in bars if "ttempt" in bar or "Próba" not in bar], "the decisions are translated too"


def test_the_page_of_a_run_explains_its_failure_as_the_page_of_the_failure_does(site: World) -> None:
    ids = site.ids["acme"]
    with of_role(site, "VIEWER") as client:
        run, failure = (
            Looked(client.get(path).text).text for path in (f"/runs/{ids['run']}", f"/admin/dlq/{ids['letter']}")
        )
    explanation = next(text for text in CODE_EXPLANATIONS.values() if text in failure)
    assert f"Step charge failed. {explanation}" in run
    assert "failures of category" not in run.split("Timeline")[0]


def test_a_stopped_rollback_is_resolved_from_its_failure_or_its_run(site: World) -> None:
    run = site.ids["globex"]["booked"]
    failure = f"/admin/dlq/dl-{run}"
    with of_role(site, "ADMIN", "globex") as admin:
        assert admin.get(f"{failure}/replay").headers["location"] == f"/app{failure}#ledger"
        assert admin.get(f"/runs/{run}/again?way=full").headers["location"] == f"/app/runs/{run}#ledger"
        for path in (failure, f"/runs/{run}"):
            page = admin.get(path).text
            assert "The rollback stopped at step reserve." in page
            assert [f"/app/runs/{run}/saga/{way}" in page for way in ("resume", "skip", "done")] == [True] * 3
        banner = Looked(admin.get(f"/runs/{run}").text).text
        assert "1000 is too much Step charge failed, so the run was rolled back." in banner
        sent = {"step": "reserve", "letter": f"dl-{run}", "reason": "carried back", "once": "done-1"}
        done = admin.post(f"/runs/{run}/saga/done", data=sent)
        assert done.headers["location"] == f"/app{failure}?done=decided"
        ledger = Looked(admin.get(failure).text.split('id="ledger"')[1].split("</section>")[0]).text
        assert "Done manually" in ledger
        assert "Marked as done by token:ADMIN" in ledger
        assert "carried back" in ledger
        assert "the warehouse is closed" not in ledger
