"""Remote steps that ordinary processors of BullMQ execute, on Node: `bull.steps`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cluster
import node
import pytest
import pytest_asyncio
import redis.asyncio
from producers import VERSIONS, Producer, eventually

from redrive import Redrive, RetryPolicy
from redrive.bridges.bullmq import BullMQ
from redrive.bridges.bullmq import steps as module
from redrive.errors import ConfigurationError, RunFailed

pytestmark = [pytest.mark.heavy, pytest.mark.asyncio(loop_scope="module")]
PATIENCE = 60


class Mail:
    """An app whose remote steps are jobs of the queue `q`."""

    def __init__(self, store: str, redis_url: str, name: str) -> None:
        self.store, self.redis, self.q = store, redis_url, f"mail-{name}"
        self.app = Redrive(store, lease="2s", chores="200ms")
        soon, late = (RetryPolicy(max_retries=2, delays=[delay]) for delay in ("300ms", "30m"))

        @self.app.step(remote=self.q, retry=soon, timeout="40s")
        async def send(kind: str, to: str) -> dict[str, str]: ...

        @self.app.step(remote=self.q, retry=late)
        async def send_later(kind: str, to: str) -> dict[str, str]: ...

        @self.app.workflow
        async def notify(kind: str, to: str, later: bool = False) -> dict[str, str]:
            return await (send_later if later else send)(kind, to)

        self.notify = notify

    @asynccontextmanager
    async def bridged(self) -> AsyncIterator[None]:
        """Serve the queue from this process."""
        serving = asyncio.create_task(self.app.serve_sources())
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def bridge(self) -> subprocess.Popen[bytes]:
        """Serve the queue from another process, as users start it."""
        command = ["bridge", "bullmq", "--steps", self.q, "--redis", self.redis, "--url", self.store]
        started = await asyncio.to_thread(
            subprocess.Popen, [sys.executable, "-m", "redrive", *command],
            env={**os.environ, "REDRIVE_LEASE": "2s"}, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert started.stdout is not None
        assert b"serving" in await asyncio.to_thread(started.stdout.readline)
        return started


class Processor:
    """A process with a worker of BullMQ. `begun` has a record of each job that it began."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.begun: list[dict[str, Any]] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.begun.append(json.loads(line))

    def of(self, run: str) -> list[dict[str, Any]]:
        return [each for each in self.begun if each["data"]["redrive"]["runId"] == run]

    def end_jobs(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def processing(redis_url: str, queue: str, version: str = VERSIONS[-1]) -> AsyncIterator[Processor]:
    folder = await asyncio.to_thread(node.package, "bullmq", version, "ioredis@5")
    process = await asyncio.create_subprocess_exec(
        str(node.binary()), str(Path(__file__).with_name("processor.mjs")), str(folder), redis_url, queue,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    processor = Processor(process)
    try:
        yield processor
    finally:
        await processor.close()


@pytest_asyncio.fixture(loop_scope="module")
async def mail(redis_url: str, tmp_path: Path) -> AsyncIterator[Mail]:
    made = Mail(f"sqlite:///{tmp_path}/runs.db", redis_url, tmp_path.name)
    made.app.source("mail", BullMQ(redis_url).steps(made.q))
    async with made.app:
        yield made


async def _fail(handle: Any) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        await handle.result(f"{PATIENCE}s")
    return caught.value


@pytest.mark.parametrize("version", VERSIONS)
async def test_processors_execute_remote_steps(mail: Mail, producer: Producer, version: str) -> None:
    """The id names run, step and attempt; a retry is a delayed job; the policy of the step decides."""
    async with mail.bridged(), processing(mail.redis, mail.q, version) as processor:
        fine = await mail.notify.start("echo", "ann@example.org", tenant="acme")
        busy = await mail.notify.start("busy", "bob@example.org")
        never = await mail.notify.start("never", "none")
        unfit = await mail.notify.start("number", "x")
        assert await fine.result(f"{PATIENCE}s") == {"to": "ann@example.org"}
        assert await busy.result(f"{PATIENCE}s") == {"to": "bob@example.org"}
        assert "no such address" in str(await _fail(never))
        assert "expected" in str(await _fail(unfit))
        (only,) = processor.of(fine.id)
        about = only["data"]["redrive"]
        assert (only["id"], only["name"], only["attempts"], only["delay"]) == (f"{fine.id}-0-1", "send", 1, 0)
        assert only["data"] == {"kind": "echo", "to": "ann@example.org", "redrive": about}
        assert (about["tenant"], about["attempt"], about["workflow"]) == ("acme", 1, "notify")
        first, second = processor.of(busy.id)
        assert (first["id"], second["id"]) == (f"{busy.id}-0-1", f"{busy.id}-0-2")
        assert (first["delay"], second["delay"] > 0) == (0, True)
        assert first["data"]["redrive"]["idempotencyKey"] == second["data"]["redrive"]["idempotencyKey"]
        assert len(processor.of(never.id)) == 1  # UnrecoverableError, although the policy retries others
        failed = await producer.job(mail.q, first["id"])
        assert (failed["state"], failed["failedReason"]) == ("failed", "the mail server is busy")
        await eventually(lambda: _is_gone(producer, mail.q, only["id"]))
        codes = [each.code for each in (await mail.app.dlq.list()).items]
        assert sorted(codes) == ["non_retryable", "validation_failed"]


async def _is_gone(producer: Producer, queue: str, id: str) -> bool:
    return await producer.job(queue, id) is None


async def test_a_waiting_retry_is_a_delayed_job_until_its_run_is_cancelled(
    mail: Mail, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that Redis has lost is added again."""
    monkeypatch.setattr(module, "_BEAT", 0.1)
    async with processing(mail.redis, mail.q), mail.bridged():
        handle = await mail.notify.start("busy", "bob@example.org", later=True)
        id = f"{handle.id}-0-2"
        await producer.until(mail.q, id, "delayed")
        async with redis.asyncio.Redis.from_url(mail.redis) as client:
            await client.delete(f"bull:{mail.q}:{id}", f"bull:{mail.q}:delayed")
        await producer.until(mail.q, id, "delayed")
        (step,) = [each for each in (await mail.app.runs.get(handle.id)).steps if each.name == "send_later"]
        assert step.status == "RETRYING"
        await handle.cancel()
        await eventually(lambda: _is_gone(producer, mail.q, id))


async def crash(mail: Mail, redis_url: str, kills: Iterable[str]) -> None:
    """Kill the bridge while a processor works: the job that ends meanwhile is the answer of the next bridge."""
    bridge = await mail.bridge()
    try:
        async with processing(redis_url, mail.q) as processor:
            handle = await mail.notify.start("hold", "ann@example.org")
            await eventually(lambda: _has_begun(mail, handle.id))
            for _ in kills:
                bridge.kill()
                await asyncio.to_thread(bridge.communicate)
                processor.end_jobs()
                bridge = await mail.bridge()
            assert await handle.result(f"{PATIENCE}s") == {"to": "ann@example.org"}
            assert [each["id"] for each in processor.begun] == [f"{handle.id}-0-1"]
    finally:
        bridge.kill()
        await asyncio.to_thread(bridge.communicate)


async def _has_begun(mail: Mail, run: str) -> bool:
    return any(each.heartbeat is not None for each in (await mail.app.runs.get(run)).steps)


async def test_a_killed_bridge_finds_the_job_again(mail: Mail, redis_url: str) -> None:
    await crash(mail, redis_url, ["once"])


@pytest.mark.slow
async def test_a_killed_bridge_finds_the_job_again_on_postgresql(redis_url: str, tmp_path: Path) -> None:
    cluster.need_postgres()
    async with cluster.fresh(cluster.POSTGRES[-1]) as url:
        made = Mail(url, redis_url, f"{tmp_path.name}-pg")
        async with made.app:
            await crash(made, redis_url, ["once"])


async def test_a_step_that_workers_encrypted_fails(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_sealed", lambda _: True)
    async with mail.bridged():
        assert "have no keys" in str(await _fail(await mail.notify.start("echo", "ann@example.org")))


async def test_inputs_of_an_encrypted_store_are_not_written_to_redis(tmp_path: Path, redis_url: str) -> None:
    app = Redrive(f"sqlite:///{tmp_path}/runs.db", encryption_keys="A" * 43 + "=")
    app.source("mail", BullMQ(redis_url).steps("sealed"))
    async with app.client():
        with pytest.raises(ConfigurationError, match="allow_clear"):
            await app.serve_sources()
