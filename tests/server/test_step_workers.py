"""Step workers: real servers and workers in any language, over HTTP, on each store."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from server_kit import access_of, opened
from test_remote_workers import Remote, remote

from redrive import Redrive, RetryPolicy, RunFailed
from redrive.cli.doctor import _check_workers
from redrive.cli.runs.explain import explain_run
from redrive.core.roles import Role
from redrive.store.accounts import NewToken

__all__ = ["remote"]
pytestmark = pytest.mark.heavy
JSON = {"Content-Type": "application/json"}
AT_ONCE = RetryPolicy(max_retries=5, delays=["10ms"])


class StepWorker:
    """A step worker as somebody would write it in another language: plain HTTP requests."""

    def __init__(self, remote: Remote, queue: str, token: str | None = None, **more: Any) -> None:
        self.queue = queue
        self.server = remote.process
        with remote.http(token) as client:
            answer = client.post("register", json={"name": f"{queue}-worker", "queues": [queue], **more})
        assert answer.status_code == 200, answer.text
        self.id = answer.json()["worker"]
        self.client = remote.http(token, worker=self.id)

    def post(self, path: str, expected: int = 200, **body: Any) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == expected, (answer.text, self.server.lines[-30:])
        return answer.json()

    def poll(self, *steps: str, wait_ms: int = 10_000, **more: Any) -> list[dict[str, Any]]:
        found = self.post("steps/poll", queue=self.queue, steps=list(steps), wait_ms=wait_ms, **more)
        return list(found["tasks"])

    def one(self, *steps: str, **more: Any) -> dict[str, Any]:
        (task,) = self.poll(*steps, **more)
        return task

    def complete(self, task: dict[str, Any], output: Any, expected: int = 200) -> Any:
        return self.post(f"steps/{task['ticket']}/complete", expected, output=output)

    def fail(self, task: dict[str, Any], error: Any, expected: int = 200, **more: Any) -> Any:
        return self.post(f"steps/{task['ticket']}/fail", expected, error=error, **more)

    def close(self) -> None:
        try:
            self.post("retire")
        finally:
            self.client.close()


@contextlib.contextmanager
def step_worker(remote: Remote, queue: str, **more: Any) -> Iterator[StepWorker]:
    worker = StepWorker(remote, queue, **more)
    try:
        yield worker
    finally:
        worker.close()


@pytest.mark.parametrize("place", ["beside the store", "over HTTP"])
async def test_a_step_worker_executes_steps_of_a_workflow(remote: Remote, place: str) -> None:
    app = Redrive(remote.world.url) if place == "beside the store" else remote.app()
    queue = place.replace(" ", "-")

    @app.step(remote=queue, retry=AT_ONCE, timeout="30s")
    async def render(order: dict[str, int]) -> str: ...

    @app.workflow(name=f"print-{queue}")
    async def print_order(order: dict[str, int]) -> list[str]:
        first = await render(order)
        return [first, await render({"cents": 2})]

    async with app:
        handle = await print_order.start({"cents": 1})

        def work() -> None:
            with step_worker(remote, queue) as worker:
                task = worker.one("render")
                assert task["input"] == {"order": {"cents": 1}}
                assert (task["run_id"], task["step"], task["attempt"]) == (handle.id, "render", 1)
                assert task["timeout_ms"] == 30_000
                error = {"type": "Oops", "message": "no paper", "status": 503}
                refused = worker.fail(task, error, retry_after_ms=300)
                assert (refused["status"], refused["next_in_ms"] >= 300) == ("RETRYING", True)
                again = worker.one("render")
                assert (again["attempt"], again["idempotency_key"]) == (2, task["idempotency_key"])
                assert worker.complete(again, "pdf-1") == {"status": "SUCCESS"}
                assert worker.complete(again, "pdf-1") == {"status": "SUCCESS"}  # a repeat
                assert worker.complete(task, "late", expected=409)["code"] == "lost"
                last = worker.one("render")
                assert last["idempotency_key"] != task["idempotency_key"]
                worker.complete(last, "pdf-2")

        await asyncio.to_thread(work)
        assert await handle.result("30s") == ["pdf-1", "pdf-2"]
        async with opened(remote.world.url) as store:
            run = await store.run(handle.id)
            assert run is not None
            entries = [entry for entry in await store.journal(run.id) if entry.name == "render"]
            assert [(entry.status, entry.attempt, entry.output) for entry in entries] == [
                ("SUCCESS", 2, '"pdf-1"'),
                ("SUCCESS", 1, '"pdf-2"'),
            ]
            (attempt,) = await store.attempts(run.id)
            assert (attempt.attempt, attempt.category) == (1, "server_error")


@contextlib.asynccontextmanager
async def shop(remote: Remote, queue: str, **options: Any) -> AsyncIterator[tuple[Redrive, Any]]:
    """Open an app beside the store, with a workflow of one remote step with these options."""
    app = Redrive(remote.world.url, concurrency=50)

    @app.step(remote=queue, name=f"{queue}-step", **options)
    async def remote_step(number: int) -> dict[str, int]: ...

    @app.workflow(name=f"{queue}-flow")
    async def flow(number: int) -> dict[str, int]:
        return await remote_step(number)

    async with app:
        yield app, flow


async def test_a_queue_without_workers_is_reported(remote: Remote) -> None:
    """`runs why`, the queues, doctor, the pages in both languages."""
    async with shop(remote, "unserved") as (app, flow):
        handle = await flow.start(1, tenant="acme")
        while not (await app.runs.context(handle.id)).remote:  # noqa: ASYNC110 - a real worker
            await asyncio.sleep(0.02)
        (step,) = (await app.runs.context(handle.id)).remote
        assert (step.step, step.queue, step.attempt, step.taken, step.workers) == (
            "unserved-step", "unserved", 1, False, 0,
        )  # fmt: skip
        sentences = explain_run(await app.runs.get(handle.id), await app.runs.context(handle.id))
        assert "No live worker takes steps of this queue" in sentences[0]
        (depth,) = [each for each in await app.runs.queues() if each.queue == "unserved"]
        assert (depth.tenant, depth.workflow, depth.due, depth.workers) == ("acme", "", 1, 0)
        found = [each async for each in _check_workers(app.runtime.store, [])]
        assert any("in queue 'unserved'" in each.text for each in found)
        words = (("en", "No active worker takes steps", "Remote steps"), ("pl", "Żaden aktywny proces", "Kroki zdalne"))
        token, address = remote.world.tokens["acme", "VIEWER"], f"{remote.world.address}/app"
        for language, run_says, queues_say in words:
            headers = {"Authorization": f"Bearer {token}", "Accept-Language": language}
            with httpx2.Client(base_url=address, headers=headers, timeout=30) as pages:
                assert run_says in (await asyncio.to_thread(pages.get, f"/runs/{handle.id}")).text
                assert queues_say in (await asyncio.to_thread(pages.get, "/queues")).text

        def work() -> None:
            with step_worker(remote, "unserved") as worker:
                task = worker.one("unserved-step")
                context = asyncio.run_coroutine_threadsafe(app.runs.context(handle.id), loop).result()
                assert [(each.taken, each.workers) for each in context.remote] == [(True, 1)]
                worker.complete(task, {"number": 1})

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(work)
        await handle.result("30s")


async def test_retries_of_a_remote_step_resume_the_workflow_once(remote: Remote) -> None:
    """50 failed attempts wake no workflow: the run is claimed once to begin and once for the answer."""
    async with shop(remote, "often", retry=RetryPolicy(max_retries=60, delays=["1ms"])) as (_, flow):
        handle = await flow.start(1, tenant="acme")

        def work() -> None:
            with step_worker(remote, "often") as worker:
                for made in range(1, 52):
                    task = worker.one("often-step")
                    assert task["attempt"] == made
                    if made == 51:
                        worker.complete(task, {"made": made})
                    else:
                        assert worker.fail(task, "busy")["status"] == "RETRYING"

        await asyncio.to_thread(work)
        assert await handle.result("30s") == {"made": 51}
        async with opened(remote.world.url) as store:
            run = await store.run(handle.id)
            assert run is not None
            assert (await store.wakeups([run.id]))[run.id] == 1
            assert len(await store.attempts(run.id)) == 50


async def test_answers_are_checked_and_kept(remote: Remote) -> None:
    """Many answers at once; outputs that do not fit; a cancelled run; errors with types and codes."""
    async with shop(remote, "many", retry=RetryPolicy(max_retries=0)) as (app, flow):
        handles = [await flow.start(number) for number in range(8)]

        def work() -> list[Any]:
            with step_worker(remote, "many") as worker:
                tasks: list[dict[str, Any]] = []
                while len(tasks) < 8:
                    tasks += worker.poll("many-step", capacity=8 - len(tasks), begin=False)
                tasks.sort(key=lambda task: int(task["input"]["number"]))
                assert worker.post(f"steps/{tasks[0]['ticket']}/begin")["should_execute"] is True
                begun = worker.post("steps/begin", tickets=[task["ticket"] for task in tasks])["answers"]
                assert [each["should_execute"] for each in begun] == [True] * 8
                assert worker.post(f"steps/{tasks[0]['ticket']}/heartbeat", details={"done": 1})["cancelled"] is False
                shown = asyncio.run_coroutine_threadsafe(app.runs.get(tasks[0]["run_id"]), loop).result()
                assert [step.heartbeat for step in shown.steps] == [{"done": 1}]
                asyncio.run_coroutine_threadsafe(handles[7].cancel(), loop).result()
                assert worker.post(f"steps/{tasks[7]['ticket']}/heartbeat")["cancelled"] is True
                beat = worker.post("beat", tickets=[task["ticket"] for task in tasks])
                assert beat["cancelled"] == [tasks[7]["ticket"]]
                assert worker.complete(tasks[7], {}, expected=409)["code"] == "lost"
                begun = worker.post(f"steps/{tasks[7]['ticket']}/begin")
                assert begun["should_execute"] is False
                answers = [
                    {"output": {"number": 0}},
                    {"output": {"number": "one"}},
                    {"output": {"text": "x" * 2_000_000}},
                    {"output": json.loads("[" * 400 + "]" * 400)},
                    {"error": {"type": "AxiosError", "code": "ECONNRESET", "message": "gone", "stack": "at x.js:1"}},
                    {"error": {"type": "Declined", "message": "no", "status": 402}, "non_retryable": True},
                    {"error": {"message": "what", "category": "validation", "details": {"field": "cents"}}},
                ]
                given = [{"ticket": task["ticket"], **answer} for task, answer in zip(tasks, answers, strict=False)]
                first = worker.post("steps/settle", answers=given)["answers"]
                assert worker.post("steps/settle", answers=given)["answers"] == first
                assert worker.post(f"steps/{tasks[0]['ticket']}/begin")["should_execute"] is False
                return list(first)

        loop = asyncio.get_running_loop()
        replies = await asyncio.to_thread(work)
        assert [reply["status"] for reply in replies] == ["SUCCESS", *["FAILED"] * 6]
        assert "number: expected" in replies[1]["problem"]
        assert "2,000,011 bytes" in replies[2]["problem"]
        assert "nested" in replies[3]["problem"]
        assert await handles[0].result("30s") == {"number": 0}
        codes = []
        for handle in handles[1:7]:
            with pytest.raises(RunFailed):
                await handle.result("30s")
            letter = (await app.runs.get(handle.id)).letter_id
            assert letter is not None
            codes.append((await app.dlq.get(letter)).code)
        assert codes == [
            "validation_failed", "policy_violation", "validation_failed", "dependency_unavailable", "non_retryable",
            "validation_failed",
        ]  # fmt: skip


async def test_tickets_belong_to_one_worker(remote: Remote) -> None:
    """Tickets of another worker, token or tenant, and forged ones, are not found, and touch nothing."""
    tokens: dict[str, str] = {}
    async with opened(remote.world.url) as store:
        for tenant in ("acme", "globex"):
            made = await access_of(store).create_token(
                NewToken(tenant=tenant, role=Role.WORKER, name="node", steps=("own-step",))
            )
            tokens[tenant] = made.secret
    async with shop(remote, "own") as (_, flow):
        handle = await flow.start(1, tenant="acme")

        def work() -> None:
            with (
                step_worker(remote, "own", token=tokens["acme"]) as owner,
                step_worker(remote, "own", token=tokens["acme"]) as other,
                step_worker(remote, "own", token=tokens["globex"]) as stranger,
                step_worker(remote, "own") as everywhere,
            ):
                assert stranger.poll("own-step", wait_ms=0) == []
                stranger.post("steps/poll", 403, queue="own", steps=["own-step", "more"])
                stranger.post("steps/poll", 422, queue="elsewhere", steps=["own-step"])
                task = owner.one("own-step")
                run, index, fence, mac = task["ticket"].split("-")
                forged = [f"{run}-{index}-{int(fence) + 1}-{mac}", f"{run}-{index}-{fence}-{'0' * 20}", "x", "1-2-3-"]
                for worker, tickets in (
                    *((each, [task["ticket"]]) for each in (other, stranger, everywhere)),
                    (owner, forged),
                ):
                    for ticket in tickets:
                        for call in ("begin", "heartbeat", "complete"):
                            worker.post(f"steps/{ticket}/{call}", 404)
                        worker.post(f"steps/{ticket}/fail", 404, error="x")
                        worker.post("steps/begin", 404, tickets=[ticket])
                        worker.post("steps/settle", 404, answers=[{"ticket": ticket}])
                        worker.post("beat", 404, tickets=[ticket])
                owner.post("steps/settle", 422, answers=[{"ticket": task["ticket"]}] * 2)
                owner.post(f"steps/{task['ticket']}/fail", 422, error=[1])
                bomb = owner.client.post(
                    f"steps/{task['ticket']}/complete",
                    content=gzip.compress(b" " * 50_000_000),
                    headers={"Content-Encoding": "gzip"},
                )
                assert bomb.status_code in (400, 413, 415, 422), bomb.text
                deep = b"[" * 400 + b"]" * 400
                for call, name, value in (
                    ("complete", b"output", b'"\xff"'), ("heartbeat", b"details", b'"\xff"'),
                    *(("heartbeat", b"details", each) for each in (deep, b"1" * 5000, b"1e999")),
                ):  # fmt: skip
                    body = b'{"%s": %s}' % (name, value)
                    assert (
                        owner.client.post(f"steps/{task['ticket']}/{call}", content=body, headers=JSON).status_code
                        == 422
                    )
                assert owner.complete(task, {"number": 1}) == {"status": "SUCCESS"}

        await asyncio.to_thread(work)
        assert await handle.result("30s") == {"number": 1}


async def test_a_task_of_a_dead_worker_is_done_by_another(remote: Remote) -> None:
    """A worker that vanishes loses its task: the same attempt again, with the same idempotency key."""
    async with shop(remote, "lost", timeout="60s") as (_, flow):
        handle = await flow.start(1)

        def work() -> None:
            dead = StepWorker(remote, "lost", lease=2_000_000)  # sends no heartbeat
            task = dead.one("lost-step")
            with contextlib.closing(dead.client), step_worker(remote, "lost") as worker:
                again: list[dict[str, Any]] = []
                while not again:
                    again = worker.poll("lost-step", wait_ms=20_000)
                assert (again[0]["attempt"], again[0]["idempotency_key"]) == (1, task["idempotency_key"])
                assert dead.complete(task, {"number": 2}, expected=409)["code"] == "lost"
                worker.complete(again[0], {"number": 1})

        await asyncio.to_thread(work)
        assert await handle.result("30s") == {"number": 1}
        async with opened(remote.world.url) as store:
            run = await store.run(handle.id)
            assert run is not None
            assert [(each.attempt, each.end) for each in await store.attempts(run.id)] == [(1, "LOST")]


async def test_a_poll_whose_worker_has_died_takes_no_task(remote: Remote) -> None:
    """The answer to a poll that waited would be lost: another worker gets the task at once."""
    async with shop(remote, "gone") as (_, flow):

        def die() -> None:
            dead = StepWorker(remote, "gone")
            body = {"queue": "gone", "steps": ["gone-step"], "wait_ms": 20_000}
            with contextlib.closing(dead.client) as client, pytest.raises(httpx2.ReadTimeout):
                client.post("steps/poll", json=body, timeout=0.5)

        await asyncio.to_thread(die)
        handle = await flow.start(1)

        def work() -> None:
            with step_worker(remote, "gone") as worker:
                worker.complete(worker.one("gone-step"), {"number": 1})

        await asyncio.to_thread(work)
        assert await handle.result("30s") == {"number": 1}


async def test_an_attempt_without_heartbeats_is_ended(remote: Remote) -> None:
    async with shop(remote, "quiet", heartbeat_timeout="300ms", retry=AT_ONCE) as (_, flow):
        handle = await flow.start(1)

        def work() -> None:
            with step_worker(remote, "quiet") as worker:
                task = worker.one("quiet-step")
                assert task["heartbeat_timeout_ms"] == 300
                again: list[dict[str, Any]] = []
                while not again:
                    worker.post("beat")
                    again = worker.poll("quiet-step", wait_ms=500)
                assert again[0]["attempt"] == 2
                assert worker.post(f"steps/{task['ticket']}/heartbeat")["cancelled"] is True
                worker.complete(again[0], {"number": 1})

        await asyncio.to_thread(work)
        assert await handle.result("30s") == {"number": 1}
