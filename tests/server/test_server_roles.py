"""Every route × every role × another tenant's ids, from the document: new routes are covered at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from server_document import Operation, operations
from server_kit import PREFIX, ROLES, World, opened

from redrive.core.roles import Permission, Role
from redrive.store.filters import AuditFilter, CircuitFilter, OutboxFilter

OPERATIONS = operations()
GUARDED = [one for one in OPERATIONS if not one.is_open]
# A circuit is known by a name, under which each tenant has its own: what is done there is done to one's own.
OWN = [one for one in GUARDED if "/circuits/{" in one.path and one.method != "get"]
# So is a saved view; of those that are somebody's own, nobody else's can be named at all.
VIEWS = [one for one in GUARDED if "views/{" in one.path]
NAMED = [
    one for one in GUARDED if "{" in one.path and "/workflows/" not in one.path and one not in OWN and one not in VIEWS
]
# What an owner does to the world that other tests share is done elsewhere.
# An owner manages all tenants, and people whoever knows them.
ALL_TENANTS = {
    "POST /tenants/{name}/disable", "POST /tenants/{name}/enable", "DELETE /tenants/{name}",
    "POST /users/{id}/disable", "POST /users/{id}/role", "POST /users/{id}/code",
    "POST /users/{id}/enable",
}  # fmt: skip
DRASTIC = {"DELETE /tenants/{name}", "POST /tenants/{name}/disable", "POST /workflows/{name}/pause"}


def send(
    client: httpx2.Client, one: Operation, ids: dict[str, str], query: str = "", body: Any = ...
) -> httpx2.Response:
    """A request to an operation; of a stream only the beginning is read."""
    url = one.url(ids).removeprefix(PREFIX) + query
    content = one.body() if body is ... else body
    with client.stream(one.method.upper(), url, json=content) as response:
        if not one.about.get("x-stream") or response.status_code != 200:
            response.read()
        return response


def problem(response: httpx2.Response) -> dict[str, Any]:
    """The problem in an answer, which holds nothing but what it should."""
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert {"type", "title", "status", "code", "detail"} <= found.keys()
    assert found["status"] == response.status_code
    assert "Traceback" not in response.text
    return found


def test_every_operation_says_what_it_takes() -> None:
    assert [one.name for one in GUARDED if not one.permissions or one.permissions - set(Permission)] == []
    assert {one.name for one in OPERATIONS if one.is_open} == {
        "POST /login", "POST /logout", "GET /healthz", "GET /readyz",
    }  # fmt: skip


def test_who_may_only_look_changes_nothing() -> None:
    """The other tests believe what a route says it takes; this one does not."""
    changing = {one.name for one in GUARDED if one.method != "get" and one.permissions <= {"look"}}
    own = {"POST /notifications/read", "PUT /views/{list}/{name}", "DELETE /views/{list}/{name}"}
    assert changing == own, "what one has read, and how one looks at things, is one's own affair"


@pytest.mark.parametrize("one", GUARDED, ids=lambda one: one.name)
def test_nobody_comes_in_without_a_credential(world: World, one: Operation) -> None:
    response = send(world.bearer(None), one, world.ids["acme"])
    assert (response.status_code, problem(response)["code"]) == (401, "not_signed_in")
    assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("one", GUARDED, ids=lambda one: one.name)
def test_a_role_may_what_the_table_says_and_nothing_else(rough_world: World, one: Operation) -> None:
    world = rough_world
    for role in ROLES:
        if one.allows(role) and one.name in DRASTIC:
            continue
        ids = {**world.ids["acme"], "run": world.ids["acme"]["good"]}
        response = send(world.client("acme", role), one, ids)
        if one.allows(role):
            assert response.status_code not in (401, 403), f"{role}: {response.text}"
        else:
            assert (response.status_code, problem(response)["code"]) == (403, "not_allowed"), role


@pytest.mark.parametrize("one", NAMED, ids=lambda one: one.name)
def test_another_tenant_s_ids_do_not_exist(world: World, one: Operation) -> None:
    for role in ROLES:
        if role is Role.OWNER and one.name in ALL_TENANTS:
            continue
        response = send(world.client("globex", role), one, world.ids["acme"])
        assert response.status_code == (404 if one.allows(role) else 403), f"{role}: {response.text}"
        problem(response)


@pytest.mark.parametrize("one", OWN, ids=lambda one: one.name)
def test_what_has_the_same_name_in_another_tenant_is_another_thing(world: World, one: Operation) -> None:
    for role in ROLES:
        response = send(world.client("globex", role), one, {**world.ids["acme"], "key": "post"})
        if one.allows(role):
            assert (response.status_code, response.json()["tenant"]) == (200, "globex"), response.text
        else:
            assert response.status_code == 403
    told = world.client("acme", "VIEWER").get("/circuits/post").json()
    assert (told["tenant"], told["status"], told["why"]) == ("acme", "OPEN", "acme knows why")


def test_views_are_one_s_own_or_a_tenant_s(world: World) -> None:
    staff, viewer = world.client("acme", "STAFF"), world.client("acme", "VIEWER")
    body = {"query": "code=timeout"}

    def seen(client: httpx2.Client) -> list[str]:
        names = [one["name"] for one in client.get("/views?list=letters").json()]
        return [name for name in names if name in ("late", "ours")]

    for path in ("/views/letters/late", "/shared-views/letters/ours"):
        assert staff.put(path, json=body).status_code == 200
    assert (seen(staff), seen(viewer), seen(world.client("globex", "ADMIN"))) == (["late", "ours"], ["ours"], [])
    assert viewer.delete("/views/letters/late").status_code == 404
    assert viewer.delete("/shared-views/letters/ours").status_code == 403
    assert viewer.put("/views/nothing/late", json=body).status_code == 404
    for method in ("PUT", "DELETE"):
        assert viewer.request(method, "/views/letters/bug%20%2342", json=body).is_success, "a name as any other"
    wrong = viewer.put("/views/letters/late", json={"query": "queue=x"})
    assert (wrong.status_code, "cannot be filtered by queue" in wrong.text) == (422, True)
    for path in ("/views/letters/late", "/shared-views/letters/ours"):
        assert staff.delete(path).status_code == 204
    assert seen(staff) == []


def test_no_attempt_on_another_tenant_left_a_trace_in_it(own_world: World) -> None:
    """All of the above once more, with what the other tenant has compared before and after."""
    world = own_world
    mine = world.ids["acme"]

    async def everything() -> Any:
        async with opened(world.url) as store:
            seen = store.tenant_view("acme")
            run = await seen.run(mine["run"])
            assert run is not None
            found = await seen.cases([mine["letter"]]), await seen.bulk_by_id(mine["set"]), await seen.policies()
            log = (await seen.audit(AuditFilter(), limit=500, cursor=None)).items
            around = (
                await seen.circuits(CircuitFilter(), limit=50, cursor=None),
                await seen.messages(OutboxFilter(), limit=50, cursor=None),
                await seen.journal(run.id),
            )
            return (run, found, around, log, await store.accounts.tokens("acme"), await store.accounts.users("acme"))

    before = asyncio.run(everything())
    for role in (Role.ADMIN, Role.STAFF, Role.VIEWER):
        for one in NAMED:
            assert send(world.client("globex", role), one, mine).status_code in (403, 404), one.name
        for one in OWN:
            answer = send(world.client("globex", role), one, {**mine, "key": "post"})
            assert answer.status_code in (200, 403), one.name
    assert asyncio.run(everything()) == before


@pytest.mark.parametrize("one", GUARDED, ids=lambda one: one.name)
def test_only_an_owner_names_another_tenant(world: World, one: Operation) -> None:
    for role in (Role.ADMIN, Role.VIEWER):
        for tenant in ("acme", "*", "nobody"):
            client = world.client("globex", role)
            response = send(client, one, world.ids["acme"], query=f"?tenant={tenant}")
            assert response.status_code == 403, f"{role}: {response.text}"


@pytest.mark.parametrize("place", ["body", "header", "path"])
def test_the_tenant_comes_from_the_credential_and_from_nowhere_else(world: World, place: str) -> None:
    """Temporal's CVE-2026-5199: a tenant that a request names must not count."""
    body: dict[str, Any] = {"workflow": "remind", "input": {}}
    headers = {"X-Tenant": "acme", "Tenant": "acme", "X-Redrive-Tenant": "acme"} if place == "header" else {}
    client = world.client("globex", "STAFF", headers=headers)
    if place == "body":
        assert client.post("/runs", json={**body, "tenant": "acme"}).status_code == 422
        return
    if place == "path":
        assert client.post("/tenants/acme/runs", json=body).status_code in (404, 405)
        return
    made = client.post("/runs", json=body)
    assert made.status_code == 201
    assert client.get(f"/runs/{made.json()['id']}").json()["tenant"] == "globex"
    assert {run["tenant"] for run in client.get("/runs").json()["items"]} == {"globex"}
