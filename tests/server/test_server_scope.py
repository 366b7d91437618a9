"""Tokens for one workflow: no GET route of the API or the pages shows them another workflow.

The routes come from the document and from the pages' own list, so a new route is covered at once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from server_document import operations
from server_kit import PREFIX, World
from test_server_events import lines, until
from test_server_tokens import on

from redrive.core.roles import Role
from redrive.server.app import PAGE_ROUTES
from redrive.store.accounts import NewToken, TokenKind

MINE = "remind"
NAMES = ("fulfil", "book", "charge", "reserve", "release", "orders.booked", "till", "acme-bank", "post-office")
"""Names of other workflows, and of their steps, messages, sinks and circuits."""

QUERIES = ("", f"?workflow={MINE}", "?status=OPEN", "?limit=1", "?event=policy.", "?format=csv")
PAGE_QUERIES = ("", f"?workflow={MINE}", "?key=fulfil/charge", "?key=post-office")
GETS = [one for one in operations() if one.method == "get" and not one.is_open]
PAGES = sorted(
    {route.path for routes in PAGE_ROUTES for route in routes.routes if "GET" in getattr(route, "methods", ())}
)


@pytest.fixture(scope="module")
def narrow(rough_world: World) -> Iterator[tuple[World, dict[Role, str]]]:
    """Create a world with settings for every workflow, and a token of each role for one workflow."""
    world = rough_world
    admin, owner = world.client("acme", "ADMIN"), world.client("acme", "OWNER")
    for place in ({"workflow": "fulfil"}, {"workflow": "book", "step": "reserve"}, {"step": "charge"}):
        assert admin.put("/policies", json={**place, "policy": {"max_retries": 7}}).status_code == 200
    assert admin.put("/policies", json={"workflow": MINE, "policy": {"max_retries": 3}}).status_code == 200
    for key in ("fulfil/charge", "post-office", f"{MINE}/write"):
        assert admin.post(f"/circuits/{key}/open", json={"reason": "fulfil is down"}).status_code == 200
    assert owner.post("/workflows/book/pause").status_code == 204
    tokens = {
        role: on(
            world,
            lambda access, role=role: access.create_token(
                NewToken(tenant="acme", role=role, name=f"narrow {role}", kind=TokenKind.KEY, workflows=(MINE,))
            ),
        ).secret
        for role in Role
    }
    yield world, tokens
    assert owner.post("/workflows/book/resume").status_code == 204


def find_other_workflows(text: str, world: World, sent: str = "") -> list[str]:
    """Return what a text reveals about other workflows, apart from values in the request itself."""
    ids = {one for one in world.ids["acme"].values() if len(one) > 20}
    found = [name for name in NAMES if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]
    return [one for one in [*found, *(id for id in ids if id in text)] if one not in sent]


def answer(world: World, secret: str, path: str) -> Any:
    """GET a path; read only the beginning of a stream."""
    client = world.bearer(secret)
    with client.stream("GET", path) as response:
        if "event-stream" not in response.headers.get("content-type", ""):
            response.read()
        return response


def requests(world: World, queries: tuple[str, ...]) -> list[tuple[Role, str]]:
    """Return roles with queries: each once. The view of the store that hides other workflows is the same on both."""
    if not world.is_sqlite:
        return [(Role.ADMIN, queries[0]), (Role.VIEWER, queries[1])]
    return [*((Role.OWNER, query) for query in queries), *((role, "") for role in Role if role is not Role.OWNER)]


def test_no_api_route_reveals_another_workflow(narrow: tuple[World, dict[Role, str]]) -> None:
    world, tokens = narrow
    for one in GETS:
        for role, query in requests(world, QUERIES):
            path = one.url(world.ids["acme"]) + query
            response = answer(world, tokens[role], path.removeprefix(PREFIX))
            if not one.about.get("x-stream") or response.status_code != 200:
                assert find_other_workflows(response.text, world, path) == [], (role, path, response.text)
            if "{id}" in one.path and "notification" not in one.path:
                assert response.status_code in (403, 404, 422), (role, path, response.text)


def test_no_page_reveals_another_workflow(narrow: tuple[World, dict[Role, str]]) -> None:
    world, tokens = narrow
    ids = world.ids["acme"]
    for page in PAGES:
        id = ids["letter"] if "dead" in page or "dlq" in page else ids["run"]
        filled = re.sub(r"\{(\w+)[^}]*\}", id, page)
        for role, query in requests(world, PAGE_QUERIES):
            path = f"{world.address}/app{filled}{query}"
            response = answer(world, tokens[role], path)
            assert find_other_workflows(response.text, world, path) == [], (role, path, response.status_code)


def test_counts_cover_only_the_workflow_of_the_token(narrow: tuple[World, dict[Role, str]]) -> None:
    world, tokens = narrow
    for role, secret in tokens.items():
        client = world.bearer(secret)
        if role is Role.WORKER:
            assert client.get("/workflow-dlq/count").status_code == 403
            continue
        assert client.get("/workflow-dlq/count").json() == {"total": 0}
        facets = client.get("/workflow-dlq/facets").json()
        assert (facets["counted"], any(facets["by"].values())) == (0, False)
        groups = client.get("/workflow-dlq/groups?limit=1").json()
        assert (groups["items"], groups["next"], groups["prev"]) == ([], None, None)
        assert [each["name"] for each in client.get("/workflows").json()] == [MINE]
        assert {each["workflow"] for each in client.get("/policies").json()} == {MINE}
        # Other tests of this server may have removed its only schedule.
        assert {each["workflow"] for each in client.get("/schedules").json()} <= {MINE}
        assert client.get(f"{world.address}/metrics").status_code == 403


def test_a_decision_about_a_circuit_does_not_reveal_its_state(narrow: tuple[World, dict[Role, str]]) -> None:
    """Opening an open circuit changes nothing, so there is nothing to refuse or to hide."""
    world, tokens = narrow
    for secret in tokens.values():
        for key in ("fulfil/charge", "post-office", f"{MINE}/write"):
            for way in ("open", "close", "reset"):
                response = world.bearer(secret).post(f"/circuits/{key}/{way}", json={})
                assert response.status_code == 403
                assert find_other_workflows(response.text, world, key) == []


def test_a_stream_reports_only_the_workflow_of_the_token(narrow: tuple[World, dict[Role, str]]) -> None:
    """Another stream of the tenant proves that the server saw the other workflow's changes."""
    world, tokens = narrow
    some: list[str] = []
    all_: list[str] = []
    with (
        world.bearer(tokens[Role.VIEWER], headers={"X-Once": "1"}).stream("GET", "/events") as one,
        world.client("acme", "VIEWER", headers={"X-Once": "1"}).stream("GET", "/events") as two,
    ):
        for response, seen in ((one, some), (two, all_)):
            threading.Thread(target=lines, args=(response, seen), daemon=True).start()
        until(lambda: "event: hello" in some and "event: hello" in all_)

        def start(workflow: str, body: dict[str, Any]) -> None:
            sent = world.client("acme", "STAFF").post("/runs", json={"workflow": workflow, "input": body})
            assert sent.status_code == 201, sent.text

        def hinted(seen: list[str]) -> int:
            return sum('"changed"' in line for line in seen)

        def others_are_told() -> bool:
            start("fulfil", {"order": "A-7"})
            return hinted(all_) >= 3

        until(others_are_told)
        assert hinted(some) == 0

        def told() -> bool:
            start(MINE, {})
            return hinted(some) > 0

        until(told)
        assert not any('"audit"' in line for line in some)


def test_the_list_of_pages_is_not_empty() -> None:
    assert "/policies" in PAGES
    assert "/circuits/one" in PAGES
    assert len(PAGES) > 15
