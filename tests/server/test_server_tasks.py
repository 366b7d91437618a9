"""Tasks over HTTP: who sees them, who may answer, and what the second person gets."""

from __future__ import annotations

import asyncio
import runpy
from typing import Any

import httpx2
import pytest
from server_kit import HERE, SECRET, World

from redrive import Redrive, RunFilter, TaskFilter


async def settled(app: Redrive) -> bool:
    """Return True if every run that has not ended waits for a person."""
    asked = {task.run_id for task in (await app.tasks.list(TaskFilter(status="OPEN"))).items}
    # Not by status: each status is read by itself, and a run that changes its status meanwhile may be in neither list.
    runs = (await app.runs.list(RunFilter(workflow="refund"), limit=500)).items
    return asked.issuperset(run.id for run in runs if run.status in ("PENDING", "RUNNING", "SLEEPING"))


def work(world: World) -> None:
    """Execute what is due, in a worker beside the server, which has none."""

    async def execute() -> None:
        app = runpy.run_path(str(HERE / "server_shop.py"))["app"]
        app.settings = Redrive(world.url, secret_key=SECRET, encryption_keys="plain").settings
        async with app:
            while not await settled(app):  # noqa: ASYNC110 - a real worker
                await asyncio.sleep(0.05)

    asyncio.run(execute())


def ask(world: World, tenant: str = "acme", client: httpx2.Client | None = None, **input: Any) -> dict[str, Any]:
    """Start a run that asks, and return its task."""
    started = (client or world.client(tenant, "STAFF")).post("/runs", json={"workflow": "refund", "input": input})
    assert started.status_code == 201
    work(world)
    found = world.client(tenant, "VIEWER").get("/tasks", params={"run_id": started.json()["id"], "status": "OPEN"})
    assert found.status_code == 200, found.text
    (task,) = found.json()["items"]
    return task


def test_the_first_answer_counts(rough_world: World) -> None:
    world = rough_world
    task = ask(world)
    assert task["question"] == "Refund 40 to jo?"
    assert task["shown"]["api_key"] != "k3y-s3cr3t"
    answer = f"/tasks/{task['id']}/answer"
    viewer = world.client("acme", "VIEWER").post(answer, json={"value": "approve"})
    assert (viewer.status_code, viewer.json()["code"]) == (403, "not_allowed")
    staff = world.client("acme", "STAFF").post(answer, json={"value": "approve"})
    assert staff.status_code == 403
    assert "for ADMIN" in staff.json()["detail"]
    other = world.client("globex", "ADMIN")
    assert {
        other.get(f"/tasks/{task['id']}").status_code,
        other.post(answer, json={"value": "approve"}).status_code,
    } == {404}
    assert world.client("acme", "ADMIN").post(answer, json={"value": "perhaps"}).status_code == 422
    first = world.client("acme", "ADMIN").post(answer, json={"value": "approve", "note": "fine"})
    again = world.client("acme", "ADMIN").post(answer, json={"value": "approve"})
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["answered_by"] == again.json()["answered_by"]
    second = world.client("acme", "OWNER").post(answer, json={"value": "reject"})
    assert second.status_code == 409
    assert first.json()["answered_by"].replace(":", " ") in second.json()["detail"]
    at = first.json()["answered_at"][:16].replace("T", " ")
    assert second.json()["detail"].endswith(f"answered this task at {at} UTC: approve")
    lines = world.client("acme", "ADMIN").get("/audit", params={"subject": task["id"]}).json()["items"]
    assert [line["event"] for line in lines] == ["task.answered"]
    work(world)
    run = world.client("acme", "VIEWER").get(f"/runs/{task['run_id']}").json()
    assert (run["status"], run["output"]) == ("SUCCESS", "approve")
    assert run["started_by"].startswith("token:")


def test_a_task_is_assigned_and_commented_on(rough_world: World) -> None:
    world = rough_world
    task, staff = ask(world), world.client("acme", "STAFF")
    assert (
        staff.post(f"/tasks/{task['id']}/assign", json={"to": "Ann@example.org"}).json()["owner"] == "ann@example.org"
    )
    assert staff.get("/tasks", params={"owner": "ann@example.org"}).json()["items"][0]["id"] == task["id"]
    commented = staff.post(f"/tasks/{task['id']}/comment", json={"text": "please"}).json()
    assert [line["event"] for line in commented["history"]] == ["task.assigned", "task.commented"]
    assert world.client("acme", "VIEWER").post(f"/tasks/{task['id']}/assign", json={"to": None}).status_code == 403
    assert staff.post(f"/tasks/{task['id']}/assign", json={"to": None}).json()["owner"] is None


def test_a_person_has_one_name_with_all_tokens(rough_world: World) -> None:
    """The starter of a run answers no task that is apart from the starter, with any of their credentials."""
    world = rough_world
    admin = world.client("acme", "ADMIN")
    made = [admin.post("/tokens", json={"role": "ADMIN", "name": name}).json()["secret"] for name in ("one", "two")]
    starter, second = map(world.bearer, made)
    for given, others in ((starter, (starter, second, admin)), (admin, (admin, starter))):
        task = ask(world, client=given, apart=True)
        for each in others:
            refused = each.post(f"/tasks/{task['id']}/answer", json={"value": "approve"})
            assert (refused.status_code, "another person" in refused.text) == (403, True), refused.text
            assert not each.get(f"/tasks/{task['id']}").json()["may_answer"]
            listed = each.get("/tasks", params={"run_id": task["run_id"]}).json()["items"]
            assert [item["may_answer"] for item in listed] == [False]
        owner = world.client("acme", "OWNER").post(f"/tasks/{task['id']}/answer", json={"value": "approve"})
        assert owner.status_code == 200, owner.text


@pytest.mark.parametrize("query", [{"status": "NO"}, {"role": "NO"}, {"cursor": "x"}, {"limit": 0}])
def test_a_wrong_filter_is_refused(rough_world: World, query: dict[str, Any]) -> None:
    assert rough_world.client("acme", "VIEWER").get("/tasks", params=query).status_code == 422
