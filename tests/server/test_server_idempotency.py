"""Idempotency-Key: one request is carried out once, however often it is sent."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_kit import PREFIX, World, access_of, caller, opened, served_here

from redrive import Redrive
from redrive.clock import SystemClock
from redrive.core.roles import Role
from redrive.server.idempotency import KeyedClock
from redrive.server.limits import AnswerQuota, Limits
from redrive.store.accounts import NewToken
from redrive.testing import VirtualClock


def keyed(world: World, key: str, role: str = "ADMIN") -> httpx2.Client:
    return world.client("acme", role, headers={"Idempotency-Key": key})


def comments(world: World, text: str) -> int:
    letter = world.client("acme", "VIEWER").get(f"/workflow-dlq/{world.ids['acme']['letter']}").json()
    return sum(line["event"] == "dlq.commented" and line["after"] == text for line in letter["history"])


def test_a_comment_that_is_sent_many_times_at_once_is_added_once(world: World) -> None:
    path = f"/workflow-dlq/{world.ids['acme']['letter']}/comment"
    client = keyed(world, "many-at-once")
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: client.post(path, json={"text": "only once"}), range(20)))
    assert {each.status_code for each in answers} == {200}
    assert len({each.text for each in answers}) == 1
    assert comments(world, "only once") == 1
    assert client.post(path, json={"text": "only once"}).headers["idempotent-replayed"] == "true"


def test_a_key_cannot_be_reused_for_another_request(world: World) -> None:
    path = f"/workflow-dlq/{world.ids['acme']['letter']}/comment"
    client = keyed(world, "one-request")
    assert client.post(path, json={"text": "this"}).status_code == 200
    other = client.post(path, json={"text": "that"})
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert comments(world, "that") == 0
    assert keyed(world, "one-request", "STAFF").post(path, json={"text": "this"}).status_code == 422


def test_tenants_can_use_the_same_key(world: World) -> None:
    for tenant in ("acme", "globex"):
        path = f"/workflow-dlq/{world.ids[tenant]['letter']}/comment"
        client = world.client(tenant, "ADMIN", headers={"Idempotency-Key": "shared"})
        answer = client.post(path, json={"text": f"for {tenant}"})
        assert (answer.status_code, answer.json()["tenant"]) == (200, tenant)


def test_a_request_that_was_refused_may_be_sent_again(world: World) -> None:
    path = f"/workflow-dlq/{world.ids['acme']['letter']}/assign"
    client = keyed(world, "refused")
    assert client.post(path, json={"to": ""}).status_code == 422
    assert client.post(path, json={"to": "kim"}).status_code == 200


def test_a_repeated_assignment_does_not_undo_a_later_one(world: World) -> None:
    path = f"/workflow-dlq/{world.ids['acme']['letter']}/assign"
    first = keyed(world, "assign-1")
    assert first.post(path, json={"to": "kim"}).json()["owner"] == "kim"
    world.client("acme", "ADMIN").post(path, json={"to": "lee"})
    assert first.post(path, json={"to": "kim"}).json()["owner"] == "kim"
    letter = world.client("acme", "ADMIN").get(f"/workflow-dlq/{world.ids['acme']['letter']}").json()
    assert letter["owner"] == "lee"


def test_the_key_of_a_start_becomes_the_key_of_the_run(world: World) -> None:
    client = keyed(world, "order-17")
    body = {"workflow": "fulfil", "input": {"order": "A-17"}}
    one, two = client.post("/runs", json=body).json(), client.post("/runs", json=body).json()
    assert (one["id"], one["new"], two["new"]) == (two["id"], True, False)
    found = client.get("/runs?idempotency_key=order-17").json()["items"]
    assert [run["id"] for run in found] == [one["id"]]
    other = client.post("/runs", json={"workflow": "fulfil", "input": {"order": "A-18"}})
    assert other.status_code == 409


def test_a_batch_is_started_once(world: World) -> None:
    client = keyed(world, "batch-1")
    body = {"runs": [{"workflow": "remind", "correlation_id": "batch-1"}] * 3}
    one, two = client.post("/runs:batch", json=body), client.post("/runs:batch", json=body)
    assert (one.status_code, one.text) == (201, two.text)
    assert len(client.get("/runs?correlation_id=batch-1").json()["items"]) == 3


def test_a_secret_is_not_in_the_answer_to_a_repeated_request(world: World) -> None:
    client = keyed(world, "token-1")
    body = {"role": "VIEWER", "name": "once"}
    made = client.post("/tokens", json=body).json()
    again = client.post("/tokens", json=body)
    assert (again.status_code, again.json()["code"]) == (409, "already_done")
    assert made["id"] in again.text
    assert made["secret"] not in again.text
    assert sum(token["name"] == "once" for token in client.get("/tokens").json()) == 1


def test_invalid_keys_are_refused(world: World) -> None:
    path = f"/workflow-dlq/{world.ids['acme']['letter']}/comment"
    for key in ("", "x" * 300):
        assert keyed(world, key).post(path, json={"text": "x"}).status_code == 422


def test_ids_are_derived_from_the_request() -> None:
    """After a crash between effect and answer, the store recognises the repeated effect by its ids."""
    begun = 1_700_000_000_000_000
    one, two = (KeyedClock(SystemClock(), "seed", begun) for _ in range(2))
    ids = [one.new_id() for _ in range(3)]
    assert ids == [two.new_id() for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(len(id) == 26 for id in ids)
    assert KeyedClock(SystemClock(), "other", begun).new_id() != ids[0]
    assert max(ids) < KeyedClock(SystemClock(), "seed", begun + 1000).new_id(), "later ids sort later"


def test_a_request_is_applied_once_if_the_server_crashed_before_it_answered(own_world: World) -> None:
    """The test removes the answer. A minute later the request is executed again with the same effect."""
    world = own_world
    path = f"/workflow-dlq/{world.ids['acme']['letter']}/comment"
    client = keyed(world, "died")
    assert client.post(path, json={"text": "said"}).status_code == 200

    async def lose() -> None:
        async with opened(world.url) as store:
            inner = store
            statement = "UPDATE access_answers SET status = NULL, body = NULL, begun_at = begun_at - 61000000"
            if world.url.startswith("sqlite"):
                await inner._connections.write(lambda con: con.execute(statement))  # type: ignore[attr-defined]
            else:
                text = statement.replace("access_answers", f"{inner._address.schema}.access_answers")  # type: ignore[attr-defined]
                await inner._pool.run(lambda line: line.con.execute(text))  # type: ignore[attr-defined]

    asyncio.run(lose())
    assert client.post(path, json={"text": "said"}).status_code == 200
    assert comments(world, "said") == 1


def test_a_stored_answer_is_returned_only_to_the_same_credential(world: World) -> None:
    admin = world.client("acme", "ADMIN")
    path = f"/workflow-dlq/{world.ids['acme']['letter']}/comment"

    def named(role: str) -> str:
        return str(admin.post("/tokens", json={"role": role, "name": "twin"}).json()["secret"])

    def send(secret: str) -> httpx2.Response:
        return world.bearer(secret, headers={"Idempotency-Key": "twins"}).post(path, json={"text": "twin"})

    one, two, low = named("ADMIN"), named("ADMIN"), named("VIEWER")
    assert send(one).status_code == 200
    assert send(one).headers["idempotent-replayed"] == "true"
    assert (send(two).status_code, send(two).json()["code"]) == (422, "key_reused")
    assert (send(low).status_code, send(low).json()["code"]) == (403, "not_allowed")


def test_a_revealed_payload_is_not_stored(world: World) -> None:
    async def seer() -> str:
        async with opened(world.url) as store:
            new = NewToken(tenant="acme", role=Role.ADMIN, name="seer", payloads=True)
            return (await access_of(store).create_token(new)).secret

    client = world.bearer(asyncio.run(seer()), headers={"Idempotency-Key": "reveals"})
    for _ in range(2):
        shown = client.post(f"/workflow-dlq/{world.ids['acme']['letter']}/reveal")
        assert "k3y-s3cr3t" in shown.text
        assert "idempotent-replayed" not in shown.headers


def start(world: World, secret: str, cents: int, **more: Any) -> tuple[int, str]:
    """Start a run with a key; return the status, and the error detail or a flag for a new run."""
    body = {"workflow": "fulfil", "input": {"order": "hidden", "amount": cents}, **more}
    headers = {} if "event" in more else {"Idempotency-Key": "guessed"}
    answer = world.bearer(secret).post("/runs", json=body, headers=headers)
    said = answer.json()
    return answer.status_code, said.get("detail") or f"new: {said['new']}"


@pytest.mark.parametrize("more", [{}, {"event": {"stream": "orders", "id": "guessed"}}])
async def test_a_hidden_input_cannot_be_guessed_by_its_key(own_world: World, more: dict[str, Any]) -> None:
    """Another credential that may not see payloads gets the same answer for equal and different inputs."""
    async with opened(own_world.url) as store:
        access = access_of(store)

        async def token(name: str, payloads: bool) -> str:
            new = NewToken(tenant="acme", role=Role.STAFF, name=name, payloads=payloads)
            return (await access.create_token(new)).secret

        maker, other, seer = await token("a", False), await token("b", False), await token("c", True)
    assert start(own_world, maker, 42, **more) == (201, "new: True")
    assert start(own_world, maker, 42, **more) == (201, "new: False"), "the first caller may repeat"
    assert start(own_world, maker, 43, **more)[0] == 409
    equal, different = start(own_world, other, 42, **more), start(own_world, other, 43, **more)
    assert equal == different
    assert (equal[0], "by another credential" in equal[1]) == (409, True)
    assert start(own_world, seer, 42, **more) == (201, "new: False")
    assert start(own_world, seer, 43, **more)[0] == 409


async def test_hidden_inputs_of_runs_started_by_code_cannot_be_guessed(own_world: World) -> None:
    async with opened(own_world.url) as store:
        new = NewToken(tenant="acme", role=Role.STAFF, name="a")
        other = (await access_of(store).create_token(new)).secret
    app = Redrive(own_world.url)

    @app.workflow
    async def fulfil(order: str, amount: int = 1, api_key: str = "") -> str:
        return order

    async with app.client():
        await fulfil.start("hidden", 42, tenant="acme", idempotency_key="guessed")
    assert start(own_world, other, 42) == start(own_world, other, 43)
    assert start(own_world, other, 42)[0] == 409


VALUES = {
    "patch": ("replay", {"patch": {"api_key": "{}"}}),
    "input": ("replay", {"input": {"order": "A-2", "amount": 1, "api_key": "{}"}}),
    "output": ("replay", {"mode": "SKIP", "output": "{}"}),
    "complete": ("complete", {"output": "{}"}),
}
"""Decisions with a value that other callers must not guess."""


@pytest.mark.parametrize("kind", VALUES)
async def test_a_hidden_value_of_a_replay_cannot_be_guessed(own_world: World, kind: str) -> None:
    """Another credential that may not see payloads gets the same answer for equal and different values."""
    async with opened(own_world.url) as store:
        access = access_of(store)

        async def token(name: str, payloads: bool) -> str:
            new = NewToken(tenant="acme", role=Role.ADMIN, name=name, payloads=payloads)
            return (await access.create_token(new)).secret

        maker, other, seer = await token("a", False), await token("b", False), await token("c", True)
    way, body = VALUES[kind]
    letter = own_world.ids["acme"]["letter"]

    def decide(secret: str, guess: str, **more: Any) -> tuple[int, str]:
        said = json.loads(json.dumps(body).replace("{}", guess)) | more
        answer = own_world.bearer(secret).post(f"/workflow-dlq/{letter}/{way}", json=said)
        found = answer.json()
        return answer.status_code, found.get("detail") or f"number {found['number']}"

    assert decide(maker, "hunter2") == (200, "number 1")
    assert decide(maker, "hunter2") == (200, "number 1"), "the first caller may repeat"
    assert decide(maker, "hunter3")[0] == 409
    for more in ({}, {"dry_run": True}):
        assert decide(other, "hunter2", **more) == decide(other, "hunter3", **more)
        assert decide(other, "hunter2", **more)[0] == 409
        assert decide(seer, "hunter2", **more) == (200, "number 1")
        assert decide(seer, "hunter3", **more)[0] == 409


async def test_a_decision_without_values_has_the_same_answer_for_all_callers(own_world: World) -> None:
    path = f"/workflow-dlq/{own_world.ids['acme']['letter']}/replay"
    answers = [own_world.client("acme", role).post(path, json={}).json() for role in ("ADMIN", "OWNER")]
    assert answers[0] == answers[1]


async def test_a_tenant_has_a_bounded_number_of_stored_answers(tmp_path: Path) -> None:
    limits = Limits(answers=3)
    async with served_here(tmp_path, limits) as world, caller(world) as client:
        path = f"{PREFIX}/workflow-dlq/{world.ids['acme']['letter']}/comment"

        async def comment(key: str | None) -> httpx2.Response:
            headers = {} if key is None else {"Idempotency-Key": key}
            return await client.post(path, json={"text": "x"}, headers=headers)

        assert [(await comment(f"k{number}")).status_code for number in range(5)] == [200, 200, 200, 429, 429]
        refused = (await comment("k3")).json()
        assert (refused["code"], "send the request without" in refused["detail"]) == ("too_many_answers", True)
        assert (await comment("k0")).headers["idempotent-replayed"] == "true", "older answers are still there"
        assert (await comment(None)).status_code == 200
        other = await comment("page:x")
        assert (other.status_code, "reserved" in other.json()["detail"]) == (422, True)


async def test_stored_answers_are_bounded_in_bytes_and_rarely_counted() -> None:
    asked = []

    async def usage(tenant: str) -> tuple[int, int]:
        asked.append(tenant)
        return 1, 90 if len(asked) < 3 else 101

    clock = VirtualClock()
    quota = AnswerQuota(clock, Limits(answers=1000, answer_bytes=100))
    assert not await quota.is_full("acme", usage)
    quota.add("acme", 9)
    assert (await quota.is_full("acme", usage), len(asked)) == (False, 1), "the store is queried only sometimes"
    quota.add("acme", 2)
    assert (await quota.is_full("acme", usage), len(asked)) == (False, 2), "at the limit the store is queried each time"
    clock.move_to(clock.now() + 61_000_000)
    assert (await quota.is_full("acme", usage), len(asked)) == (True, 3)
