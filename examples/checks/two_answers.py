"""Over HTTP, two people answer one task at once: one wins, the other learns who. A cancelled run has no open task."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any
from urllib import request
from urllib.error import HTTPError

import kit
import work

from redrive import AuditFilter, RunHandle, TaskFilter
from redrive.desk.models import Task

PREFIX = "/api/v1"


def make_token(role: str, tenant: str = "default") -> str:
    command = [sys.executable, "-m", "redrive", "tokens", "create", "--role", role, "--tenant", tenant, "--name", role]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def post(address: str, token: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    """Send a request as a person with this token; return the status and the answer."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    sent = request.Request(address + PREFIX + path, json.dumps(body).encode(), headers, method="POST")
    try:
        with request.urlopen(sent, timeout=kit.PATIENCE) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        return refused.code, json.load(refused)


async def ask(order: str) -> tuple[RunHandle[str], Task]:
    handle = await work.refund.start(order)

    async def is_asked() -> bool:
        return bool((await work.app.tasks.list(TaskFilter(run_id=handle.id, status="OPEN"))).items)

    await kit.until(is_asked, "a person is asked")
    (task,) = (await work.app.tasks.list(TaskFilter(run_id=handle.id))).items
    return handle, task


async def check(workers: kit.Workers) -> str:
    handle, task = await ask("A-1")
    path = f"/tasks/{task.id}/answer"
    with kit.serve() as address:
        tokens = {role: make_token(role) for role in ("VIEWER", "STAFF", "ADMIN", "OWNER")}
        foreign = make_token("ADMIN", "other")

        async def answer(token: str, value: str) -> tuple[int, dict[str, Any]]:
            return await asyncio.to_thread(post, address, token, path, {"value": value})

        assert [(await answer(tokens[role], "approve"))[0] for role in ("VIEWER", "STAFF")] == [403, 403]
        assert (await answer(foreign, "approve"))[0] == 404
        both = await asyncio.gather(answer(tokens["ADMIN"], "approve"), answer(tokens["OWNER"], "reject"))
        (won,), (lost,) = ([body for code, body in both if code == wanted] for wanted in (200, 409))
        assert won["answer"] in lost["detail"], lost
        assert won["answered_by"].replace(":", " ") in lost["detail"], lost
    assert await handle.result(timeout=kit.PATIENCE) == won["answer"]
    assert work.list_calls("A-1 refund") == ["answered"]
    lines = [line async for line in work.app.audit.export(AuditFilter(subject=task.id, event="task.answered"))]
    assert len(lines) == 1

    handle, task = await ask("A-2")
    await handle.cancel(by="ann", reason="ordered twice")
    assert not (await work.app.tasks.list(TaskFilter(status="OPEN"))).items
    closed = await work.app.tasks.get(task.id)
    assert closed.status == "WITHDRAWN"
    return "200 and 409 with the first answer; one audit line; 403, 404; a cancelled run has no open task"


if __name__ == "__main__":
    kit.main(check)
