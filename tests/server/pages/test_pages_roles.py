"""Permissions of the pages: every page declares its permissions and refuses users without them."""

from __future__ import annotations

import re
from typing import Any

from pages_kit import browser, of_role
from server_kit import World

from redrive.core.roles import ROLE_PERMISSIONS, USER_ROLES, Permission, Role
from redrive.server.app import PAGE_ROUTES

PLACE = re.compile(r"\{[^}]+\}")
ONCE = re.compile(r'name="once" value="[^"]+"|nonce="[^"]+"|\d+ ms')
OPEN = {"/login", "/logout", "/look", "/static/{name}"}
# The ids that a path takes, by its beginning. A path of an unknown kind is tried with every id.
KINDS = {
    "/admin/dlq/causes/": ["fingerprint"],
    "/admin/dlq/": ["letter", "run"],
    "/admin/bulk-replays/": ["set"],
    "/runs/": ["run", "booked"],
    "/outbox/": ["message"],
    "/members/": ["user"],
    "/keys/": ["token"],
}


def taken() -> list[tuple[str, str, list[str]]]:
    """Return every page with its method and its permissions."""
    found: list[tuple[str, str, list[str]]] = []
    for router in PAGE_ROUTES:
        for route in router.routes:
            each: Any = route
            if each.path not in OPEN:
                named = (each.openapi_extra or {}).get("x-permissions", [])
                found += [(method, each.path, named) for method in each.methods]
    return found


def test_every_page_declares_its_permissions() -> None:
    assert [path for _, path, named in taken() if not named] == []


def test_pages_require_a_sign_in_and_the_declared_permissions(site: World) -> None:
    with browser(site) as stranger:
        for method, path, _ in taken():
            answer = stranger.request(method, path.replace("{id}", "dl-x").replace("{way}", "x"))
            assert (answer.status_code, "/app/login" in answer.headers["location"]) == (303, True), path
    clients = {role: of_role(site, role.value) for role in Role}
    for method, path, named in taken():
        allowed = [role for role in Role if {Permission(each) for each in named} <= ROLE_PERMISSIONS[role]]
        users = [role in allowed for role in USER_ROLES]  # by rank, so that two roles stand at the border
        border = users.index(True) if True in users else len(users)
        assert users[border:] == [True] * (len(users) - border), (method, path)
        for role in (*USER_ROLES[max(border - 1, 0) : border + 1], Role.WORKER):
            answer = clients[role].request(method, path.replace("{id}", "dl-x").replace("{way}", "x"))
            assert (answer.status_code != 403) is (role in allowed), (role, method, path, answer.status_code)
            assert answer.status_code != 500, (role, method, path)
    for client in clients.values():
        client.close()


def ids_for(path: str, ids: dict[str, str]) -> list[str]:
    """Return the ids that a path could mean."""
    kinds = next((kinds for beginning, kinds in KINDS.items() if path.startswith(beginning)), None)
    # Both tenants may use the same names.
    return [id for kind, id in ids.items() if kind not in ("tenant", "step") and (kinds is None or kind in kinds)]


def test_ids_of_another_tenant_are_treated_as_unknown(each_site: World) -> None:
    """A page answers a request with an id of another tenant like a request with an unknown id."""
    site = each_site
    compared = set()
    with of_role(site, "ADMIN") as client:
        for method, path, _ in taken():
            for known in ids_for(path, site.ids["globex"]) if "{" in path else ():
                unknown = known[:-1] + ("0" if known[-1] != "0" else "1")
                answers = [
                    client.request(method, PLACE.sub(each, path), data={"reason": "x"} if method == "POST" else None)
                    for each in (known, unknown)
                ]
                told = [
                    (each.status_code, same(each.text, id)) for each, id in zip(answers, (known, unknown), strict=True)
                ]
                assert told[0] == told[1], (method, path, known)
                assert method != "GET" or told[0][0] in (303, 404), (path, known, told[0][0])
                compared.add((method, path))
    assert compared == {(method, path) for method, path, _ in taken() if "{" in path}


def same(page: str, id: str) -> str:
    """Return a page without the requested id and without the values that change with each request."""
    return ONCE.sub("", page.replace(id, "ID"))
