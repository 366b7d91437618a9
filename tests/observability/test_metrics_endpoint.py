"""Metrics endpoints: a worker's own port, and the server's /metrics."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from pathlib import Path

import pytest
from metrics_kit import Metrics

from redrive import Redrive
from redrive.cli.worker import metrics_arguments
from redrive.clock import SystemClock
from redrive.core.roles import Role
from redrive.server import api
from redrive.server.auth.admin import AccountAdmin, NewToken, make_operator
from redrive.settings import parse_metrics_address

TOKEN = "scraper-0123456789abcdef"
SECRET = "a secret of forty characters for a test."


def read(url: str) -> Metrics:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return Metrics(answer.read().decode())


async def test_a_worker_serves_metrics_even_while_a_step_blocks_its_loop(tmp_path: Path) -> None:
    app = Redrive(f"sqlite:///{tmp_path}/redrive.db", metrics="0")
    told: list[Metrics] = []

    @app.step
    async def block(address: str) -> None:
        """Block the event loop until a scrape from another thread has been answered."""
        scrape = threading.Thread(target=lambda: told.append(read(address)))
        scrape.start()
        scrape.join(20)

    @app.workflow
    async def stuck(address: str) -> None:
        await block(address)

    async with app:
        endpoint = app.runtime.endpoint
        assert endpoint is not None
        calm = await asyncio.to_thread(read, endpoint.address)
        assert calm.get("workflow_store_up") == 1
        assert calm.get("workflow_workers", state="LIVE") == 1
        await (await stuck.start(endpoint.address)).result(timeout=60)
    (blocked,) = told
    assert blocked.get("workflow_store_up") == 0
    assert blocked.get("workflow_commit_batch_size_count") is not None
    with pytest.raises(OSError):
        await asyncio.to_thread(read, endpoint.address)


async def test_the_server_serves_metrics_to_owners_and_the_scraper_only(tmp_path: Path) -> None:
    import httpx2

    app = Redrive(f"sqlite:///{tmp_path}/redrive.db", metrics_token=TOKEN, secret_key=SECRET)
    async with app.client():
        transport = httpx2.ASGITransport(app=api(app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            for credential in ("", "Bearer wrong", f"Bearer {TOKEN}x"):
                refused = await client.get("/metrics", headers={"authorization": credential} if credential else {})
                assert refused.status_code == 401
                assert "workflow_" not in refused.text
            answer = await client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
            assert answer.headers["content-type"].startswith("text/plain")
            assert Metrics(answer.text).get("workflow_store_up") == 1
            elsewhere = await client.get("/api/v1/runs", headers={"authorization": f"Bearer {TOKEN}"})
            assert elsewhere.status_code == 401
            for role, status in ((Role.OWNER, 200), (Role.ADMIN, 403)):
                secret = await token_of(app, role)
                read = await client.get("/metrics", headers={"authorization": f"Bearer {secret}"})
                assert read.status_code == status
                assert ("workflow_store_up" in read.text) is (status == 200)


async def token_of(app: Redrive, role: Role) -> str:
    """Create a token with this role and return its secret."""
    access = AccountAdmin(app.runtime.store.accounts, SystemClock(), make_operator("test"), SECRET)
    if role is Role.OWNER:
        await access.create_tenant("acme")
    return (await access.create_token(NewToken(tenant="acme", role=role, name=role.value))).secret


def test_each_worker_process_has_a_separate_port() -> None:
    assert [metrics_arguments("0.0.0.0:9464", number)[1] for number in (1, 2, 3)] == [
        "0.0.0.0:9464",
        "0.0.0.0:9465",
        "0.0.0.0:9466",
    ]
    assert metrics_arguments("", 1) == []
    assert parse_metrics_address("9464") == ("127.0.0.1", 9464)
    assert parse_metrics_address("[::1]:9464") == ("::1", 9464)
