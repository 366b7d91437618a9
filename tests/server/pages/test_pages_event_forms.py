"""Events to a run over HTTP, on its page and from the command line, with a real worker on the same store."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pytest
from click.testing import CliRunner
from pages_kit import Looked, of_role, once
from server_kit import SECRET, World

import redrive
from redrive import NonRetryable, Redrive, RunFailed, RunHandle
from redrive.cli import main
from redrive.core.redact import MASK
from redrive.core.states import RunStatus

T = TypeVar("T")


@dataclass
class Approval:
    by: str
    limit: int = 0
    level: Literal["low", "high"] = "low"
    urgent: bool = False
    remark: str | None = None


def make_app(url: str) -> Redrive:
    app = Redrive(url, secret_key=SECRET, encryption_keys="plain")

    @app.workflow(events={"approved": Approval, "note": str})
    async def approval(api_key: str = "") -> list[Any]:
        redrive.set_status("needs an approval", progress=0.25, api_key=api_key)
        found = await redrive.wait_for("approved", timeout="3d")
        return [found.by, found.limit, found.level, found.urgent]

    @app.workflow
    async def anything() -> Any:
        found = await redrive.wait_for("go", type=int)
        if found < 0:
            raise NonRetryable("a negative number")
        return found

    @app.workflow
    async def impatient() -> Any:
        redrive.set_status("waits for a moment", progress=0.5)
        return await redrive.wait_for("go", timeout=0.01, default="nothing came")

    @app.step
    async def count(number: int) -> int:
        return number

    @app.workflow
    async def counted(steps: int) -> None:
        for number in range(steps):
            await count(number)
        raise NonRetryable("the total is wrong")

    @app.workflow
    async def family() -> Any:
        return await anything.run()

    return app


@pytest.fixture
async def app(each_site: World) -> AsyncIterator[Redrive]:
    async with make_app(each_site.url) as opened:
        yield opened


async def waiting(app: Redrive, workflow: str = "approval", tenant: str = "acme") -> RunHandle[Any]:
    """Start a run and wait until it waits for its event."""
    inputs = {"api_key": "k3y"} if workflow == "approval" else {}
    handle = await app.find(workflow).start(tenant=tenant, **inputs)
    while await handle.status() is not RunStatus.SLEEPING:  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.01)
    return handle


async def aside(call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Make a blocking call while the worker continues."""
    return await asyncio.to_thread(call, *args, **options)


async def test_events_are_sent_and_listed_over_http(each_site: World, app: Redrive) -> None:
    """The server has no code of this workflow: it checks names and payloads by the catalogue."""
    handle = await waiting(app)
    staff, viewer = each_site.client(role="STAFF"), each_site.client(role="VIEWER")
    other = each_site.client("globex")
    path = f"/runs/{handle.id}/events"
    keyed = {"Idempotency-Key": "click-1"}
    for name, payload, status in (
        ("approved", {"limit": 1}, 422),
        ("approved", {"by": "ann", "limit": "x"}, 422),
        ("approved", 7, 422),
        ("other", {}, 422),
        ("a%2Fb", {}, 404),
    ):
        answer = await aside(staff.post, f"{path}/{name}", json=payload)
        assert answer.status_code == status, (name, answer.text)
    assert (await aside(viewer.post, f"{path}/approved", json={"by": "ann"})).status_code == 403
    assert (await aside(other.post, f"{path}/approved", json={"by": "ann"})).status_code == 404
    assert (await aside(other.get, path)).status_code == 404
    assert (await aside(viewer.get, path)).json() == []
    sent = [await aside(staff.post, f"{path}/note", json="hello", headers=keyed) for _ in range(3)]
    assert [(each.status_code, each.json()["seq"]) for each in sent] == [(202, 1)] * 3
    clash = await aside(staff.post, f"{path}/note", json="other", headers=keyed)
    assert (clash.status_code, clash.json()["reason_code"]) == (409, "event_key_used")
    listed = await aside(viewer.get, "/runs", params={"waits_for": "approved"})
    assert handle.id in {run["id"] for run in listed.json()["items"]}
    note = (await aside(viewer.get, f"/runs/{handle.id}")).json()["note"]
    assert (note["text"], note["progress"], note["data"]) == ("needs an approval", 0.25, {"api_key": MASK})
    answer = await aside(staff.post, f"{path}/approved", json={"by": "ann", "limit": 9})
    assert answer.json() == {"seq": 2, "run_id": handle.id, "status": "SLEEPING"}
    assert await handle.result(timeout="30s") == ["ann", 9, "low", False]
    events = (await aside(viewer.get, path, params={"after": 0})).json()
    assert [(each["seq"], each["name"], each["status"]) for each in events] == [
        (1, "note", "UNREAD"), (2, "approved", "TAKEN")
    ]  # fmt: skip
    assert [each["seq"] for each in (await aside(viewer.get, path, params={"after": 1})).json()] == [2]
    ended = await aside(staff.post, f"{path}/note", json="late")
    assert (ended.status_code, ended.json()["reason_code"]) == (409, "events_refused")
    lines = (await aside(each_site.client(role="ADMIN").get, "/audit", params={"subject": handle.id})).json()["items"]
    assert {line["event"] for line in lines} >= {"run.event_sent"}
    assert "ann" not in json.dumps([line["after"] for line in lines])


async def test_the_page_of_a_run_lists_events_and_sends_one_without_scripts(each_site: World, app: Redrive) -> None:
    handle = await waiting(app)
    with of_role(each_site, "STAFF") as browser, of_role(each_site, "VIEWER") as viewer:
        page = (await aside(browser.get, f"/runs/{handle.id}")).text
        assert "Waits for event approved" in page
        assert "needs an approval" in page
        assert '<progress max="1" value="0.25">' in page
        assert "No result yet." in page
        timeline = Looked(page[page.index('class="fall"') :]).text
        assert "waiting approved Waiting" in timeline, "an open wait is not running"
        assert re.findall(r'<option value="([^"]*)"( selected)?>([^<]*)<', page) == [
            ("&#34;low&#34;", " selected", "low"), ("&#34;high&#34;", "", "high")
        ]  # fmt: skip
        names = re.findall(r'name="(f:[^"]*)"', page)
        assert names == ["f:by", "f:limit", "f:level", "f:urgent", "f:remark", "f:"]  # of both declared events
        assert "(JSON)" not in page, "a text that may be null is typed as a text"
        assert 'action="/app/runs' in page
        shown = (await aside(viewer.get, f"/runs/{handle.id}")).text
        assert "f:by" not in shown
        form = {"once": once(page[page.index('name="event" value="approved"') - 600 :]), "event": "approved"}
        bad = await aside(browser.post, f"/runs/{handle.id}/events", data={**form, "f:by": "ann", "f:limit": "many"})
        assert bad.status_code == 422
        assert "limit" in bad.text
        good = {**form, "f:by": "ann", "f:limit": "7", "f:level": '"high"', "f:urgent": "yes"}
        answer = await aside(browser.post, f"/runs/{handle.id}/events", data={**good, "once": "0123456789abcdef"})
        assert answer.status_code == 303, answer.text
        assert await handle.result(timeout="30s") == ["ann", 7, "high", True]
        page = (await aside(browser.get, f"/runs/{handle.id}", headers={"Accept-Language": "pl"})).text
        assert "Zdarzenia" in page
        assert "Odebrane" in page
        found = (await aside(browser.get, "/runs", params={"waits_for": "approved"})).text
        assert handle.id not in found


async def test_a_long_run_that_failed_outside_its_steps_shows_its_latest_steps(each_site: World, app: Redrive) -> None:
    handle = await app.find("counted").start(70, tenant="acme")
    while await handle.status() is not RunStatus.DLQ_PENDING:  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.01)
    with of_role(each_site, "ADMIN") as browser:
        page = (await aside(browser.get, f"/runs/{handle.id}")).text
        assert (page.count('id="step-'), page.count("30 earlier steps are not shown.")) == (40, 2)
        assert (await aside(browser.get, f"/runs/{handle.id}?steps=all")).text.count('id="step-') == 70
        assert "Resume the run" in page
        assert ("Skip this step" in page, "Send an" in page) == (False, False), "neither can work"
        form = (await aside(browser.get, f"/admin/dlq/dl-{handle.id}/replay")).text
        assert re.findall(r'name="mode" value="(\w+)"', form) == ["FROM_FAILED", "FROM_STEP", "FULL"]
        assert "count ×70" in Looked(form).text


async def test_a_wait_without_an_answer_is_shown_as_timed_out(each_site: World, app: Redrive) -> None:
    handle = await app.find("impatient").start(tenant="acme")
    assert await handle.result(timeout="30s") == "nothing came"
    with of_role(each_site, "VIEWER") as viewer:
        page = (await aside(viewer.get, f"/runs/{handle.id}")).text
    assert ("Timed out" in page, "</svg>Failed" in page) == (True, False)
    assert ("waits for a moment" in page, "50 %" in page) == (True, False), "a run that ended makes no progress"


async def test_the_command_line_sends_events_to_a_server_and_to_a_store(each_site: World, app: Redrive) -> None:
    runner = CliRunner()
    server = {"REDRIVE_URL": each_site.address, "REDRIVE_TOKEN": each_site.tokens["acme", "STAFF"]}
    store = {"REDRIVE_URL": each_site.url, "REDRIVE_SECRET_KEY": SECRET, "REDRIVE_ENCRYPTION_KEYS": "plain"}
    for env in (server, store):

        async def run(*arguments: str, env: dict[str, str] = env) -> Any:
            return await aside(runner.invoke, main, ["runs", *arguments], env=env)

        handle = await waiting(app, "anything")
        why = (await run("why", handle.id)).stdout
        assert "waits for event 'go' since" in why
        assert f"redrive runs send {handle.id} go --data JSON" in why.replace("\n", " ")
        assert "nothing was sent" in (await run("send", handle.id, "go", "--data", "1", "--dry-run")).stdout
        sent = await run("send", handle.id, "go", "--data", '"no number"', "--key", "k", "--json")
        assert json.loads(sent.stdout)["seq"] == 1, sent.output
        assert json.loads(
            (await run("send", handle.id, "go", "--data", '"no number"', "--key", "k", "--json")).stdout
        ) == (json.loads(sent.stdout))
        assert (await run("send", handle.id, "go", "--data", "2", "--key", "k")).exit_code != 0
        assert (await run("send", handle.id, "go", "--data", "{")).exit_code == 2
        while not any(event.status == "SET_ASIDE" for event in await app.runs.events(handle.id)):  # noqa: ASYNC110 - a real worker
            await asyncio.sleep(0.01)
        assert "did not fit and was set aside: input should be a valid integer" in (await run("why", handle.id)).stdout
        listed = (await run("list", "--waits-for", "go", "-q")).stdout
        assert handle.id in listed
        assert (await run("send", handle.id, "go", "--data", "17")).exit_code == 0
        assert await handle.result(timeout="30s") == 17
        shown = (await run("show", handle.id)).stdout
        assert "1 go, set aside" in shown
        assert "2 go, taken" in shown


async def test_relatives_of_a_run_are_shown_over_http_on_its_page_and_as_a_tree(each_site: World, app: Redrive) -> None:
    parent = await waiting(app, "family")
    client = each_site.client("acme", "STAFF")
    (child,) = (await aside(client.get, "/runs", params={"parent": parent.id})).json()["items"]
    assert (child["workflow"], child["parent"]) == ("anything", parent.id)
    foreign = each_site.client("globex", "STAFF")
    assert (await aside(foreign.get, "/runs", params={"parent": parent.id})).json()["items"] == []
    with of_role(each_site, "STAFF") as browser:
        page = (await aside(browser.get, f"/runs/{parent.id}")).text
        assert "Waits for another run to end" in page
        assert page.count(f"/runs/{child['id']}") >= 3  # what it waits for, in the timeline, and what it started
        assert f"/runs?parent={parent.id}&amp;status=SLEEPING" in page
        assert f"/runs/{parent.id}" in (await aside(browser.get, f"/runs/{child['id']}")).text
        tree = (await aside(browser.get, f"/runs/{parent.id}?tree=1")).text
        assert tree.index('class="level-0"') < tree.index('class="level-1"') < tree.rindex(f"/runs/{child['id']}")
        listed = (await aside(browser.get, f"/runs?parent={parent.id}")).text
        assert child["id"] in listed
    family = (await aside(client.get, f"/runs/{child['id']}/children")).json()
    assert ([run["id"] for run in family["above"]], family["items"]) == ([parent.id], [])
    family = (await aside(client.get, f"/runs/{parent.id}/children", params={"limit": 1})).json()
    assert ([run["id"] for run in family["items"]], family["next"]) == ([child["id"]], None)
    assert (family["counts"], family["total"], family["capped"]) == ({"SLEEPING": 1}, 1, False)
    assert (await aside(foreign.get, f"/runs/{parent.id}/children")).status_code == 404
    waiting_for = (await aside(client.get, "/runs", params={"waits_for": child["id"]})).json()["items"]
    assert [run["id"] for run in waiting_for] == [parent.id]
    server = {"REDRIVE_URL": each_site.address, "REDRIVE_TOKEN": each_site.tokens["acme", "STAFF"]}
    store = {"REDRIVE_URL": each_site.url, "REDRIVE_SECRET_KEY": SECRET, "REDRIVE_ENCRYPTION_KEYS": "plain"}
    for env in (server, store):
        runner = CliRunner()
        shown = await aside(runner.invoke, main, ["runs", "tree", child["id"]], env=env)
        lines = shown.stdout.splitlines()
        assert [line.split()[:2] for line in lines] == [[parent.id, "family"], [child["id"], "anything"]], shown.output
        assert lines[1].startswith("  ")
        listed = await aside(runner.invoke, main, ["runs", "list", "--parent", parent.id, "-q"], env=env)
        assert listed.stdout.split() == [child["id"]]
        why = (await aside(runner.invoke, main, ["runs", "why", parent.id], env=env)).stdout.replace("\n", " ")
        assert f"waits for the result of run {child['id']}" in why
    await app.runs.send(child["id"], "go", -1)
    while await app.handle(child["id"]).status() is not RunStatus.DLQ_PENDING:  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.01)
    letter = f"dl-{child['id']}"
    with of_role(each_site, "STAFF") as browser:
        page = (await aside(browser.get, f"/runs/{parent.id}")).text
        notes = Looked(page[page.index('id="now"') : page.index('id="acts"')])
        assert "That run failed and needs a decision: Workflow 'anything' raised NonRetryable" in notes.text
        assert f"/app/admin/dlq/{letter}" in page
    for env in (server, store):
        why = (await aside(CliRunner().invoke, main, ["runs", "why", parent.id], env=env)).stdout.replace("\n", " ")
        assert "The dead letter of that run is open since" in why
        assert f"redrive dlq show {letter}" in why
    await app.dlq.resolve(letter, by="ann")
    with pytest.raises(RunFailed):
        await parent.result(timeout="30s")


async def test_the_command_line_starts_a_new_child_in_the_place_of_one_that_was_cancelled(
    each_site: World, app: Redrive
) -> None:
    parent = await waiting(app, "family")
    (child,) = (await app.runs.list(redrive.RunFilter(parent=parent.id))).items
    await app.runs.cancel(child.id, by="ann")
    while await parent.status() is not RunStatus.DLQ_PENDING:  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.01)
    env = {"REDRIVE_URL": each_site.address, "REDRIVE_TOKEN": each_site.tokens["acme", "ADMIN"]}
    (failed,) = [step for step in (await parent.describe()).steps if step.name == "redrive.start anything"]
    command = ["dlq", "replay", f"dl-{parent.id}", "--from-step", str(failed.index), "--new-operation"]
    for look in (["runs", "why", parent.id], ["dlq", "show", f"dl-{parent.id}"]):
        shown = (await aside(CliRunner().invoke, main, look, env=env)).stdout
        assert f"redrive {' '.join(command)}" in " ".join(shown.split())
        assert f"redrive dlq replay dl-{parent.id}\n" not in shown, "it would be refused"
    replayed = await aside(CliRunner().invoke, main, [*command, "--yes"], env=env)
    assert replayed.exit_code == 0, replayed.output
    while len(found := (await app.runs.list(redrive.RunFilter(parent=parent.id))).items) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await app.runs.send(found[0].id, "go", 7)
    assert await parent.result(timeout="30s") == 7
