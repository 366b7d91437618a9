"""Requirements of the source documents about roles, organisations and tokens, with one test for each."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from server_document import operations
from server_kit import World, access_of, opened, served_in_thread

from redrive.core.roles import Role
from redrive.store.accounts import NewToken, TokenKind
from redrive.store.filters import AuditFilter

DECISIONS = ("replay", "resolve", "ignore")


# -- the reliability document: "UI + Permissions", "Multi-Tenant and Safety" --------------------------------


def test_reliability_document_super_admin_alias_maps_to_owner(world: World) -> None:
    owner = world.client("acme", "OWNER")
    made = owner.post("/tokens", json={"role": "SUPER_ADMIN"}).json()
    assert made["role"] == "OWNER"
    assert world.bearer(made["secret"]).get("/runs?tenant=globex").status_code == 200


def test_reliability_document_org_admin_alias_maps_to_admin_and_requires_active_org_membership(
    own_world: World,
) -> None:
    world = own_world
    owner = world.client("acme", "OWNER")
    new = {"email": "boss@acme.example", "role": "ORG_ADMIN", "password": "a good password"}
    user = owner.post("/users", json=new).json()
    assert user["memberships"][0]["role"] == "ADMIN"
    client = world.bearer(None, headers={"Sec-Fetch-Site": "same-origin"})
    client.post("/login", json={"email": new["email"], "password": new["password"]})
    letter = world.ids["acme"]["letter"]
    assert client.post(f"/workflow-dlq/{letter}/replay", json={"dry_run": True}).status_code == 200
    assert owner.post(f"/users/{user['id']}/role", json={"active": False}).status_code == 200
    assert client.post(f"/workflow-dlq/{letter}/replay", json={"dry_run": True}).status_code == 401


@pytest.mark.parametrize("role", ["STAFF", "VIEWER"])
def test_reliability_document_staff_and_viewer_are_denied_replay_resolve_and_ignore(world: World, role: str) -> None:
    client, letter = world.client("acme", role), world.ids["acme"]["letter"]
    before = client.get(f"/workflow-dlq/{letter}").json()
    for decision in DECISIONS:
        answer = client.post(f"/workflow-dlq/{letter}/{decision}")
        assert (answer.status_code, "ADMIN" in answer.json()["detail"]) == (403, True)
        many = client.post(f"/workflow-dlq/{decision}", json={"filter": {}})
        assert many.status_code == 403
    assert client.post(f"/runs/{world.ids['acme']['run']}/retry").status_code == 403
    assert client.get(f"/workflow-dlq/{letter}").json() == before


def test_reliability_document_staff_starts_cancels_comments_and_assigns(world: World) -> None:
    client, letter = world.client("acme", "STAFF"), world.ids["acme"]["letter"]
    run = client.post("/runs", json={"workflow": "remind", "delay": "1h"}).json()["id"]
    assert client.post(f"/runs/{run}/cancel").json()["status"] == "CANCELLED"
    assert client.post(f"/workflow-dlq/{letter}/comment", json={"text": "looking"}).status_code == 200
    assert client.post(f"/workflow-dlq/{letter}/assign", json={"to": "kim"}).json()["owner"] == "kim"


def test_reliability_document_viewer_reads_only(world: World) -> None:
    client, ids = world.client("acme", "VIEWER"), world.ids["acme"]
    for path in ("/runs", f"/runs/{ids['run']}", "/workflow-dlq", f"/workflow-dlq/{ids['letter']}", "/audit"):
        assert client.get(path).status_code == 200
    for path in ("/runs", f"/runs/{ids['run']}/cancel", f"/workflow-dlq/{ids['letter']}/comment"):
        assert client.post(path, json={"text": "x", "workflow": "remind"}).status_code in (403, 422)
    assert client.post("/runs", json={"workflow": "remind"}).status_code == 403


def test_reliability_document_the_retry_policy_of_a_replay_is_sent_by_its_name(own_world: World) -> None:
    client, letter = own_world.client("acme", "ADMIN"), own_world.ids["acme"]["letter"]
    replay = f"/workflow-dlq/{letter}/replay"
    refused = client.post(replay, json={"override_retry_policy": {"max_retries": "many"}})
    assert (refused.status_code, "max_retries" in refused.json()["detail"]) == (422, True)
    sent = {"mode": "FROM_FAILED", "override_retry_policy": {"max_retries": 7}}
    made = client.post(replay, json=sent)
    assert made.status_code == 200, made.text
    assert client.get(f"/runs/{made.json()['run_id']}").json()["retry_policy_override"]["max_retries"] == 7


def test_reliability_document_all_dlq_reads_and_writes_are_org_scoped(world: World) -> None:
    client, theirs = world.client("globex", "ADMIN"), world.ids["acme"]
    assert {one["tenant"] for one in client.get("/workflow-dlq?limit=500").json()["items"]} == {"globex"}
    assert {one["tenant"] for one in client.get("/workflow-dlq/groups").json()["items"]} <= {"globex"}
    assert client.get(f"/workflow-dlq/{theirs['letter']}").status_code == 404
    for decision in DECISIONS:
        assert client.post(f"/workflow-dlq/{theirs['letter']}/{decision}").status_code == 404
    counted = client.post("/workflow-dlq/replay", json={"filter": {}, "dry_run": True}).json()
    assert counted["total"] == len(client.get("/workflow-dlq?status=OPEN&limit=500").json()["items"])


def test_reliability_document_a_bulk_action_changes_no_letters_of_another_org(own_world: World) -> None:
    client, theirs = own_world.client("globex", "ADMIN"), own_world.ids["acme"]
    shown = client.post("/workflow-dlq/replay", json={"ids": [theirs["letter"]], "dry_run": True}).json()
    assert [each["letter_id"] for each in shown["refused"]] == [theirs["letter"]]


def test_reliability_document_payloads_are_redacted_unless_they_are_revealed_which_is_audited(world: World) -> None:
    letter = world.ids["acme"]["letter"]

    async def tokens() -> tuple[str, str]:
        async with opened(world.url) as store:
            access = access_of(store)
            plain = await access.create_token(NewToken(tenant="acme", role=Role.ADMIN, name="plain"))
            eyes = await access.create_token(NewToken(tenant="acme", role=Role.VIEWER, name="eyes", payloads=True))
            return plain.secret, eyes.secret

    plain, eyes = asyncio.run(tokens())
    shown = world.bearer(plain).get(f"/workflow-dlq/{letter}")
    assert "k3y-s3cr3t" not in shown.text
    assert world.bearer(plain).post(f"/workflow-dlq/{letter}/reveal").status_code == 403
    for path in ("/workflow-dlq", "/workflow-dlq/count", "/workflow-dlq/facets"):
        searched = world.bearer(plain).get(path, params={"text": "k3y-s"})
        assert (searched.status_code, searched.json()["code"]) == (403, "not_allowed"), "no guess is confirmed"
        assert world.bearer(eyes).get(path, params={"text": "k3y-s"}).status_code == 200
    for what in ("replay", "resolve", "ignore"):
        many = {"filter": {"text": "k3y-s"}, **({"dry_run": True} if what == "replay" else {})}
        assert world.bearer(plain).post(f"/workflow-dlq/{what}", json=many).status_code == 403
    revealed = world.bearer(eyes).post(f"/workflow-dlq/{letter}/reveal")
    assert revealed.json()["input"]["api_key"] == "k3y-s3cr3t"
    log = world.client("acme", "ADMIN").get("/audit?event=dlq.revealed").json()["items"]
    assert log[0]["by"].startswith("token:eyes:")


def test_lists_of_runs_have_the_fields_of_the_error_record(world: World) -> None:
    """Story WFA-004, "Execution errors": code, message, retries and limits are in lists too, not only in one run."""
    names = ("error", "error_code", "reason", "reason_code", "attempts_made", "max_retries", "duration_ms", "code")
    client = world.client("acme", "VIEWER")
    given = {"workflow": "remind", "retry": {"max_retries": 9}, "correlation_id": "with-override"}
    assert world.client("acme", "STAFF").post("/runs", json=given).status_code == 201
    (overridden,) = client.get("/runs?correlation_id=with-override").json()["items"]
    assert (overridden["retry_policy_override"]["max_retries"], overridden["max_retries"]) == (9, 9)
    items = client.get("/runs?status=DLQ_PENDING").json()["items"]
    assert items
    for item in items:
        shown = client.get(f"/runs/{item['id']}").json()
        assert {name: item[name] for name in names} == {name: shown[name] for name in names}
        assert item["error"].startswith("Workflow execution failed after")
        assert item["retry_policy_override"] == shown["retry_policy_override"]
        assert (item["input"], item["output"]) == (None, None), "lists have no payloads"


# -- the issue: an owner's way into other tenants -----------------------------------------------------------


def test_cross_tenant_access_of_an_owner_is_named_and_audited(own_world: World) -> None:
    world = own_world
    owner = world.client("acme", "OWNER")
    assert {run["tenant"] for run in owner.get("/runs").json()["items"]} == {"acme"}
    entered = owner.get("/runs?tenant=globex").json()["items"]
    assert {run["tenant"] for run in entered} == {"globex"}
    everywhere = owner.get("/runs?tenant=*").json()["items"]
    assert {run["tenant"] for run in everywhere} == {"acme", "globex"}
    log = world.client("globex", "ADMIN").get("/audit?event=tenant.entered").json()["items"]
    assert [line["subject"] for line in log] == ["GET /api/v1/runs"]
    id = world.tokens["acme", "OWNER"].split("_")[1]
    assert log[0]["by"] == f"token:OWNER:{id} (acme)"

    async def of_all() -> list[str]:
        async with opened(world.url) as store:
            page = await store.audit(AuditFilter(tenant="", event="tenant.entered"), limit=9, cursor=None)
            return [line.subject for line in page.items]

    assert asyncio.run(of_all()) == ["GET /api/v1/runs"]


# -- the idempotency document: "Security / Tenancy" ---------------------------------------------------------


def test_idempotency_document_jwt_is_scoped_to_job_type_and_tenant(world: World) -> None:
    async def token() -> str:
        async with opened(world.url) as store:
            new = NewToken(
                tenant="acme", role=Role.STAFF, name="job", kind=TokenKind.JWT, workflows=("remind",), lasts=600
            )
            return (await access_of(store).create_token(new)).secret

    client = world.bearer(asyncio.run(token()))
    assert client.post("/runs", json={"workflow": "remind"}).status_code == 201
    assert client.post("/runs", json={"workflow": "fulfil", "input": {"order": "A"}}).status_code == 403
    assert client.get("/runs?tenant=globex").status_code == 403
    assert client.get(f"/runs/{world.ids['acme']['run']}").status_code == 404


# -- the accounting story: "Security checklist" -------------------------------------------------------------


def test_accounting_story_an_erased_organisation_leaves_no_data_and_others_stay(own_world: World) -> None:
    world = own_world
    owner = world.client("globex", "OWNER")
    assert owner.delete("/tenants/acme").status_code == 422
    assert owner.delete("/tenants/acme?confirm=globex").status_code == 422
    assert owner.delete("/tenants/acme?confirm=acme").json()["rows"] > 5
    assert world.client("acme", "ADMIN").get("/me").status_code == 401
    assert owner.get("/runs?tenant=acme").json()["items"] == []
    assert owner.get(f"/runs/{world.ids['globex']['run']}").status_code == 200


def test_accounting_story_an_organisation_s_data_can_be_exported(own_world: World) -> None:
    import json

    world = own_world

    async def token() -> str:
        async with opened(world.url) as store:
            new = NewToken(tenant="globex", role=Role.OWNER, name="export", payloads=True)
            return (await access_of(store).create_token(new)).secret

    text = world.bearer(asyncio.run(token())).get("/tenants/acme/export").text
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["kind"] for line in lines} >= {"run", "letter", "audit"}
    assert {line["tenant"] for line in lines if line["kind"] == "run"} == {"acme"}
    assert "k3y-s3cr3t" in text
    assert world.ids["globex"]["run"] not in text


def test_accounting_story_stacks_are_shown_to_staff_and_with_the_right_to_see_payloads(world: World) -> None:
    letter = world.ids["acme"]["letter"]

    async def token() -> str:
        async with opened(world.url) as store:
            new = NewToken(tenant="acme", role=Role.VIEWER, name="sees", payloads=True)
            return (await access_of(store).create_token(new)).secret

    for client, sees in (
        (world.client("acme", "VIEWER"), False),
        (world.client("acme", "STAFF"), True),
        (world.bearer(asyncio.run(token())), True),
    ):
        shown = client.get(f"/workflow-dlq/{letter}").json()
        stacks = [shown["stack"], *(attempt["stack"] for step in shown["steps"] for attempt in step["attempts"])]
        assert len(stacks) > 1
        assert [str(stack).startswith("Traceback") for stack in stacks] == [sees] * len(stacks)
        assert ("Traceback" in client.get(f"/runs/{shown['run_id']}").text) is sees


def test_security_checklist_every_change_over_http_is_audited(tmp_path: Path) -> None:
    quiet = {
        "POST /runs:results",  # reads results
        "PUT /views/{list}/{name}", "DELETE /views/{list}/{name}", "POST /notifications/read",  # the caller's own
        "POST /circuits/{key}/open", "POST /tenants/{name}/enable",  # it is so already
    }  # fmt: skip
    noted, silent = [], set()
    with served_in_thread("sqlite", tmp_path) as world, closing(sqlite3.connect(world.url.partition("///")[2])) as con:
        for one in operations():
            roles = [role for role in (Role.OWNER, Role.WORKER) if one.allows(role)]
            if one.method == "get" or one.is_open or not roles or one.name == "DELETE /tenants/{name}":
                continue
            before = con.execute("SELECT count(*) FROM audit").fetchone()
            path = one.url(world.ids["acme"]).removeprefix("/api/v1")
            if world.client("acme", roles[0]).request(one.method.upper(), path, json=one.body()).is_success:
                told = con.execute("SELECT count(*) FROM audit").fetchone() != before
                noted.append(one.name) if told else silent.add(one.name)
    assert silent == quiet
    assert len(noted) > 30
