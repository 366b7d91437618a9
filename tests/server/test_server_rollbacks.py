"""Circuits, rollbacks and messages over HTTP: the same calls as in Python, by the same rules."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import httpx2
from server_kit import World, access_of, opened

from redrive.core.keys_and_ids import payload_hash
from redrive.core.roles import Role
from redrive.store.accounts import NewToken


def _seer(world: World) -> httpx2.Client:
    """Return a client that may see payloads."""

    async def made() -> str:
        async with opened(world.url) as store:
            new = NewToken(tenant="acme", role=Role.VIEWER, name="seer", payloads=True)
            return (await access_of(store).create_token(new)).secret

    return world.bearer(asyncio.run(made()))


def test_a_stopped_rollback_is_shown_and_resolved(own_world: World) -> None:
    world = own_world
    client, run = world.client("acme", "ADMIN"), world.ids["acme"]["booked"]
    saga = client.get(f"/runs/{run}/saga").json()
    assert (saga["run_id"], saga["done"]) == (run, 0)
    (entry,) = saga["entries"]
    assert (entry["step"], entry["action"], entry["status"]) == ("reserve", "release", "DLQ")
    assert entry["error"]
    assert len(entry["attempts"]) == 1
    # The hash is keyed, so it reveals no payload, and every user who may see the run sees it.
    assert entry["payload_hash"] not in (None, payload_hash(json.dumps(entry["input"], separators=(",", ":"))))
    assert _seer(world).get(f"/runs/{run}/saga").json()["entries"][0]["payload_hash"] == entry["payload_hash"]

    wrong = client.post(f"/runs/{run}/saga/charge/resume")
    assert (wrong.status_code, wrong.json()["code"]) == (404, "not_found")
    assert client.post(f"/runs/{run}/saga/charge/skip").status_code == 422
    by_key = quote(entry["step_key"], safe="")
    plan = client.post(f"/runs/{run}/saga/{by_key}/resume", json={"dry_run": True})
    assert (plan.status_code, plan.json()["run_id"]) == (200, run)
    assert client.get(f"/runs/{run}/saga").json() == saga

    again = {"Idempotency-Key": "done-by-hand"}
    said = {"reason": "put back on the shelf"}
    first = client.post(f"/runs/{run}/saga/{by_key}/mark-done", json=said, headers=again)
    second = client.post(f"/runs/{run}/saga/{by_key}/mark-done", json=said, headers=again)
    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()
    assert (first.json()["mode"], first.json()["reason"]) == ("COMPLETE", said["reason"])
    assert client.get(f"/runs/{run}/saga").json()["entries"][0]["status"] == "SUCCESS"
    assert client.post(f"/runs/{run}/saga/reserve/skip").status_code == 409


def test_a_failed_run_is_rolled_back_on_demand(own_world: World) -> None:
    client, run = own_world.client("acme", "ADMIN"), own_world.ids["acme"]["run"]
    assert client.get(f"/runs/{run}/saga").json()["entries"] == []
    plan = client.post(f"/runs/{run}/rollback", json={"dry_run": True})
    assert (plan.status_code, plan.json()["mode"]) == (200, "ROLLBACK")
    assert client.get(f"/runs/{run}").json()["status"] == "DLQ_PENDING"
    assert client.post(f"/runs/{run}/rollback", json={"reason": "undo it"}).json()["mode"] == "ROLLBACK"
    assert client.get(f"/runs/{run}").json()["status"] == "COMPENSATING"
    assert client.post(f"/runs/{run}/rollback", json={"reason": "again"}).status_code in (200, 409)


def test_a_circuit_is_opened_configured_and_closed(world: World) -> None:
    client = world.client("acme", "ADMIN")
    circuit = "/circuits/fulfil/charge"
    assert client.get(circuit).status_code == 404
    opened = client.post(f"{circuit}/open", json={"reason": "the bank asked"}).json()
    assert (opened["key"], opened["status"], opened["why"]) == ("fulfil/charge", "OPEN", "the bank asked")
    assert client.get(f"/circuits/{quote('fulfil/charge', safe='')}").json() == opened
    assert opened["key"] in {one["key"] for one in client.get("/circuits", params={"status": "OPEN"}).json()["items"]}
    told = client.put(circuit, json={"failures": 20, "window": "2m"}).json()
    assert (told["override"], told["settings"]["probes"]) == ({"failures": 20, "window": 120.0}, 3)
    assert client.put(circuit, json={}).status_code == 422
    assert client.put(circuit, json={"failures": 1, "tenant": "globex"}).status_code == 422
    assert client.put(circuit, json={"window": "soon"}).json()["code"] == "invalid_input"
    assert client.delete(circuit).json()["override"] is None
    assert client.post(f"{circuit}/close").json()["status"] == "CLOSED"
    assert client.post(f"{circuit}/reset").json()["status"] == "CLOSED"
    log = client.get("/audit", params={"subject": "fulfil/charge", "event": "circuit."}).json()["items"]
    assert {line["by"] for line in log} == {opened["changed_by"]}
    assert len(log) >= 4
    assert client.post("/circuits/post/close", params={"tenant": "*"}).status_code == 403
    owner = world.client("acme", "OWNER")
    assert owner.post("/circuits/post/close", params={"tenant": "*"}).status_code == 422


def test_a_dead_message_is_found_and_resolved(world: World) -> None:
    client, id = world.client("globex", "ADMIN"), world.ids["globex"]["message"]
    where = {"topic": "orders.*", "status": "DEAD", "sink": "till", "run_id": world.ids["globex"]["booked"]}
    assert [one["id"] for one in client.get("/outbox", params=where).json()["items"]] == [id]
    (blocked,) = client.get("/outbox/blocked").json()
    assert (blocked["message_id"], blocked["tenant"]) == (id, "globex")
    shown = client.get(f"/outbox/{id}")
    assert shown.json()["deliveries"][0]["status"] == "DEAD"
    assert "k3y-s3cr3t" not in shown.text
    assert client.post(f"/outbox/{id}/retry", json={"sink": "post"}).status_code == 409
    tried = client.post(f"/outbox/{id}/retry", json={"dry_run": True}).json()
    assert tried["deliveries"] == shown.json()["deliveries"]
    skipped = client.post(f"/outbox/{id}/skip", json={"reason": "told them by phone"}).json()
    assert skipped["deliveries"][0]["status"] == "SKIPPED"
    assert client.get("/outbox/blocked").json() == []
    assert client.get("/sinks").status_code == 403
    owner = world.client("globex", "OWNER")
    sinks = {one["name"]: one["topics"] for one in owner.get("/sinks").json()}
    assert sinks["till"] == ["orders.*"]
    assert owner.delete("/sinks/till", params={"dry_run": True}).status_code == 204
    assert owner.delete("/sinks/nowhere").status_code == 404
    assert {one["name"]: one["topics"] for one in owner.get("/sinks").json()} == sinks
