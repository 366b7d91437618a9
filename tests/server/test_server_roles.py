"""Permissions: every route of the document × every role × another tenant's ids. New routes are covered at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from server_document import Operation, operations
from server_kit import PREFIX, ROLES, World, opened

from redrive.core.roles import Permission, Role
from redrive.store.filters import AuditFilter, CircuitFilter, OutboxFilter

OPERATIONS = operations()
GUARDED = [one for one in OPERATIONS if not one.is_open]
# Circuits are identified by name, and each tenant has separate ones: a request changes the caller's circuit.
OWN = [one for one in GUARDED if "/circuits/{" in one.path and one.method != "get"]
# Saved views are identified by name too. A request cannot address the private view of another user.
VIEWS = [one for one in GUARDED if "views/{" in one.path]
NAMED = [
    one for one in GUARDED if "{" in one.path and "/workflows/" not in one.path and one not in OWN and one not in VIEWS
]
# An owner manages all tenants and all users. Operations of an owner that would break other tests on the shared
# server are tested elsewhere.
ALL_TENANTS = {
    "POST /tenants/{name}/disable", "POST /tenants/{name}/enable", "DELETE /tenants/{name}",
    "POST /users/{id}/disable", "POST /users/{id}/role", "POST /users/{id}/code",
    "POST /users/{id}/enable",
}  # fmt: skip
DRASTIC = {"DELETE /tenants/{name}", "POST /tenants/{name}/disable", "POST /workflows/{name}/pause"}


def send(
    client: httpx2.Client, one: Operation, ids: dict[str, str], query: str = "", body: Any = ...
) -> httpx2.Response:
    """Send a request to an operation; read only the beginning of a stream."""
    url = one.url(ids).removeprefix(PREFIX) + query
    content = one.body() if body is ... else body
    with client.stream(one.method.upper(), url, json=content) as response:
        if not one.about.get("x-stream") or response.status_code != 200:
            response.read()
        return response


def problem(response: httpx2.Response) -> dict[str, Any]:
    """Return the problem document of an answer, after checking its form."""
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert {"type", "title", "status", "code", "detail"} <= found.keys()
    assert found["status"] == response.status_code
    assert "Traceback" not in response.text
    return found


def test_every_operation_declares_its_permissions() -> None:
    assert [one.name for one in GUARDED if not one.permissions or one.permissions - set(Permission)] == []
    assert {one.name for one in OPERATIONS if one.is_open} == {
        "POST /login", "POST /logout", "GET /healthz", "GET /readyz",
    }  # fmt: skip


def test_the_look_permission_allows_no_changes_for_others() -> None:
    """The other tests trust the permissions that a route declares; here they are checked."""
    changing = {one.name for one in GUARDED if one.method != "get" and one.permissions <= {"look"}}
    own = {"POST /notifications/read", "PUT /views/{list}/{name}", "DELETE /views/{list}/{name}"}
    assert changing == own, "a viewer changes only their own read marks and views"


def test_every_guarded_operation_requires_a_credential(rough_worlds: Callable[[str], World]) -> None:
    world = rough_worlds("sqlite")  # the answer is given before the store is asked
    for one in GUARDED:
        response = send(world.bearer(None), one, world.ids["acme"])
        assert (response.status_code, problem(response)["code"]) == (401, "not_signed_in"), one.name
        assert response.headers["www-authenticate"].startswith("Bearer"), one.name


def test_a_role_may_do_exactly_what_the_permission_table_allows(rough_world: World) -> None:
    """On PostgreSQL it is tried with the weakest role that may: the decision about others asks the same rows."""
    world = rough_world
    ids = {**world.ids["acme"], "run": world.ids["acme"]["good"]}
    for one in GUARDED:
        permitted = [role for role in ROLES if one.allows(role)]
        for role in ROLES if world.is_sqlite else permitted[-1:]:
            if one.allows(role) and one.name in DRASTIC:
                continue
            response = send(world.client("acme", role), one, ids)
            if one.allows(role):
                assert response.status_code not in (401, 403), f"{one.name}, {role}: {response.text}"
            else:
                assert (response.status_code, problem(response)["code"]) == (403, "not_allowed"), (one.name, role)


def test_views_belong_to_a_user_or_to_a_tenant(world: World) -> None:
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
        assert viewer.request(method, "/views/letters/bug%20%2342", json=body).is_success, "this name is not special"
    wrong = viewer.put("/views/letters/late", json={"query": "queue=x"})
    assert (wrong.status_code, "cannot be filtered by queue" in wrong.text) == (422, True)
    for path in ("/views/letters/late", "/shared-views/letters/ours"):
        assert staff.delete(path).status_code == 204
    assert seen(staff) == []


def test_ids_of_another_tenant_do_not_exist_and_requests_with_them_change_nothing(own_world: World) -> None:
    """The other tenant's data is compared before and after. Circuits with the same name are separate."""
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
    for role in ROLES:
        client = world.client("globex", role)
        for one in NAMED:
            if role is Role.OWNER and one.name in ALL_TENANTS:
                continue
            response = send(client, one, mine)
            assert response.status_code == (404 if one.allows(role) else 403), f"{one.name}, {role}: {response.text}"
            problem(response)
        for one in OWN:
            response = send(client, one, {**mine, "key": "post"})
            if one.allows(role):
                assert (response.status_code, response.json()["tenant"]) == (200, "globex"), response.text
            else:
                assert response.status_code == 403, (one.name, role)
    assert asyncio.run(everything()) == before
    told = world.client("acme", "VIEWER").get("/circuits/post").json()
    assert (told["tenant"], told["status"], told["why"]) == ("acme", "OPEN", "acme knows why")


def test_only_an_owner_may_select_another_tenant(rough_worlds: Callable[[str], World]) -> None:
    world = rough_worlds("sqlite")  # refused by the permission alone
    for one in GUARDED:
        for role, tenant in ((Role.ADMIN, "acme"), (Role.ADMIN, "*"), (Role.ADMIN, "unknown"), (Role.VIEWER, "acme")):
            response = send(world.client("globex", role), one, world.ids["acme"], query=f"?tenant={tenant}")
            assert response.status_code == 403, f"{one.name}, {role}, {tenant}: {response.text}"


@pytest.mark.parametrize("place", ["body", "header", "path"])
def test_the_tenant_comes_only_from_the_credential(world: World, place: str) -> None:
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
