"""Processes that are killed between the commit of a failure and the mail about it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import cluster
import pytest
from notify_kit import OPS, Postbox
from notify_node import COUNT, build

CAUSES = ("alpha", "beta", "gamma", "delta", "epsilon")


@pytest.fixture(params=["sqlite", cluster.POSTGRES[0]])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/box.db"
        return
    cluster.need_postgres()
    async with cluster.fresh(request.param) as fresh:
        yield fresh


async def until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - other processes ring no bell here
            await asyncio.sleep(0.05)


async def test_a_process_killed_between_commit_and_delivery_loses_no_notification(url: str, box: Postbox) -> None:
    assert len(CAUSES) == COUNT
    node = [sys.executable, str(Path(__file__).with_name("notify_node.py")), url, box.url]
    app, fulfil = build(url, box.url)
    async with app.client():
        for cause in CAUSES:
            await fulfil.start(cause)  # type: ignore[attr-defined]
        for where in ("committed", "told"):
            dead = await asyncio.create_subprocess_exec(*node, where, stdout=subprocess.DEVNULL)
            try:
                assert await asyncio.wait_for(dead.wait(), 60) == -signal.SIGKILL
            finally:
                if dead.returncode is None:
                    dead.kill()
        assert (await app.dlq.list()).items, "the failures were committed"
        told_before = len(box.mails)
        well = await asyncio.create_subprocess_exec(*node, "nowhere", stdout=subprocess.DEVNULL)
        try:
            await until(lambda: len({mail["Message-ID"] for mail in box.to(OPS)}) == COUNT)
        finally:
            well.terminate()
            await well.wait()
        assert told_before < COUNT, "the killed processes must leave work"
        for cause in CAUSES:
            (mail,) = {
                str(mail["Message-ID"]): mail
                for mail in box.to(OPS)
                if f"ValueError: cause {cause}" in mail.get_content()
            }.values()
            assert "happened" not in mail.get_content(), "each failure is notified once and counted once"
