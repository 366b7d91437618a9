"""Histories over HTTP: code is checked against the runs of a server, within the tenant and the rights of the token."""

from __future__ import annotations

from pathlib import Path

import pytest
import server_shop
from server_kit import World, access_of, caller, opened, served_here

from redrive.app.code_check import check_code, select_histories
from redrive.core.roles import Role
from redrive.errors import NotAllowed
from redrive.remote.desk import Remote
from redrive.server.limits import Limits
from redrive.store.accounts import NewToken


async def make_token(world: World, tenant: str) -> str:
    """Return a token of an ADMIN who may see payloads."""
    async with opened(world.url) as store:
        issued = await access_of(store).create_token(
            NewToken(name="deploys", tenant=tenant, role=Role.ADMIN, payloads=True)
        )
    return issued.secret


async def test_code_is_checked_against_the_runs_of_a_server(tmp_path: Path) -> None:
    async with served_here(tmp_path, Limits()) as world, caller(world) as client:
        started = await client.post("/api/v1/runs", json={"workflow": "refund", "input": {"name": "jo"}})
        run = started.json()["id"]
        async with Remote(world.address, await make_token(world, "acme")).client() as server:
            checks = {each.run_id: each async for each in check_code(server_shop.app, server.runs)}
            assert checks[run].fits
            (history,) = [each async for each in select_histories(server.runs, ["refund"], 1, "me")]
            assert (history.run_id, history.tenant, history.entries) == (run, "acme", ())
            assert '"jo"' in history.input
        lines = (await client.get("/api/v1/audit", params={"event": "run.histories_exported"})).json()["items"]
        assert {line["subject"] for line in lines} == {"", "refund"}
        async with Remote(world.address, await make_token(world, "globex")).client() as other:
            assert run not in {each.run_id async for each in check_code(server_shop.app, other.runs)}
        async with Remote(world.address, world.tokens["acme", "VIEWER"]).client() as viewer:
            with pytest.raises(NotAllowed):
                await viewer.runs.histories()
