"""Real processes, killed between commit and delivery, and between delivery and its record."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import cluster
import pytest
from outbox_node import COUNT, build

from redrive import OutboxFilter

PATIENCE = 60
"""Seconds to wait: less than three attempts may take, so that only the lease of a dead worker ends its claims."""


@pytest.fixture(params=["sqlite", cluster.POSTGRES[0]])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/box.db"
        return
    cluster.need_postgres()
    async with cluster.fresh(request.param) as fresh:
        yield fresh


def start(url: str, file: Path, who: str) -> subprocess.Popen[str]:
    node = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("outbox_node.py")), url, str(file), who],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    with node.stdout as said:
        assert said.readline() == "up\n"
    return node


async def until(condition: Any, what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - other processes ring no bell here
            await asyncio.sleep(0.05)
    assert what


async def test_nodes_that_are_killed_lose_no_message_and_keep_the_order(url: str, tmp_path: Path) -> None:
    file = tmp_path / "arrived"
    file.touch()
    app, count = build(url, str(file), "test")
    async with app.client():
        await count.start(0)  # type: ignore[attr-defined]
        nodes = [await asyncio.to_thread(start, url, file, "a")]

        def lines() -> list[list[str]]:
            whole = file.read_text(encoding="utf-8").splitlines(keepends=True)
            return [line.split() for line in whole if line.endswith("\n")]

        async def some(more: int) -> None:
            async def arrived() -> bool:
                return len(lines()) >= more

            await until(arrived, f"{more} messages arrived")

        await some(5)
        nodes[0].kill()  # with messages committed and not delivered, or delivered and not recorded
        nodes[0].wait()
        nodes += [await asyncio.to_thread(start, url, file, who) for who in ("b", "c")]
        await some(15)
        nodes[1].kill()
        nodes[1].wait()

        async def all_delivered() -> bool:
            left = await app.outbox.list(OutboxFilter(status="PENDING"), limit=1)
            done = await app.outbox.list(OutboxFilter(status="DELIVERED"), limit=500)
            return not left.items and len(done.items) == COUNT

        try:
            await until(all_delivered, "everything is delivered")
        finally:
            nodes[2].terminate()
            nodes[2].wait()
    first_seen: dict[str, int] = {}
    for _, number, id in lines():
        first_seen.setdefault(id, int(number))
    assert sorted(first_seen.values()) == list(range(COUNT))
    for key in range(4):
        mine = [number for number in first_seen.values() if number % 4 == key]
        assert mine == sorted(mine)
