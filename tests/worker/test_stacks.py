"""Displayed stacks: they begin with the user's code, not with the worker's call."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from file_worker import at_work, make_app

from redrive import Redrive, RetryPolicy, RunFailed
from redrive.app import Workflow

ONCE = RetryPolicy(max_retries=0)


def register(app: Redrive) -> dict[str, Workflow[..., Any, Any]]:
    """Register failing code for each way in which a worker calls code; return it by function name."""

    @app.step(retry=ONCE)
    async def at_once() -> None:
        json.loads("{")

    @app.step(retry=ONCE)
    async def later() -> None:
        await asyncio.sleep(0)
        raise ValueError("later")

    @app.step(retry=ONCE)
    async def because() -> None:
        await asyncio.sleep(0)
        try:
            json.loads("{")
        except ValueError as error:
            raise KeyError("because") from error

    @app.step(retry=ONCE)
    def in_a_thread() -> None:
        raise ValueError("in a thread")

    steps = {"at_once": at_once, "later": later, "because": because, "in_a_thread": in_a_thread}

    @app.workflow
    async def calls(name: str) -> None:
        await steps[name]()

    @app.workflow
    async def body(name: str) -> None:
        raise ValueError(name)

    @app.workflow
    def blocking_body(name: str) -> None:
        raise ValueError(name)

    return {**dict.fromkeys(steps, calls), "body": body, "blocking_body": blocking_body}


@pytest.mark.parametrize("where", ["at_once", "later", "because", "in_a_thread", "body", "blocking_body"])
async def test_a_stack_begins_where_the_users_code_does(tmp_path: Path, where: str) -> None:
    app = make_app(tmp_path)
    workflows = register(app)
    async with at_work(app):
        with pytest.raises(RunFailed):
            await (await workflows[where].start(where)).result(timeout=20)
        (letter,) = (await app.dlq.list()).items
        stack = (await app.dlq.get(letter.id)).stack
    last = stack.split("Traceback (most recent call last):\n")[-1]
    first = last.splitlines()[0]
    assert first.startswith(f'  File "{__file__}"')
    assert first.endswith(f" in {where}")
    assert "redrive/worker" not in stack


async def test_an_engine_error_keeps_its_stack(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.step(retry=ONCE)
    async def odd() -> object:
        return object()

    @app.workflow
    async def shows() -> None:
        await odd()

    async with at_work(app):
        with pytest.raises(RunFailed):
            await (await shows.start()).result(timeout=20)
        (letter,) = (await app.dlq.list()).items
        stack = (await app.dlq.get(letter.id)).stack
    assert "redrive/core/payload" in stack
