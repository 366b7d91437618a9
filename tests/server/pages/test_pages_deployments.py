"""Versions of code over HTTP, on the page *Deployments*, on the page of a run and from the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from click.testing import CliRunner
from pages_kit import of_role, once
from server_kit import SECRET, World

import redrive
from redrive import Redrive, RunHandle
from redrive.cli import main
from redrive.core.states import RunStatus


def release(url: str, version: str) -> Redrive:
    """Return an app with one version of the workflow `parcel`."""
    app = Redrive(url, secret_key=SECRET, encryption_keys="plain", hold=0.01)

    @app.workflow(version=version, pinned=True)
    async def parcel() -> str:
        await redrive.wait_for("packed")
        return redrive.run_info().version

    return app


async def stranded(world: World) -> tuple[RunHandle[Any], RunHandle[Any]]:
    """Leave two runs that are pinned to version 1, which no worker has any more."""
    async with release(world.url, "1") as app:
        handles = [await app.find("parcel").start(tenant="acme") for _ in range(2)]
        worker = app.runtime.worker
        assert worker is not None
        for handle in handles:
            while await handle.status() is not RunStatus.SLEEPING or worker.executions:  # noqa: ASYNC110 - a real worker
                await asyncio.sleep(0.01)
    return handles[0], handles[1]


async def test_versions_are_shown_and_runs_moved(each_site: World) -> None:
    """Over HTTP, on the pages in both languages, and from the command line on a server and on a store."""
    first, second = await stranded(each_site)
    admin, viewer = each_site.client(role="ADMIN"), each_site.client(role="VIEWER")
    other = each_site.client("globex", "ADMIN")
    async with release(each_site.url, "2") as app:
        for handle in (first, second):
            await app.runs.send(handle.id, "packed")

        async def aside(call: Any, *args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(call, *args, **options)

        found = {each["version"]: each for each in (await aside(viewer.get, "/workflows/versions")).json()}
        assert (found["1"]["state"], found["1"]["pinned"], found["1"]["workers"]) == ("MISSING", 2, 0)
        assert [each["workflow"] for each in found["1"]["workflows"]] == ["parcel"]
        foreign = {each["version"]: each for each in (await aside(other.get, "/workflows/versions")).json()}
        assert "1" not in foreign  # the runs of another tenant are not told
        with of_role(each_site, "ADMIN") as browser, of_role(each_site, "VIEWER") as guest:
            page = (await aside(guest.get, "/deployments")).text
            assert "2 runs need it, and no active worker has it." in page
            polish = (await aside(guest.get, "/deployments", headers={"Accept-Language": "pl"})).text
            assert "Wdrożenia" in polish
            assert "Potrzebują jej 2 przebiegi" in polish
            shown = (await aside(guest.get, f"/runs/{first.id}")).text
            assert "Pinned to version 1, which no active worker has." in shown
            assert f"/runs/{first.id}/move" not in shown
            page = (await aside(browser.get, f"/runs/{first.id}")).text
            form = {"once": once(page), "to": "2", "reason": "no worker"}
            assert "<option>2</option>" in page
            answer = await aside(browser.post, f"/runs/{first.id}/move", data=form)
            assert answer.status_code == 303, answer.text
        assert await app.handle(first.id, "parcel").result("30s") == "2"
        assert (await aside(viewer.post, f"/runs/{second.id}/move", json={"to": "2"})).status_code == 403
        assert (await aside(other.post, f"/runs/{second.id}/move", json={"to": "2"})).status_code == 404
        refused = await aside(admin.post, f"/runs/{second.id}/move", json={"to": "9"})
        assert (refused.status_code, refused.json()["reason_code"]) == (409, "version_without_worker")

        runner = CliRunner()
        server = {"REDRIVE_URL": each_site.address, "REDRIVE_TOKEN": each_site.tokens["acme", "ADMIN"]}
        store = {"REDRIVE_URL": each_site.url, "REDRIVE_SECRET_KEY": SECRET, "REDRIVE_ENCRYPTION_KEYS": "plain"}
        for env in (server, store):
            told = await aside(runner.invoke, main, ["workflows", "versions", "--json"], env=env)
            versions = {each["version"]: each for each in json.loads(told.stdout)["items"]}
            assert (versions["1"]["pinned"], versions["1"]["state"]) == (1, "MISSING")
            text = (await aside(runner.invoke, main, ["workflows", "versions"], env=env)).stdout
            assert "1 run needs it" in " ".join(text.split())
            why = (await aside(runner.invoke, main, ["runs", "why", second.id], env=env)).stdout
            assert "pinned to version '1' of workflow 'parcel', which no live worker has" in " ".join(why.split())
            dry = ["runs", "move", second.id, "--to", "2", "--dry-run"]
            assert "would move" in (await aside(runner.invoke, main, dry, env=env)).stdout
            doctor = (await aside(runner.invoke, main, ["doctor"], env=env)).stdout
            if env is store:
                assert "pinned to version '1', which no live worker has" in " ".join(doctor.split())
        moved = await aside(runner.invoke, main, ["runs", "move", second.id, "--to", "2", "--yes"], env=server)
        assert moved.exit_code == 0, moved.output
        assert await app.handle(second.id, "parcel").result("30s") == "2"
    lines = (await asyncio.to_thread(admin.get, "/audit", params={"event": "run.moved"})).json()["items"]
    assert {line["subject"] for line in lines} == {first.id, second.id}
