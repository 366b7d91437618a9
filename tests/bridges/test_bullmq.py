"""Jobs of real producers become runs, and the ends of runs become the ends of the jobs."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import redis.asyncio
from bridge_kit import Bridging
from producers import VERSIONS, Producer, ProducerError, eventually, producing

from redrive import LetterFilter, Message, Redrive
from redrive.bridges.bullmq import BullMQ
from redrive.bridges.bullmq.queues import read_redis_address
from redrive.core.transitions import AuditWrite
from redrive.errors import ConfigurationError
from redrive.store.accounts import TenantRow

pytestmark = pytest.mark.heavy

MIRRORED = {"originalJobId", "runId", "tenantId", "failedAt", "attemptsMade", "errorMessage"}
"""The fields of a mirrored job beside its payload, as the queue story lists them."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.asyncio(loop_scope="module")
async def test_c1_a_producer_gets_the_result_of_the_run(bridging: Bridging, redis_url: str, version: str) -> None:
    async with bridging(tenant="acme") as bridged, producing(redis_url, version) as producer:
        result = await producer("run", bridged.q, job="execute", data={"n": 4}, options={"jobId": "a"}, limit=20_000)
        assert result == {"twice": 8}
        (run,) = await bridged.runs()
        assert (run.tenant, run.status) == ("acme", "SUCCESS")
        with pytest.raises(ProducerError, match="-4 is too small"):
            await producer("run", bridged.q, job="execute", data={"n": -4}, options={"jobId": "b"}, limit=20_000)


@pytest.mark.asyncio(loop_scope="module")
async def test_c2_the_same_job_id_is_one_run_also_when_bullmq_forgot_the_job(
    bridging: Bridging, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    async with bridging() as bridged:
        for _ in range(2):
            await producer.add(bridged.q, {"n": 1}, "once", removeOnComplete=False)
        await producer.until(bridged.q, "once", "completed")
        await producer("remove", bridged.q, id="once")
        await producer.add(bridged.q, {"n": 1}, "once", removeOnComplete=False)
        again = await producer.until(bridged.q, "once", "completed")
        assert again["returnvalue"] == {"twice": 2}
        assert "asks for a run that has ended" in caplog.text
        await producer("remove", bridged.q, id="once")
        await producer.add(bridged.q, {"n": 2}, "once", removeOnFail=False)
        other = await producer.until(bridged.q, "once", "failed")
        assert "once" in other["failedReason"]
        assert bridged.calls == [1]
        assert len(await bridged.runs()) == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_ids_that_bullmq_counts_name_other_runs_after_redis_lost_its_data(
    bridging: Bridging, producer: Producer, redis_url: str
) -> None:
    async with bridging() as bridged:
        first = await producer.add(bridged.q, {"n": 1})
        await producer.until(bridged.q, first, "completed")
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            await client.delete(*[key async for key in client.scan_iter(f"bull:{bridged.q}:*")])
        second = await producer.add(bridged.q, {"n": 5})
        job = await producer.until(bridged.q, second, "completed")
        assert (first, second, job["returnvalue"]) == ("1", "1", {"twice": 10})


@pytest.mark.asyncio(loop_scope="module")
async def test_c4_a_failed_run_has_one_mirrored_job_with_exactly_the_fields_of_the_story(
    bridging: Bridging, producer: Producer
) -> None:
    async with bridging(tenant="acme") as bridged:
        await producer.add(bridged.q, {"n": -3}, "bad")
        failed = await producer.until(bridged.q, "bad", "failed")
        error = "Workflow execution failed after 1 attempt: ValueError: -3 is too small"
        assert (failed["failedReason"], failed["attemptsMade"], failed["stacktrace"]) == (error, 1, [])
        assert bridged.calls == [-3]  # although the producer's options ask for three attempts
        (letter,) = (await bridged.app.dlq.list()).items
        (mirrored,) = await _wait_for_mirror(producer, bridged.dlq, 1)
        data = mirrored["data"]
        assert (mirrored["id"], mirrored["name"]) == (letter.id, "dead-letter")
        assert data.keys() == {"n", "redrive"} | MIRRORED
        assert (data["n"], data["originalJobId"], data["runId"], data["tenantId"]) == (-3, "bad", "bad", "acme")
        assert (data["attemptsMade"], data["errorMessage"]) == (1, error)
        assert data["failedAt"].endswith("Z")
        assert data["redrive"]["runId"] == letter.run_id
        await bridged.app.dlq.resolve(letter.id, by="ann")
        assert await _wait_for_mirror(producer, bridged.dlq, 0) == []


async def _wait_for_mirror(producer: Producer, queue: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    async def complete() -> bool:
        found[:] = await producer("jobs", queue, states=["waiting"])
        return len(found) == count

    await eventually(complete)
    return found


@pytest.mark.asyncio(loop_scope="module")
async def test_c5_a_retry_in_bullmq_replays_the_letter_and_completes_the_job(
    bridging: Bridging, producer: Producer
) -> None:
    async with bridging() as bridged:
        await producer.add(bridged.q, {"n": -1}, "retried")
        await producer.until(bridged.q, "retried", "failed")
        await producer("retry", bridged.q, id="retried")  # still broken: it fails again, and is replayed once
        await _until_attempts(producer, bridged.q, "retried", 2)
        bridged.broken = False
        await producer("retry", bridged.q, id="retried")
        job = await producer.until(bridged.q, "retried", "completed")
        (letter,) = (await bridged.app.dlq.list()).items
        shown = await bridged.app.dlq.get(letter.id)
        assert (job["returnvalue"], bridged.calls, letter.status) == ({"twice": -2}, [-1] * 3, "RESOLVED")
        assert [replay.by for replay in shown.replays] == [f"bullmq:{bridged.q}"] * 2
        assert await _wait_for_mirror(producer, bridged.dlq, 0) == []


async def _until_attempts(producer: Producer, queue: str, id: str, attempts: int) -> None:
    async def reached() -> bool:
        return bool((await producer.until(queue, id, "failed"))["attemptsMade"] == attempts)

    await eventually(reached)


@pytest.mark.parametrize("mode", ["FROM_FAILED", "FULL"])
@pytest.mark.asyncio(loop_scope="module")
async def test_c5_a_replay_in_redrive_completes_the_failed_job(
    bridging: Bridging, producer: Producer, mode: str
) -> None:
    async with bridging() as bridged:
        await producer.add(bridged.q, {"n": -1}, "replayed")
        await producer.until(bridged.q, "replayed", "failed")
        bridged.broken = False
        (letter,) = (await bridged.app.dlq.list()).items
        await bridged.app.dlq.replay(letter.id, mode, by="ann")
        job = await producer.until(bridged.q, "replayed", "completed")
        assert job["returnvalue"] == {"twice": -2}
        assert (await bridged.app.dlq.get(letter.id)).status == "RESOLVED"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_retry_can_be_refused(bridging: Bridging, producer: Producer) -> None:
    async with bridging(retry="refuse") as bridged:
        await producer.add(bridged.q, {"n": -1}, "refused")
        await producer.until(bridged.q, "refused", "failed")
        await producer("retry", bridged.q, id="refused")
        await _until_attempts(producer, bridged.q, "refused", 2)
        assert bridged.calls == [-1]


@pytest.mark.asyncio(loop_scope="module")
async def test_bad_jobs_fail_at_once_with_the_reason_and_start_nothing(bridging: Bridging, producer: Producer) -> None:
    async with bridging(workflow=None, workflows=["execute", "missing"], tenant_field="tenantId",
                        input=lambda data: {"n": data["n"]}) as bridged:  # fmt: skip
        await bridged.app.runtime.store.accounts.put_tenant(TenantRow(tenant="acme"), _audit())
        bad = {
            "type": ({"n": "many", "tenantId": "acme"}, "execute", "n: "),
            "field": ({"tenantId": "acme"}, "execute", "the job's data cannot be read: KeyError: 'n'"),
            "tenant": ({"n": 1, "tenantId": "other"}, "execute", "'other', which is not a registered tenant"),
            "none": ({"n": 1}, "execute", "None, which is not a registered tenant"),
            "unlisted": ({"n": 1, "tenantId": "acme"}, "steal", "this queue starts execute, missing"),
            "unknown": ({"n": 1, "tenantId": "acme"}, "missing", "missing"),
            "array": ([1], "execute", "not a registered tenant"),
        }
        for id, (data, name, _) in bad.items():
            await producer.add(bridged.q, data, id, job=name)
        await producer.add(bridged.q, {"n": 1, "tenantId": "acme"}, "good")
        for id, (_, _, reason) in bad.items():
            job = await producer.until(bridged.q, id, "failed")
            assert reason in job["failedReason"], id
            assert job["attemptsMade"] == 1
        await producer.until(bridged.q, "good", "completed")
        assert [run.tenant for run in await bridged.runs()] == ["acme"]


def _audit() -> AuditWrite:
    return AuditWrite(event="tenant_created", tenant="acme", by="test", subject="acme", token="t")


@pytest.mark.asyncio(loop_scope="module")
async def test_an_accepted_job_completes_before_its_run_ends(bridging: Bridging, producer: Producer) -> None:
    async with bridging(complete="accepted") as bridged:
        await producer.add(bridged.q, {"n": 3}, "quick")
        job = await producer.until(bridged.q, "quick", "completed")
        (run,) = await bridged.runs()
        assert job["returnvalue"] == {"runId": run.id, "new": True}


@pytest.mark.asyncio(loop_scope="module")
async def test_results_can_be_left_out(bridging: Bridging, producer: Producer) -> None:
    async with bridging(results="none") as bridged:
        await producer.add(bridged.q, {"n": 3}, "quiet")
        assert (await producer.until(bridged.q, "quiet", "completed"))["returnvalue"] is None


@pytest.mark.asyncio(loop_scope="module")
async def test_the_last_hundred_completed_jobs_are_kept_and_failed_ones_for_good(
    bridging: Bridging, producer: Producer
) -> None:
    async with bridging(concurrency=20) as bridged:
        jobs = [
            {"name": "execute", "data": {"n": n}, "opts": {"jobId": f"j{n}"}} for n in (*range(-5, 0), *range(1, 131))
        ]
        await producer("addBulk", bridged.q, jobs=jobs)
        counts = await eventually(lambda: producer.settled(bridged.q))
        assert len(await bridged.runs()) == 135
        assert (counts["completed"], counts["failed"]) == (100, 5)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_redis_that_may_remove_jobs_is_refused(redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            app = Redrive("sqlite:///:memory:")
            app.source("jobs", BullMQ(redis_url).consume("evicted", workflow="execute"))
            async with app.client():
                with pytest.raises(ConfigurationError, match=r"eviction policy allkeys-lru.*allow_eviction=True"):
                    await app.serve_sources()
            address = BullMQ(redis_url, allow_eviction=True)._address("evicted")
            await (await address.connect()).aclose()
        finally:
            await client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.asyncio(loop_scope="module")
async def test_progress_shows_the_step_of_a_run(bridging: Bridging, producer: Producer) -> None:
    async with bridging(progress="100ms") as bridged:
        await producer.add(bridged.q, {"n": 0}, "watched")

        async def working() -> Any:
            job = await producer.until(bridged.q, "watched", "delayed")
            return job if job["progress"].get("step") else None

        job = await eventually(working)
        (run,) = await bridged.runs()
        assert job["progress"] == {"runId": run.id, "status": "RUNNING", "step": "double", "stepsDone": 0}
        bridged.release.set()
        await producer.until(bridged.q, "watched", "completed")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_resync_puts_lost_jobs_of_letters_back(bridging: Bridging, producer: Producer, redis_url: str) -> None:
    async with bridging() as bridged:
        for n in (-1, -2):
            await producer.add(bridged.q, {"n": n}, f"lost{n}")
        await _wait_for_mirror(producer, bridged.dlq, 2)
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            await client.delete(*[key async for key in client.scan_iter(f"bull:{bridged.dlq}:*")])
        (sink,) = [each.sink for name, each in bridged.app.registered_sinks.items() if name == "dlq"]
        assert await sink.resync() == 2  # type: ignore[attr-defined]
        back = await producer("jobs", bridged.dlq, states=["waiting"])
        assert sorted(job["data"]["errorMessage"][-15:] for job in back) == ["-1 is too small", "-2 is too small"]
        # Their own data is lost with the jobs, so the payload is the redacted input of the run.
        assert len((await bridged.app.dlq.list(LetterFilter(status="OPEN"))).items) == 2


@pytest.mark.asyncio(loop_scope="module")
async def test_messages_become_jobs_once(redis_url: str, producer: Producer, bridging: Bridging) -> None:
    async with bridging() as bridged:
        sink = bridged.bull.jobs(bridged.dlq)
        message = Message(
            id="msg-1", topic="orders.paid", text=json.dumps({"text": "żółć\0"}), key="k", tenant="acme",
            committed_at=0, run_id="r", correlation_id="c",
        )  # fmt: skip
        for _ in range(2):
            await sink.deliver(message)
        await sink.close()
        (job,) = await producer("jobs", bridged.dlq, states=["waiting"])
        assert job == {"id": "msg-1", "name": "orders.paid", "data": {"text": "żółć\0"}}


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "needs workflow=, or workflows="),
        ({"workflow": "a", "workflows": ["b"]}, "give one of them"),
        ({"workflow": "a", "complete": "later"}, "complete of a consumer is 'later': give ended or accepted"),
        ({"workflow": "a", "tenant": "t", "tenant_field": "f"}, "not both"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        BullMQ("redis://localhost").consume("q", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "fault"),
    [
        ({"REDIS_URL": "http://secret@host"}, "begins with redis://"),
        ({"REDIS_PORT": "70000"}, "REDIS_PORT is '70000': give a number from 1 to 65535"),
        ({"REDIS_DB": "x"}, "REDIS_DB is 'x'"),
        ({"REDIS_TLS": "perhaps"}, "REDIS_TLS is 'perhaps': give yes or no"),
    ],
)
def test_a_wrong_address_is_refused(
    environment: dict[str, str], fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=fault) as refused:
        BullMQ()
    assert "secret" not in str(refused.value)


def test_the_parts_of_an_address_become_a_url() -> None:
    parts = {"REDIS_HOST": "queue.internal", "REDIS_PASSWORD": "p@ss/word", "REDIS_DB": "3", "REDIS_TLS": "yes"}
    assert read_redis_address(None, parts) == "rediss://:p%40ss%2Fword@queue.internal:6379/3"
    assert read_redis_address(None, {}) == "redis://localhost:6379/0"
