"""The API mounted in a user's application, as the guide shows it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from click.testing import CliRunner
from server_kit import PATIENCE, World, populate

from redrive.cli import main
from redrive.server.http_server import bind_socket

GUIDE = Path(__file__).parents[2] / "docs/guides/api.md"


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, str]]:
    """Run the guide's example on a populated store, with an additional route, in uvicorn."""
    url = f"sqlite:///{tmp_path_factory.mktemp('mounted')}/redrive.db"
    world = populate(url)
    (example,) = re.findall(r"```python\n(from contextlib.*?web\.mount.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example.replace("sqlite:///:memory:", url), names)

    async def own() -> dict[str, str]:
        return {"who": "the application's own"}

    names["web"].add_api_route("/", own)
    with bind_socket("127.0.0.1", 0) as socket:
        server = uvicorn.Server(uvicorn.Config(names["web"], log_config=None))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([socket])))
        thread.start()
        until = time.monotonic() + PATIENCE
        while not server.started and time.monotonic() < until:
            time.sleep(0.02)
        yield world, f"http://127.0.0.1:{socket.getsockname()[1]}"
        server.should_exit = True
        thread.join(PATIENCE)


def test_the_mounted_api_is_below_its_path_and_changes_nothing_else(mounted: tuple[World, str]) -> None:
    world, address = mounted
    headers = {"Authorization": f"Bearer {world.tokens['acme', 'ADMIN']}"}
    with httpx2.Client(base_url=address, headers=headers, timeout=30) as client:
        assert client.get("/").json() == {"who": "the application's own"}
        assert client.get("/nowhere").headers["content-type"] == "application/json"
        below = "/redrive/api/v1"
        shown = client.get(f"{below}/runs/{world.ids['acme']['run']}")
        assert (shown.status_code, shown.json()["tenant"]) == (200, "acme")
        assert client.get(f"{below}/runs/{world.ids['globex']['run']}").status_code == 404
        path = f"{below}/workflow-dlq/{world.ids['acme']['letter']}/comment"
        key = {"Idempotency-Key": "below"}
        first, again = (client.post(path, json={"text": "seen"}, headers=key) for _ in range(2))
        assert (first.status_code, first.text) == (200, again.text)
        assert client.get(f"{below}/nowhere").json()["code"] == "no_such_path"
        assert client.get("/redrive/readyz").status_code == 200
        assert f'href="{below}/openapi.json"' in client.get("/redrive/api/docs").text
        assert client.get(f"{below}/openapi.json").json()["openapi"].startswith("3.1")
    with httpx2.Client(base_url=address) as anonymous:
        assert anonymous.get("/redrive/api/v1/runs").status_code == 401


def test_the_command_line_uses_the_mounted_path(mounted: tuple[World, str]) -> None:
    world, address = mounted
    env = {"REDRIVE_URL": f"{address}/redrive/", "REDRIVE_TOKEN": world.tokens["acme", "VIEWER"]}
    found = CliRunner().invoke(main, ["runs", "list", "-q", "--workflow", "fulfil"], env=env)
    assert {world.ids["acme"]["run"], world.ids["acme"]["good"]} <= set(found.stdout.split()), found.output
    assert CliRunner().invoke(main, ["dlq", "resolve", world.ids["acme"]["letter"]], env=env).exit_code == 5


def test_the_mounted_pages_are_below_the_path(mounted: tuple[World, str]) -> None:
    _, address = mounted
    with httpx2.Client(base_url=f"{address}/redrive", headers={"Sec-Fetch-Site": "same-origin"}) as client:
        assert client.get("/").headers["location"] == "/redrive/app/"
        assert client.get("/app/admin/dlq").headers["location"].startswith("/redrive/app/login?next=%2Fredrive")
        page = client.get("/app/login").text
        places = re.findall(r'(?:href|src|action)="([^"#]+)"', page)
        assert places
        assert [place for place in places if not place.startswith("/redrive/app/")] == []
        person = {"email": "staff@acme.example", "password": "a good password", "next": "/redrive/app/admin/dlq"}
        assert client.post("/app/login", data=person).headers["location"] == "/redrive/app/admin/dlq"
        page = client.get("/app/admin/dlq").text
        assert 'data-events="/redrive/api/v1/events"' in page
