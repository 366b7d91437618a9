"""Tasks on pages without JavaScript and from the command line, with a real worker on the same store."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal

import pytest
from click.testing import CliRunner
from pages_kit import of_role, once
from server_kit import SECRET, World

import redrive
from redrive import Redrive, RunHandle
from redrive.cli import main
from redrive.desk.models import Task


@dataclass
class Terms:
    cents: int
    due: date
    carrier: Literal["post", "courier"]
    level: Literal["low", "high"] = "low"
    voucher: bool = False
    share: Decimal | None = None
    remark: str | None = None
    limit: int | None = 5


def make_app(url: str) -> Redrive:
    app = Redrive(url, secret_key=SECRET, encryption_keys="plain")

    @app.workflow
    async def refund_once(to: str = "STAFF") -> Any:
        shown = {"order": "A-1", "api_key": "k3y-s3cr3t"}
        answer = await redrive.ask("Refund A-1?", options=["approve", "reject"], show=shown, to=to, timeout="3d")
        return [answer.value, answer.note]

    @app.workflow
    async def terms() -> Any:
        found = (await redrive.ask("Which terms?", form=Terms)).value
        texts = [found.due.isoformat(), found.level, found.voucher, str(found.share), found.remark]
        return [found.cents, *texts, found.limit]

    return app


@pytest.fixture
async def app(each_site: World) -> AsyncIterator[Redrive]:
    async with make_app(each_site.url) as opened:
        yield opened


async def asked(app: Redrive, workflow: str, **input: Any) -> tuple[RunHandle[Any], Task]:
    """Start a run and return it with its open task."""
    handle = await app.find(workflow).start(tenant="acme", **input)
    where = redrive.TaskFilter(run_id=handle.id, status="OPEN")
    while not (found := (await app.tasks.list(where)).items):  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.01)
    return handle, found[0]


async def test_a_task_is_answered_on_its_page_without_scripts(each_site: World, app: Redrive) -> None:
    handle, task = await asked(app, "refund_once")
    with of_role(each_site, "STAFF") as browser, of_role(each_site, "VIEWER") as viewer:
        listed = (await asyncio.to_thread(browser.get, "/tasks")).text
        assert "Refund A-1?" in listed
        assert '<span class="sr">' in listed
        page = (await asyncio.to_thread(browser.get, f"/tasks/{task.id}")).text
        assert "k3y-s3cr3t" not in page
        assert "api_key" in page
        assert re.findall(r'name="option" value="(\w+)"', page) == ["approve", "reject"]
        assert f"/tasks/{task.id}" in (await asyncio.to_thread(browser.get, f"/runs/{handle.id}")).text
        seen = (await asyncio.to_thread(viewer.get, f"/tasks/{task.id}")).text
        assert 'name="option"' not in seen
        assert (await app.tasks.get(task.id)).is_open, "looking decides nothing"
        assigned = {"once": once(page), "do": "me"}
        assert (await asyncio.to_thread(browser.post, f"/tasks/{task.id}/assign", data=assigned)).status_code == 303
        mine = (await asyncio.to_thread(browser.get, "/tasks", params={"view": "mine"})).text
        assert f"/tasks/{task.id}" in mine
        form = {"once": "0123456789abcdef", "option": "approve", "note": "checked"}
        for _ in range(2):
            answer = await asyncio.to_thread(browser.post, f"/tasks/{task.id}/answer", data=form)
            assert answer.status_code == 303, answer.text
        assert await handle.result(timeout="30s") == ["approve", "checked"]
        late = {"once": "0123456789abcdee", "option": "reject", "note": "kept words"}
        with of_role(each_site, "ADMIN") as admin:
            refused = await asyncio.to_thread(admin.post, f"/tasks/{task.id}/answer", data=late)
        assert refused.status_code == 409
        assert "approve" in refused.text
        history = (await asyncio.to_thread(browser.get, "/tasks", params={"view": "history"})).text
        assert f"/tasks/{task.id}" in history
        log = (await asyncio.to_thread(browser.get, "/audit", params={"event": "task."})).text
        assert f'href="/app/tasks/{task.id}"' in log
        assert "<dd>Staff</dd>" in page
        polish = await asyncio.to_thread(browser.get, f"/tasks/{task.id}", headers={"Accept-Language": "pl"})
        assert "Odpowiedź" in polish.text


async def test_a_form_is_made_from_the_type_of_the_answer(each_site: World, app: Redrive) -> None:
    handle, task = await asked(app, "terms")
    with of_role(each_site, "STAFF") as browser:
        page = (await asyncio.to_thread(browser.get, f"/tasks/{task.id}")).text
        names = ["f:cents", "f:due", "f:carrier", "f:level", "f:voucher", "f:share", "f:remark", "f:limit"]
        assert re.findall(r'name="(f:[^"]*)"', page) == names
        assert re.search(r'name="f:due" type="date"', page)
        assert '<select name="f:carrier" required><option value="">' in page, "nothing is chosen for the user"
        assert '<select name="f:level"><option value="&#34;low&#34;" selected>' in page
        assert '<input name="f:share" inputmode="decimal" placeholder="12.50">' in page
        assert '<input name="f:remark">' in page
        form = {"page": f"/app/tasks/{task.id}", "f:due": "2026-12-01", "f:level": '"high"', "f:cents": "70"}
        for number, (wrong, fault) in enumerate((
            ({"f:cents": "many"}, "cents: expected a whole number, found text"),
            ({"f:due": "1 December"}, "due: expected a value such as 2026-01-31, found other text"),
            ({"f:share": "half"}, "share: expected a value such as 12.50, found other text"),
            ({"f:share": "1,000"}, "share: expected a value such as 12.50, found other text"),  # one, or a thousand
            ({"f:cents": "2,000"}, "cents: expected a whole number, found text"),
            ({}, 'carrier: expected "post" or "courier", but the field is missing'),
        )):  # fmt: skip
            given = {"once": f"fedcba987654320{number}", **form, "f:carrier": '"post"', **wrong} if wrong else form
            bad = await asyncio.to_thread(browser.post, f"/tasks/{task.id}/answer", data=given)
            assert bad.status_code == 422
            assert fault in html.unescape(bad.text)
        form |= {
            "once": "fedcba9876543210",
            "f:voucher": "yes",
            "f:carrier": '"post"',
            "f:share": "12,50",
            "f:limit": "",
        }
        answer = await asyncio.to_thread(browser.post, f"/tasks/{task.id}/answer", data=form)
        assert answer.status_code == 303, answer.text
    assert await handle.result(timeout="30s") == [70, "2026-12-01", "high", True, "12.50", None, None]


async def test_the_command_line_answers_on_a_server_and_on_a_store(each_site: World, app: Redrive) -> None:
    runner = CliRunner()
    server = {"REDRIVE_URL": each_site.address, "REDRIVE_TOKEN": each_site.tokens["acme", "STAFF"]}
    store = {"REDRIVE_URL": each_site.url, "REDRIVE_SECRET_KEY": SECRET, "REDRIVE_ENCRYPTION_KEYS": "plain"}
    for env in (server, store):

        async def run(*arguments: str, env: dict[str, str] = env) -> Any:
            return await asyncio.to_thread(runner.invoke, main, arguments, env=env)

        handle, task = await asked(app, "refund_once")
        why = (await run("runs", "why", handle.id)).stdout.replace("\n", " ")
        assert "waits for an answer to 'Refund A-1?'" in why
        assert f"redrive tasks show {task.id}" in why
        listed = json.loads((await run("tasks", "list", "--json", "--run", handle.id)).stdout)
        assert [each["id"] for each in listed["items"]] == [task.id]
        shown = (await run("tasks", "show", task.id)).stdout
        assert "approve, reject" in shown
        assert "k3y-s3cr3t" not in shown
        assert (await run("tasks", "assign", task.id)).exit_code == 0
        assert (await run("tasks", "list", "--mine", "-q", "--run", handle.id)).stdout.split() == [task.id]
        assert (await run("tasks", "comment", task.id, "soon")).exit_code == 0
        history = (await run("tasks", "show", task.id)).stdout.splitlines()[-2:]
        assert re.search(r"was assigned by .+: .+", history[0])
        assert re.search(r"was commented on by .+: soon$", history[1])
        assert "Nothing was changed" in (await run("tasks", "answer", task.id, "reject", "--dry-run")).stdout
        assert (await run("tasks", "answer", task.id, "perhaps")).exit_code != 0
        assert (await run("tasks", "answer", task.id)).exit_code == 2
        assert (await run("tasks", "answer", task.id, "reject", "--note", "no")).exit_code == 0
        again = await run("tasks", "answer", task.id, "approve")
        assert again.exit_code == 4, again.output
        assert await handle.result(timeout="30s") == ["reject", "no"]
    handle, task = await asked(app, "terms")
    data = json.dumps({"cents": 1, "due": "2026-12-01", "carrier": "post", "remark": "soon"})
    assert (
        await asyncio.to_thread(runner.invoke, main, ["tasks", "answer", task.id, "--data", data], env=store)
    ).exit_code == 0
    assert await handle.result(timeout="30s") == [1, "2026-12-01", "low", False, "None", "soon", 5]
