"""Remote workers: real servers and workers over HTTP, on each store."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster
import httpx2
import pytest
from msgspec import structs
from server_kit import HERE, PATIENCE, PREFIX, SECRET, Process, World, access_of, opened, populated

import redrive
from redrive import ChildFailed, Redrive, RetryPolicy
from redrive.clock import MICROS, SystemClock
from redrive.core.roles import ALL_TENANTS, Role
from redrive.core.run_options import StepOptions
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun
from redrive.errors import ConfigurationError, InputError, NotAllowed, NotSignedIn, RunFailed
from redrive.remote import worker_protocol
from redrive.remote.backend import RemoteBackend
from redrive.server.routes.workers import worker_routes
from redrive.store.accounts import NewToken, TokenKind
from redrive.store.filters import RunFilter
from redrive.store.postgres import PostgresStore
from redrive.store.workers import Beats, Catalogue, HeartbeatReply, NewWorker, Receipt, StaleBatch
from redrive.worker.committer import MAX_BATCH
from redrive.worker.lease import Lease

pytestmark = pytest.mark.heavy
KINDS = ["sqlite", *cluster.POSTGRES[:1]]
# For what does not depend on the store, and costs many processes or requests: one of the two servers.
ON_SQLITE = pytest.mark.parametrize("remote", KINDS[:1], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("remote", KINDS[1:], indirect=True)
LARGE = bool(os.environ.get("REDRIVE_REMOTE"))  # `./dev prove` sets it
AT_ONCE = RetryPolicy(max_retries=3, delays=["10ms"])


@dataclass
class Remote:
    """A server process on a populated store, and a token for workers of all tenants."""

    world: World
    process: Process
    token: str

    def app(self, token: str | None = None, url: str | None = None, **settings: Any) -> Redrive:
        return Redrive(url or self.process.address, token=token or self.token, **settings)

    def http(self, token: str | None = None, worker: int | None = None) -> httpx2.Client:
        """Return a client for requests that no worker would send."""
        headers = {"Authorization": f"Bearer {token or self.token}", "Redrive-Protocol": "1"}
        if worker is not None:
            headers["Redrive-Worker"] = str(worker)
        return httpx2.Client(
            base_url=f"{self.process.address}{PREFIX}/worker",
            headers=headers,
            timeout=30,
            verify=False,  # without TLS here; to read the certificates takes longer than a request
        )


async def _all_tenants_token(url: str) -> str:
    async with opened(url) as store:
        made = await access_of(store).create_token(NewToken(tenant=ALL_TENANTS, role=Role.WORKER, name="fleet"))
        return made.secret


@pytest.fixture(scope="module", params=KINDS)
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with populated(request.param, tmp_path_factory.mktemp("remote")) as world:
        token = asyncio.run(_all_tenants_token(world.url))
        process = Process(world.url, chores=True, app=None).ready()
        world.address = process.address
        try:
            yield Remote(world, process, token)
        finally:
            process.end()
            world.close()


async def until(check: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"never happened: {what}"
        await asyncio.sleep(0.05)


# -- what workflow code can do -------------------------------------------------------------------------


async def test_workflow_code_works_as_beside_the_store(remote: Remote) -> None:
    app, calls, undone = remote.app(), {"flaky": 0, "body": 0}, []

    @app.step(retry=AT_ONCE)
    async def flaky(number: int) -> int:
        calls["flaky"] += 1
        if calls["flaky"] < 3:
            raise ConnectionError("the line is down")
        return number + 1

    @app.step
    def plain(number: int) -> int:
        calls["body"] += 1
        return number * 2

    @app.workflow
    async def remote_child(number: int) -> int:
        return number

    @app.workflow
    async def remote_story(number: int) -> dict[str, Any]:
        first = await flaky(number)
        both = await asyncio.gather(plain(first), plain(first + 1))
        await redrive.sleep("20ms")
        moment = redrive.now()
        redrive.publish("remote.told", {"number": number})
        child = await remote_child.start(number)
        return {"both": both, "moment": moment.isoformat(), "child": child.id}

    async def undo(name: str, result: str) -> None:
        undone.append(name)

    @app.step(compensate=undo)
    async def book(name: str) -> str:
        return name

    @app.step(retry=RetryPolicy(max_retries=0))
    async def pay() -> None:
        raise ValueError("no money")

    @app.workflow(rollback=True)
    async def remote_trip(name: str) -> None:
        await book(name)
        await pay()

    async with app:
        handle = await remote_story.start(1, idempotency_key="one")
        found = await handle.result("30s")
        assert found["both"] == [4, 6]
        assert await app.handle(found["child"], "remote_child").result("30s") == 1
        again = await remote_story.start(1, idempotency_key="one")
        assert again.id == handle.id
        trip = await remote_trip.start("rome")
        with pytest.raises(RunFailed, match="no money"):
            await trip.result("30s")
        assert undone == ["rome"]
    assert calls == {"flaky": 3, "body": 2}
    async with opened(remote.world.url) as store:
        run = await store.run(handle.id)
        assert run is not None
        entries = await store.journal(run.id)
        assert [entry.attempt for entry in entries if entry.name == "flaky"] == [3]
        assert len(await store.attempts(run.id)) == 2
        rolled_back = await store.run(trip.id)
        assert rolled_back is not None
        assert rolled_back.status == "COMPENSATED"


async def test_remote_runs_wait_for_their_children(remote: Remote) -> None:
    """A parent waits on a remote worker, in its memory and in the store, for children that succeed and that fail."""
    app = remote.app(hold="100ms")

    @app.step(retry=RetryPolicy(max_retries=0))
    async def fail() -> None:
        raise ValueError("no")

    @app.workflow
    async def remote_part(n: int, pause: str) -> int:
        await redrive.sleep(pause)
        if not n:
            await fail()
        return n

    @app.workflow
    async def remote_parent() -> list[Any]:
        found: list[Any] = [await remote_part.run(1, "1ms"), await remote_part.run(2, "400ms")]
        try:
            await remote_part.run(0, "1ms", on_letter="fail")
        except ChildFailed as error:
            found += [error.status, error.error_type]
        return found

    undone: list[str] = []

    @app.step
    async def book(name: str) -> str:
        return name

    @book.compensate
    async def give_back(name: str, result: str) -> None:
        undone.append(name)

    @app.workflow(rollback=True)
    async def remote_stay(name: str) -> str:
        return await book(name)

    @app.workflow(rollback=True)
    async def remote_journey() -> None:
        await book("flight")
        await remote_stay.run("room")
        await fail()

    @app.workflow
    async def remote_hasty() -> str:
        try:
            handle = await remote_part.start(3, "10m", on_parent_end="cancel")
            await handle.result(timeout="50ms")
        except TimeoutError:
            await redrive.sleep("10m")
        return handle.id

    async with app:
        handle = await remote_parent.start(tenant="acme")
        assert await handle.result("30s") == [1, 2, "DLQ_PENDING", "builtins.ValueError"]
        journey = await remote_journey.start(tenant="acme")
        with pytest.raises(RunFailed):
            await journey.result("30s")
        assert undone == ["room", "flight"]
        hasty = await remote_hasty.start(tenant="acme")
        async with opened(remote.world.url) as store:
            children: list[Any] = []
            async with asyncio.timeout(30):
                while not (children and children[0].status == "CANCELLED"):
                    children = (await store.runs(RunFilter(parent=hasty.id), limit=1, cursor=None)).items
                    await asyncio.sleep(0.05)
            (stay,) = (await store.runs(RunFilter(parent=journey.id), limit=1, cursor=None)).items
            assert stay.status == "COMPENSATED"


async def test_remote_runs_ask_people(remote: Remote) -> None:
    """A question waits in memory and in the store; the answers come through the server. The starter is the token."""
    app = remote.app(hold="100ms")

    @app.workflow
    async def remote_asks() -> list[Any]:
        first = await redrive.ask("First?", options=["yes", "no"], show={"n": 1}, to=["ADMIN"], timeout="1h")
        second = await redrive.ask("Second?", form=int, apart_from=first.by, escalate={"1d": "OWNER"})
        return [first.value, first.note, second.value, redrive.run_info().started_by]

    async def open_task(question: str) -> str:
        while True:
            found = await asyncio.to_thread(admin.get, "/tasks", params={"status": "OPEN", "run_id": handle.id})
            for task in found.json()["items"]:
                if task["question"] == question:
                    return str(task["id"])
            await asyncio.sleep(0.05)

    async with app:
        handle = await remote_asks.start(tenant="acme")
        admin, owner = remote.world.client("acme", "ADMIN"), remote.world.client("acme", "OWNER")
        path = f"/tasks/{await open_task('First?')}/answer"
        assert (await asyncio.to_thread(admin.post, path, json={"value": "yes", "note": "fine"})).status_code == 200
        path = f"/tasks/{await open_task('Second?')}/answer"
        assert (await asyncio.to_thread(admin.post, path, json={"value": 7})).status_code == 403
        assert (await asyncio.to_thread(owner.post, path, json={"value": "x"})).status_code == 422
        assert (await asyncio.to_thread(owner.post, path, json={"value": 7})).status_code == 200
        found = await handle.result("30s")
        assert found[:3] == ["yes", "fine", 7]
        assert str(found[3]).startswith("token:fleet")


async def test_remote_runs_wait_for_events(remote: Remote) -> None:
    """A run waits on a remote worker, in its memory and in the store; events come through the server."""
    app = remote.app(hold="100ms")

    @app.workflow(events={"first": int, "second": int, "never": int})
    async def remote_waits() -> list[Any]:
        redrive.set_status("waiting", progress=0.5)
        found = [await redrive.wait_for("first"), await redrive.wait_for("second", timeout="1h")]
        return [*found, await redrive.wait_for("never", timeout="50ms", default="nothing")]

    async with app:
        handle = await remote_waits.start(tenant="acme")
        sender = remote.world.client("acme", "STAFF")
        while await handle.status() != "SLEEPING":  # noqa: ASYNC110 - a real worker
            await asyncio.sleep(0.01)
        answer = await asyncio.to_thread(sender.post, f"/runs/{handle.id}/events/first", json=0)
        assert answer.status_code == 202, answer.text
        await handle.send("second", 1)  # with the token of the worker
        assert await handle.result("30s") == [0, 1, "nothing"]
        shown = (await asyncio.to_thread(sender.get, f"/runs/{handle.id}")).json()
        assert shown["note"]["text"] == "waiting"


async def test_runs_of_any_process_are_executed_and_their_results_awaited(remote: Remote) -> None:
    app = remote.app()

    @app.workflow
    async def remote_double(number: int) -> int:
        return 2 * number

    async with app:
        starter = remote.app()

        @starter.workflow(name="remote_double")
        async def same(number: int) -> int:
            raise AssertionError("this process only starts")

        async with starter.client():
            handle = await same.start(21, priority=3, delay="10ms")
            assert await handle.result("30s") == 42
            assert await handle.status() == "SUCCESS"
        with remote.http() as http:
            http.base_url = f"{remote.process.address}{PREFIX}"
            found = http.get(f"/runs/{handle.id}/result", params={"wait": "5s"}).json()
            assert (found["status"], found["output"]) == ("SUCCESS", "42")
            assert http.get("/runs/nowhere/result").status_code == 404
            for wait in ("x", "-1", "inf"):
                assert http.get(f"/runs/{handle.id}/result", params={"wait": wait}).status_code == 422
            assert http.get("/runs").status_code == 403  # a worker reads no lists


async def test_a_circuit_opens_for_remote_steps(remote: Remote) -> None:
    app = remote.app()

    @app.step(circuit=redrive.Circuit(name="remote-bank", failures=2, window="1m", open_for="1m"), retry=AT_ONCE)
    async def call() -> None:
        raise ConnectionError("down")

    @app.workflow
    async def remote_bank() -> None:
        await call()

    async with app:
        await remote_bank.start()
        async with opened(remote.world.url) as store:

            async def is_open() -> bool:
                return (await store.circuit("default", "remote-bank")).row.is_open

            for _ in range(200):
                if await is_open():
                    break
                await asyncio.sleep(0.05)
            assert await is_open()


def test_what_needs_the_store_is_refused_by_name(remote: Remote) -> None:
    async def open_app(app: Redrive) -> None:
        async with app:
            pass

    def with_transaction(app: Redrive) -> None:
        @app.step(transactional=True)
        async def booked(tx: Any) -> None: ...

    def with_sink(app: Redrive) -> None:
        @app.subscribe("orders.*")
        async def forward(message: Any) -> None: ...

    def with_schedule(app: Redrive) -> None:
        @app.workflow(schedule=redrive.Schedule("0 6 * * *"))
        async def remote_report() -> None: ...

    for register, name in ((with_transaction, "booked"), (with_sink, "forward"), (with_schedule, "remote_report")):
        app = remote.app()

        @app.workflow
        async def remote_nothing() -> None: ...

        register(app)
        with pytest.raises(ConfigurationError, match=name):
            asyncio.run(open_app(app))
    with pytest.raises(ConfigurationError, match="https"):
        asyncio.run(open_client(Redrive("http://redrive.example.com", token="t")))
    with pytest.raises(ConfigurationError, match="REDRIVE_TOKEN"):
        asyncio.run(open_client(Redrive(remote.process.address, token="")))


async def open_client(app: Redrive) -> None:
    async with app.client():
        pass


# -- faults ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def dropping_proxy(
    targets: Callable[[], str], every: int, is_cut: Callable[[], bool] = lambda: False
) -> AsyncIterator[str]:
    """Forward connections to a target, and close every n-th one after its answer came, without passing it on.

    While `is_cut` returns True, no request is forwarded.
    """
    count = 0
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        there: asyncio.StreamWriter | None = None
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            host, port = targets().removeprefix("http://").split(":")
            back, there = await asyncio.open_connection(host, int(port))
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if is_cut():
                    return
                there.write(head + await reader.readexactly(_length(head)))
                answer = await back.readuntil(b"\r\n\r\n")
                answer += await back.readexactly(_length(answer))
                count += 1
                if every and count % every == 0:
                    return
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (writer, there):
                if each is not None:
                    each.close()
                    with suppress(OSError):
                        await each.wait_closed()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


async def test_lost_answers_cost_no_attempt(remote: Remote) -> None:
    calls, runs = 0, 1000 if LARGE else 40
    async with dropping_proxy(lambda: remote.process.address, every=3) as proxy:
        app = remote.app(url=proxy)

        @app.step
        async def counted(number: int) -> int:
            nonlocal calls
            calls += 1
            return number + 1

        @app.workflow
        async def remote_lossy(number: int) -> int:
            for _ in range(5):
                number = await counted(number)
            return number

        async with app:
            handles = await remote_lossy.start_many([(number,) for number in range(runs)])
            assert [await handle.result("60s") for handle in handles] == [number + 5 for number in range(runs)]
    assert calls == 5 * runs
    async with opened(remote.world.url) as store:
        for row in await store.runs_by_id([handle.id for handle in handles]):
            assert {entry.attempt for entry in await store.journal(row.id)} == {1}
            assert row.deaths == 0


@contextmanager
def worker_process(remote: Remote, folder: Path, token: str | None = None, lease: str = "2s") -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "redrive", "worker", "remote_shop:app", "--url", remote.process.address],
        cwd=HERE,
        env={
            **os.environ,
            "PYTHONPATH": str(HERE),
            "REDRIVE_TOKEN": token or remote.token,
            "REDRIVE_LEASE": lease,
            "REMOTE_JOURNAL": str(folder / "journal"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


def lines(folder: Path) -> list[str]:
    journal = folder / "journal"
    return journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []


async def start_hold(remote: Remote, name: str) -> str:
    with remote.http() as http:
        http.base_url = f"{remote.process.address}{PREFIX}"
        answer = http.post("/runs?tenant=default", json={"workflow": "remote_hold", "input": {"name": name}})
        assert answer.status_code in (201, 202), answer.text
        return str(answer.json()["id"])


@ON_SQLITE
async def test_a_killed_worker_is_replaced_and_a_late_one_refused(remote: Remote, tmp_path: Path) -> None:
    with worker_process(remote, tmp_path) as first:
        assert "working on" in first.stdout.readline()
        run_id = await start_hold(remote, "killed")
        await until(lambda: len(lines(tmp_path)) == 1, "the step begins")
        first.send_signal(signal.SIGSTOP)
        with worker_process(remote, tmp_path) as second:
            await until(lambda: len(lines(tmp_path)) == 2, "another worker takes over")
            (tmp_path / "journal.go").touch()
            await until(lambda: any(line.startswith("ended") for line in lines(tmp_path)), "the step ends")
            async with opened(remote.world.url) as store:

                async def status() -> str:
                    row = await store.run(run_id)
                    assert row is not None
                    return row.status.value

                for _ in range(200):
                    if await status() == "SUCCESS":
                        break
                    await asyncio.sleep(0.05)
                row = await store.run(run_id)
                assert row is not None
                assert row.output == str(second.pid)
                journal = await store.journal(row.id)
                first.send_signal(signal.SIGCONT)  # it continues, and reports its result too late
                await until(
                    lambda: (
                        sum(line.startswith("ended") for line in lines(tmp_path)) == 2
                        or any(line.startswith("cancelled") for line in lines(tmp_path))
                    ),
                    "the late worker continues",
                )
                first.send_signal(signal.SIGTERM)
                first.wait(PATIENCE)
                assert await store.run(run_id) == row
                assert await store.journal(row.id) == journal
    numbers = [line.split()[-1] for line in lines(tmp_path) if line.startswith("began")]
    assert numbers == ["1", "1"]  # taken over under the same number


@ON_POSTGRES
async def test_killed_workers_lose_nothing_and_repeat_no_step_that_must_not_be(remote: Remote, tmp_path: Path) -> None:
    """Workers are killed with -9 in the middle of 30 runs, twice; the third one ends them."""

    def start(name: str) -> str:
        with remote.http() as http:
            http.base_url = f"{remote.process.address}{PREFIX}"
            answer = http.post("/runs?tenant=default", json={"workflow": "remote_chain", "input": {"name": name}})
            assert answer.status_code in (201, 202), answer.text
            return str(answer.json()["id"])

    with worker_process(remote, tmp_path) as worker:
        assert "working on" in worker.stdout.readline()  # the server knows the code from now on
    ids = [start(f"c{number}") for number in range(30)]

    def count(what: str) -> int:
        return sum(line.startswith(what) for line in lines(tmp_path))

    for kill in range(3):
        before = count("linked")
        with worker_process(remote, tmp_path) as worker:
            assert "working on" in worker.stdout.readline()
            if kill < 2:
                await until(lambda enough=before + 8: count("linked") >= enough, "steps end")
                worker.kill()
                worker.wait(PATIENCE)
                continue
            async with opened(remote.world.url) as store:
                end = time.monotonic() + PATIENCE
                while any(row.finished_at is None for row in await store.runs_by_id(ids)):
                    assert time.monotonic() < end, "the runs never ended"
                    await asyncio.sleep(0.1)
                rows = await store.runs_by_id(ids)
                journals = {row.public_id: await store.journal(row.id) for row in rows}
    paid = [line.split()[1] for line in lines(tmp_path) if line.startswith("paid")]
    assert len(paid) == len(set(paid)), "a step that may be called at most once was called twice"
    for row in rows:
        entries = journals[row.public_id]
        assert len({entry.key for entry in entries}) == len(entries)
        if row.status == RunStatus.SUCCESS:
            assert [entry.status for entry in entries] == ["SUCCESS"] * 6
            assert row.output == "5"
        else:  # killed in the step that may be called at most once: a user decides
            assert row.status == RunStatus.DLQ_PENDING
            assert next(entry for entry in entries if entry.status != "SUCCESS").name == "pay_once"
    assert sum(row.status == RunStatus.SUCCESS for row in rows) >= 20
    links = [tuple(line.split()[1:]) for line in lines(tmp_path) if line.startswith("linked")]
    assert len(links) - len(set(links)) <= 2 * 10  # each kill repeats at most the steps that were under way


async def test_a_worker_that_was_cut_off_comes_back_without_suspects(remote: Remote) -> None:
    """A partition longer than the lease: the runs are begun again together, not one suspect after the other."""
    began, go, cut, runs = 0, asyncio.Event(), False, 50 if LARGE else 20
    async with dropping_proxy(lambda: remote.process.address, 0, lambda: cut) as proxy:
        app = remote.app(url=proxy, lease="2s")

        @app.step
        async def held() -> int:
            nonlocal began
            began += 1
            await go.wait()
            return 1

        @app.workflow
        async def remote_partition() -> int:
            return await held()

        async with app:
            handles = await remote_partition.start_many([() for _ in range(runs)])
            await until(lambda: began == runs, "all steps begin")
            worker = app.runtime.worker
            assert worker is not None
            first = worker.id
            cut = True
            async with opened(remote.world.url) as store:

                async def suspects() -> int:
                    rows = await store.runs_by_id([handle.id for handle in handles])
                    return sum(row.deaths for row in rows)

                end = time.monotonic() + PATIENCE
                while await suspects() < runs:
                    assert time.monotonic() < end, "the worker was never declared dead"
                    await asyncio.sleep(0.05)
                cut = False
                await until(lambda: began == 2 * runs, "all steps begin again")
                assert worker.id != first
                assert await suspects() == 0
            go.set()
            assert [await handle.result("30s") for handle in handles] == [1] * runs


async def test_cancel_and_revocation_reach_a_worker(remote: Remote, tmp_path: Path) -> None:
    async with opened(remote.world.url) as store:
        made = await access_of(store).create_token(NewToken(tenant=ALL_TENANTS, role=Role.WORKER, name="own"))
    with worker_process(remote, tmp_path, made.secret, lease="30s") as worker:
        assert "working on" in worker.stdout.readline()
        admin = remote.world.client("acme", "ADMIN")
        begun = admin.post("/runs", json={"workflow": "remote_hold", "input": {"name": "cancelled"}})
        run_id = begun.json()["id"]
        await until(lambda: len(lines(tmp_path)) == 1, "the step begins")
        assert admin.post(f"/runs/{run_id}/cancel", json={}).status_code < 300
        await until(lambda: any(line.startswith("cancelled") for line in lines(tmp_path)), "the step is cancelled")
        async with opened(remote.world.url) as store:
            await access_of(store).revoke_token(ALL_TENANTS, made.token.id)
        assert worker.wait(PATIENCE) == 5
        assert "token" in worker.stdout.read()


@ON_SQLITE
async def test_very_many_workers_send_fewer_heartbeats(remote: Remote) -> None:
    def beat(lease: int) -> int:
        with remote.http(made.secret) as http:
            worker = http.post("/register", json={"name": "w", "lease": lease}).json()["worker"]
        with remote.http(made.secret, worker) as http:
            return int(http.post("/beat", json={}).json()["every"])

    async with opened(remote.world.url) as store:
        made = await access_of(store).create_token(NewToken(tenant=ALL_TENANTS, role=Role.WORKER, name="many"))
    spaced = [await asyncio.to_thread(beat, 30_000_000) for _ in range(60)]
    assert (spaced[0] >= 1_000_000, 1_200_000 <= spaced[-1] <= 5_000_000) == (True, True)
    assert await asyncio.to_thread(beat, 3_000_000) == 500_000, "at most a sixth of the lease"


async def test_a_worker_spaces_its_heartbeats_as_the_server_asks() -> None:
    class Connection:
        every = 4 * MICROS

        def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
            return {worker: HeartbeatReply(alive=True, held=frozenset(), now=0, every=self.every) for worker in beats}

    connection: Any = Connection()
    lease = Lease(connection, SystemClock(), 1, 30.0, heartbeats=dict, on_beat=lambda _: None)
    assert lease.interval == 1.0
    for every, interval in ((4 * MICROS, 4.0), (20 * MICROS, 5.0), (0, 5.0), (1 * MICROS, 1.0)):
        connection.every = every
        lease.renew_once()
        assert lease.interval == interval


async def test_a_long_journal_arrives_in_pages(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_protocol, "JOURNAL_BYTES", 5_000)
    pages: list[str] = []
    ask = RemoteBackend._ask

    async def ask_and_note(self: RemoteBackend, path: str, *arguments: Any, **more: Any) -> Any:
        if "/history" in path:
            pages.append(path)
        return await ask(self, path, *arguments, **more)

    monkeypatch.setattr(RemoteBackend, "_ask", ask_and_note)
    called: list[int] = []
    app = remote.app()

    @app.step
    async def grown(number: int) -> str:
        called.append(number)
        return str(number) * 1_000

    @app.workflow(events={"go_on": int})
    async def remote_long(steps: int) -> int:
        length = 0
        for number in range(steps):
            length += len(await grown(number % 10))
            if number == steps - 2:
                await redrive.wait_for("go_on")
        return length

    async with app:
        handles = [await remote_long.start(steps) for steps in (12, 3)]
        await until(lambda: len(called) == 13, "the runs wait for their events")
    assert not pages
    async with app.client():
        for handle in handles:
            await handle.send("go_on", 1)
    async with app:
        assert [await handle.result("30s") for handle in handles] == [12_000, 3_000]
    assert len(called) == 15, "no step is repeated"
    asked = [tuple(path.removeprefix("runs/").split("&")[0].split("/history?after=")) for path in pages]
    assert [after for _, after in asked] == ["3", "6", "9", "0"], asked


def test_a_page_of_a_journal_is_checked(remote: Remote) -> None:
    with remote.http() as http:
        worker = http.post("/register", json={"name": "w"}).json()["worker"]
    with remote.http(worker=worker) as http:
        for query in ("after=-1", "after=x", f"max_bytes={2**60}"):
            assert http.get(f"/runs/1/history?{query}").status_code == 422, query
        assert http.get("/runs/1/history?after=5").status_code == 404


@ON_SQLITE
async def test_an_operator_ends_workers(remote: Remote, tmp_path: Path) -> None:
    def command(*arguments: str, secret: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "redrive", "workers", *arguments, "--url", remote.process.address],
            env={**os.environ, "REDRIVE_TOKEN": secret},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def running() -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(command("list", "--json", secret=owner).stdout)["items"]
        return [each for each in listed if each["id"] not in before and each["state"] == "RUNNING"]

    before: set[int] = set()
    owner, admin = remote.world.tokens["acme", "OWNER"], remote.world.tokens["acme", "ADMIN"]
    before.update(each["id"] for each in running())
    with worker_process(remote, tmp_path, lease="60s") as first:
        assert "working on" in first.stdout.readline()
        drained_run = await start_hold(remote, "drained")
        await until(lambda: len(lines(tmp_path)) == 1, "the step begins")
        (worker,) = running()
        assert (worker["remote"], worker["runs"], worker["stalled"]) == (True, 1, 0)
        number = str(worker["id"])
        assert command("drain", number, secret=admin).returncode == 5
        assert command("drain", number, "--dry-run", secret=owner).returncode == 0
        assert [each["id"] for each in running()] == [worker["id"]]
        done = command("drain", number, "--reason", "a new machine", secret=owner)
        assert done.stdout == f"drains {number} ({worker['name']})\n", done.stderr
        assert running() == []
        waiting_run = await start_hold(remote, "waiting")
        with worker_process(remote, tmp_path, lease="60s") as second:
            assert "working on" in second.stdout.readline()
            await until(lambda: len(lines(tmp_path)) == 2, "another worker begins the next run")
            assert first.poll() is None, "its step is still running"
            (worker,) = running()
            with worker_process(remote, tmp_path, lease="60s") as third:
                assert "working on" in third.stdout.readline()
                assert command("retire", str(worker["id"]), secret=owner).returncode == 0
                assert second.wait(PATIENCE) == 0
                assert "retired by an operator" in second.stdout.read()
                await until(
                    lambda: any(str(third.pid) in each for each in lines(tmp_path)), "a third one takes its run"
                )
                (tmp_path / "journal.go").touch()
                assert first.wait(PATIENCE) == 0
                async with opened(remote.world.url) as store:
                    for run_id, ended_by in ((drained_run, first.pid), (waiting_run, third.pid)):
                        row = None
                        for _ in range(200):
                            row = await store.run(run_id)
                            assert row is not None
                            if row.finished_at is not None:
                                break
                            await asyncio.sleep(0.05)
                        assert row is not None
                        assert (row.status, row.output, row.deaths) == (RunStatus.SUCCESS, str(ended_by), 0)
        assert "drained by an operator" in first.stdout.read()
    assert command("retire", number, secret=owner).returncode == 3


@ON_POSTGRES
async def test_servers_may_die_in_turn(remote: Remote) -> None:
    """Two servers take turns. Each is killed, and another one replaces the first of them."""
    both = [Process(remote.world.url, chores=True, app=None) for _ in range(2)]
    addresses = [(await asyncio.to_thread(each.ready)).address for each in both]
    turn = 0

    def target() -> str:
        nonlocal turn
        turn += 1
        return addresses[turn % len(addresses)]

    calls = 0
    try:
        async with dropping_proxy(target, every=0) as proxy:
            app = remote.app(url=proxy)

            @app.step
            async def paced(number: int) -> int:
                nonlocal calls
                calls += 1
                await asyncio.sleep(0.03)
                return number + 1

            @app.workflow
            async def remote_servers(number: int) -> int:
                for _ in range(5):
                    number = await paced(number)
                return number

            async with app:
                handles = await remote_servers.start_many([(number,) for number in range(20)])
                await until(lambda: calls > 10, "work begins")
                both[0].process.kill()
                addresses[0] = remote.process.address
                await until(lambda: calls > 40, "work continues")
                assert calls < 100
                both[1].process.kill()
                addresses.pop()
                assert [await handle.result("60s") for handle in handles] == [number + 5 for number in range(20)]
    finally:
        for each in both:
            each.end()
    assert calls == 100


# -- hostile and broken workers --------------------------------------------------------------------------


def register(
    http: httpx2.Client, *names: str, protocols: tuple[int, ...] = (1,), version: str = "v"
) -> httpx2.Response:
    items = [{"name": name, "options": OPTIONS, "schema_in": "{}", "schema_out": "{}"} for name in names]
    catalogue = {"version": version, "workflows": items, "steps": []}
    return http.post(
        "/register", json={"name": "test", "protocols": protocols, "catalogue": catalogue, "lease": 30_000_000}
    )


STEP_OPTIONS = StepOptions().to_json()
OPTIONS = '{"override": null, "retry": null, "dead_letter": true, "max_crashes": 3, "letter_keeps": 1000000000}'


def start_body(tenant: str, workflow: str, run_id: str, **more: Any) -> dict[str, Any]:
    run = {
        "public_id": run_id, "tenant": tenant, "workflow": workflow, "input": "{}", "options": OPTIONS, "version": "v",
        "key_keeps": 1000, **more,
    }  # fmt: skip
    return {"runs": [run], "claim": True}


def returned(run: dict[str, Any], output: str = "1", **more: Any) -> dict[str, Any]:
    place = {"index": 0, "key": "/a#0", "kind": "step", "name": "a"}
    return {
        "k": "returned", "run": run["id"], "fence": run["fence"], "place": place, "attempt": 1, "began_ago": 5,
        "done": 1, "input": "{}", "output": output, **more,
    }  # fmt: skip


def test_batches_are_ordered_and_repeats_get_the_same_answer(remote: Remote) -> None:
    with remote.http() as http:
        worker = register(http, "remote_batches").json()["worker"]
    with remote.http(worker=worker) as http:
        started = http.post("/start", json=start_body("acme", "remote_batches", "remote-batch-1")).json()
        run = started[0]["claimed"]
        again = http.post("/start", json=start_body("acme", "remote_batches", "remote-batch-1")).json()
        assert again[0]["public_id"] == "remote-batch-1"
        assert again[0].get("claimed") is None
        batch = {"number": 1, "outcomes": [returned(run)]}
        first = http.post("/settle", json=batch)
        assert first.status_code == 200, first.text
        assert http.post("/settle", json=batch).content == first.content
        for number, outcome in ((1, returned(run, "2")), (3, returned(run))):
            stale = http.post("/settle", json={"number": number, "outcomes": [outcome]})
            assert (stale.status_code, stale.json()["code"]) == (409, "stale_batch")
        bad = [
            (returned(run, "[1"), "not JSON"),
            (returned(run, '"' + "x" * (2 << 20) + '"'), "bytes"),
            ({**returned(run), "k": "cancelled"}, "k"),
            ({**returned(run), "done": "x"}, "done"),
            (returned(run, messages=[{"public_id": "m", "topic": "redrive.run.ended", "payload": "{}", "run_id": "r",
                                      "correlation_id": "c"}]), "engine"),
        ]  # fmt: skip
        for outcome, why in bad:
            refused = http.post("/settle", json={"number": 2, "outcomes": [returned(run), outcome]})
            assert (refused.status_code, refused.json()["code"]) == (422, "bad_outcome"), refused.text
            assert why in refused.json()["detail"]
            assert "outcome 1" in refused.json()["detail"]
        ended = {"k": "ended", "run": run["id"], "fence": run["fence"], "output": "7"}
        strange = {**ended, "run": run["id"] + 1_000_000}
        late = {**ended, "fence": run["fence"] - 1}
        answers = http.post("/settle", json={"number": 2, "outcomes": [strange, late, ended]}).json()["answers"]
        assert [answer["kept"] for answer in answers] == [False, False, True]
        beaten = http.post("/beat", json={}).json()
        assert (beaten["alive"], beaten["held"]) == (True, [])
        assert beaten["now"] == pytest.approx(time.time() * 1e6, rel=1e-3)
        assert http.post("/retire", json={}).status_code == 200
        assert http.post("/beat", json={}).json()["alive"] is False
    with remote.http() as http:
        refused = register(http, "remote_batches", protocols=(2, 3))
        assert (refused.status_code, refused.json()["code"]) == (426, "protocol_unsupported")
        assert http.post("/claim", json={}, headers={"Redrive-Protocol": "9"}).status_code == 426
        assert http.post("/settle", content=b"[" * 5000, headers={"Content-Type": "application/json"}).status_code in (
            404,
            422,
        )


def test_an_id_or_a_key_that_belongs_to_something_else_is_refused(remote: Remote) -> None:
    other = remote.world.ids["globex"]["run"]
    with remote.http(remote.world.tokens["acme", "WORKER"]) as http:
        worker = register(http, "acme_ids").json()["worker"]
    with remote.http(remote.world.tokens["acme", "WORKER"], worker) as http:

        def start(run_id: str, **more: Any) -> dict[str, Any]:
            answer = http.post("/start", json=start_body("acme", "acme_ids", run_id, **more))
            assert answer.status_code == 200, answer.text
            (found,) = answer.json()
            return {name: found.get(name, False) for name in ("new", "clash")}

        assert start("acme-ids-1") == {"new": True, "clash": False}
        assert start("acme-ids-1") == {"new": True, "clash": False}  # the first answer may have been lost
        assert start("acme-ids-1", input='{"other": 1}') == {"new": False, "clash": True}
        assert start(other) == {"new": False, "clash": True}
        keys = ["idem_job:acme:acme_ids:" + "k" * (1 << 20), "idem_job:acme:acme_ids:", "idem_flow:acme:run:step:0",
                "idem_cron:acme:acme_ids:daily:2026", "idem_job:acme:acme_ids:a:b"]  # fmt: skip
        for key in keys:
            refused = http.post("/start", json=start_body("acme", "acme_ids", "acme-ids-2", key=key, key_hash="h"))
            assert refused.status_code == 422, (key[:50], refused.text)
            assert len(refused.content) < 2000
        tiny = b'{"outcomes":[' + b"1," * (1 << 20) + b"1]}"
        refused = http.post("/begun", content=tiny, headers={"Content-Type": "application/json"})
        assert "outcomes[0]" in refused.json()["detail"]  # refused at the first one
        assert http.post("/retire", json={"steps": 1}).status_code == 200  # unknown fields are ignored
    with remote.http(remote.world.tokens["globex", "WORKER"]) as http:
        there = register(http, "globex_version", version="globex-only").json()["worker"]
    with remote.http(remote.world.tokens["globex", "WORKER"], there) as http:
        assert http.post("/version", json={"version": "globex-only"}).json() == {"alive": True}
    with remote.http(remote.world.tokens["acme", "WORKER"]) as http:
        here = register(http, "acme_ids").json()["worker"]
    with remote.http(remote.world.tokens["acme", "WORKER"], here) as http:
        assert http.post("/version", json={"version": "globex-only"}).json() == {"alive": False}


def test_the_runs_that_a_token_holds_are_limited(own_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.server.remote_workers.MAX_HELD_RUNS", 2)
    monkeypatch.setattr("redrive.server.remote_workers._COUNT_LIFETIME", 0.0)
    headers = {"Redrive-Protocol": "1"}
    http = own_world.client("acme", "WORKER", headers=headers)
    http.base_url = f"{own_world.address}{PREFIX}/worker"
    for _ in range(2):  # two workers of one token share its limit
        http.headers["Redrive-Worker"] = str(register(http, "acme_many").json()["worker"])
        body = start_body("acme", "acme_many", "many-0")
        body["runs"] = [{**body["runs"][0], "public_id": f"many-{number}"} for number in range(5)]
        claimed = [each.get("claimed") for each in http.post("/start", json=body).json()]
        assert claimed == [None] * 5  # more than the token may hold, so they wait for a claim
    assert len(http.post("/claim", json={"capacity": 5, "suspect": False}).json()["runs"]) == 2
    refused = http.post("/claim", json={"capacity": 5, "suspect": False})
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert "2 runs" in refused.json()["detail"]


def test_records_that_cannot_be_read_back_are_refused(remote: Remote) -> None:
    deep = "[" * 500 + "]" * 500
    with remote.http(remote.world.tokens["acme", "WORKER"]) as http:
        worker = register(http, "acme_odd").json()["worker"]
        for kind, options in (
            *(("workflows", each) for each in ("[]", "{}", f'{OPTIONS[:-1]}, "index": 5}}', '{"timeout": "x"}')),
            ("steps", "{}"),
        ):
            items = [{"name": "acme_odd", "options": options, "schema_in": "{}", "schema_out": "{}"}]
            catalogue = {"version": "v", "workflows": [], "steps": [], kind: items}
            body = {"name": "test", "protocols": [1], "catalogue": catalogue, "lease": 30_000_000}
            assert http.post("/register", json=body).status_code == 422, options
    with remote.http(remote.world.tokens["acme", "WORKER"], worker=worker) as http:
        odd: list[dict[str, Any]] = [
            {"delay": 2**62}, {"delay": -1}, {"timeout": 0}, {"deadline": 2**62}, {"deadline": -1}, {"priority": 1001},
            {"key_keeps": 2**62}, {"queue": "q" * 256}, {"queue": ""}, {"correlation_id": "a\0"}, {"input": deep},
            {"public_id": ""}, {"public_id": "a/b"}, {"public_id": "x" * 101},
            *({"options": OPTIONS.replace("3,", f"{each},")} for each in ('"x"', "0", 2**70)),  # max_crashes
            *({"options": f"{OPTIONS[:-1]}, {each}}}"} for each in (
                '"depth": "x"', '"depth": 51', '"index": [5]', '"priority": "x"', '"limits": {"timeout": "x"}',
                '"notify": {"on": [5]}', '"started_by": "\0"',
                '"on_failure": {"handlers": [{"workflow": "w", "parameter": "p", "options": "{}"}], "limit": 1}',
            )),
        ]  # fmt: skip
        for number, more in enumerate(odd):
            refused = http.post("/start", json=start_body("acme", "acme_odd", f"odd-{number}", **more))
            assert refused.status_code == 422, (more, refused.text)
        strange = '{"trace":"' + "a\r\nX: 1\0".ljust(55, "x") + '","origin":["bull:jobs","77"],' + OPTIONS[1:]
        handler = start_body(
            "acme", "acme_odd", "odd-run", handler_for=remote.world.ids["globex"]["run"], options=strange
        )
        held = http.post("/start", json=handler).json()[0]["claimed"]
        assert held["handler_for"] is None
        # A bridge would end the job that an origin names, and copy its data.
        assert json.loads(held["options"]).keys().isdisjoint({"origin", "trace"})

        place = {"index": 0, "key": "/a#0", "kind": "step", "name": "a"}
        at = {"run": held["id"], "fence": held["fence"]}
        bad: list[dict[str, Any]] = [
            returned(held, deep), returned(held, done=-1), returned(held, attempt=2**40),
            returned(held, place={**place, "key": "a\0"}), returned(held, place={**place, "name": "a\0"}),
            {"k": "status", **at, "note": {"text": "a\0"}},
            {"k": "awaits", **at, "place": {**place, "kind": "wait"}, "delay": None, "kind": "event", "seen": 0,
             "input": '{"mode": "one", "names": ["a"]}', "subjects": ["a\0"], "idle": True, "hold": 0},
            returned(held, place={**place, "index": -1}), returned(held, place={**place, "index": 2**63}),
            returned(held, admitted={"key": "k", "settings": '{"failures": -1}'}),
            {"k": "began", **at, "place": place, "attempt": 1, "input": "{}", "options": "[]", "limit": 1},
            {"k": "planned", **at,
             "plan": [{"place": place, "input": "{}", "options": '{"retry": null, "timeout": "x"}'}]},
            {"k": "status", **at, "note": {"text": "t", "data": "{"}},
            {"k": "status", **at, "note": {"text": "t" * (2 << 20)}},
            {"k": "answered", **at, "place": place, "done": 1, "input": "{}", "output": "1",
             "uses": [{"seq": -1, "index": 0}]},
        ]  # fmt: skip
        for outcome in bad:
            refused = http.post("/settle", json={"number": 1, "outcomes": [outcome]})
            assert (refused.status_code, refused.json()["code"]) == (422, "bad_outcome"), (outcome, refused.text)
        tiny = b'{"number":1,"outcomes":[' + b"1," * (1 << 20) + b"1]}"
        refused = http.post("/settle", content=tiny, headers={"Content-Type": "application/json"})
        assert "outcomes[0]" in refused.json()["detail"]  # refused at the first one

        calls: list[tuple[str, dict[str, Any]]] = [
            ("/circuit", {"tenant": "acme", "key": "k", "settings": "zz"}),
            ("/circuit", {"tenant": "acme", "key": "k", "settings": "[1]"}),
            ("/circuit", {"tenant": "acme", "key": "a\0", "settings": "{}"}),
            ("/circuits", {"successes": [{"tenant": "acme", "key": "k", "settings": "{}", "calls": 1, "last_at": 1}]}),
            (
                "/circuits",
                {
                    "number": 1,
                    "successes": [{"tenant": "acme", "key": "k", "settings": "zz", "calls": 1, "last_at": 1}],
                },
            ),
            ("/beat", {"steps": [{"run": held["id"], "index": 0, "details": "x" * (2 << 20)}]}),
            ("/beat", {"steps": [{"run": held["id"], "index": 2**40}]}),
            ("/beat", {"steps": [{"run": held["id"], "index": 0, "details": "a\0"}]}),
            ("/beat", {"steps": [{"run": held["id"], "index": 0, "details": "[1"}]}),
            ("/beat", {"steps": [{"run": held["id"], "index": 0}] * 10_001}),
            ("/wakeups", {"runs": list(range(10_001))}),
        ]
        for path, call in calls:
            refused = http.post(path, json=call)
            assert refused.status_code == 422, (path, refused.text)
        assert http.post("/retire", json={}).status_code == 200
    for path in ("/runs", "/workflows", "/circuits", "/workflow-dlq"):
        listed = remote.world.client("acme", "ADMIN").get(path)
        assert listed.status_code == 200, "".join(remote.process.lines[-30:])


def test_a_tenant_reaches_nothing_of_another_one(remote: Remote) -> None:
    mine, theirs = remote.world.tokens["acme", "WORKER"], remote.world.tokens["globex", "WORKER"]
    with remote.http(theirs) as http:
        there = register(http, "globex_only").json()["worker"]
        unused = register(http, "globex_only").json()["worker"]
        taken = register(http, "fulfil")
        assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    with remote.http(theirs, there) as http:
        run = http.post("/start", json=start_body("globex", "globex_only", "remote-globex")).json()[0]["claimed"]
    with remote.http(mine) as http:
        here = register(http, "acme_only").json()["worker"]
    with remote.http(mine, here) as http:
        own = http.post("/start", json=start_body("acme", "acme_only", "remote-acme")).json()[0]["claimed"]
    ticket = f"{run['id']}-0-{run['fence']}-{'0' * 20}"
    calls: list[tuple[str, str, Any]] = [
        ("POST", "/claim", {"capacity": 5, "suspect": True}),
        ("POST", "/wait", {"wait": 0}),
        ("POST", "/settle", {"number": 1, "outcomes": [returned(run)]}),
        ("POST", "/begun", {"outcomes": [{**returned(run), "k": "began", "options": STEP_OPTIONS, "limit": 1}]}),
        ("POST", "/beat", {"steps": [{"run": run["id"], "index": 0, "details": '"stolen"'}]}),
        ("GET", "/held", None),
        ("GET", f"/runs/{run['id']}/history", None),
        ("GET", f"/runs/{run['id']}/mailbox", None),
        ("POST", f"/runs/{run['id']}/awaited", {"run_id": "remote-globex"}),
        ("POST", f"/runs/{own['id']}/awaited", {"run_id": "remote-globex", "ends": True, "undo": True}),
        ("POST", f"/runs/{run['id']}/asked", {"index": 0}),
        ("POST", "/wakeups", {"runs": [run["id"]]}),
        ("POST", "/steps/poll", {"queue": "globex", "steps": ["globex-step"], "wait_ms": 0}),
        ("POST", "/steps/begin", {"tickets": [ticket]}),
        ("POST", "/steps/settle", {"answers": [{"ticket": ticket}]}),
        ("POST", f"/steps/{ticket}/begin", None),
        ("POST", f"/steps/{ticket}/heartbeat", {}),
        ("POST", f"/steps/{ticket}/complete", {"output": 1}),
        ("POST", f"/steps/{ticket}/fail", {"error": "x"}),
        ("POST", "/start", start_body("globex", "globex_only", "stolen")),
        ("POST", "/permit", {"tenant": "globex", "key": "k", "settings": "", "run": run["id"], "fence": 1, "index": 0}),
        ("POST", "/circuit", {"tenant": "globex", "key": "globex-bank", "settings": "{}"}),
        ("POST", "/circuits", {"since": 0}),
        ("POST", "/version", {"version": "v"}),
        ("POST", "/retire", {}),
    ]  # fmt: skip
    unbound = {path for _, path, _ in calls} | {"/register"}
    for route in worker_routes.routes:
        pattern = re.compile(re.sub(r"{\w+}", "[^/]+", route.path.removeprefix(f"{PREFIX}/worker")))
        assert any(pattern.fullmatch(path) for path in unbound), f"no call of {pattern.pattern}"
    with remote.http(mine, unused) as http:  # with a worker that this server has not heard of since it registered
        assert http.post("/beat", json={}).status_code == 404
    with remote.http(mine, there) as http:  # with the worker of another tenant
        for method, path, body in calls:
            assert http.request(method, path, json=body).status_code == 404, path
    with remote.http(mine, here) as http:  # with its own worker, about the runs of another tenant
        found = {path: http.request(method, path, json=body) for method, path, body in calls if path != "/retire"}
        assert found["/claim"].json()["runs"] == []
        assert [each["kept"] for each in found["/settle"].json()["answers"]] == [False]
        assert [each["public_id"] for each in found["/held"].json()] == ["remote-acme"]
        assert found["/wakeups"].json()["wakeups"] == []
        assert found[f"/runs/{run['id']}/mailbox"].json() == {"mailbox": None}
        assert found[f"/runs/{run['id']}/awaited"].json() == {"awaited": None}
        unknown = http.post(f"/runs/{own['id']}/awaited", json={"run_id": "unknown", "ends": True})
        assert found[f"/runs/{own['id']}/awaited"].json() == unknown.json()
        assert unknown.json()["awaited"].get("end") is None
        assert found[f"/runs/{run['id']}/asked"].json() == {"asked": None}
        assert found["/steps/poll"].json()["tasks"] == []
        tickets = [found[path] for path in found if path.startswith("/steps/") and path != "/steps/poll"]
        assert [answer.status_code for answer in tickets] == [404] * 6
        assert found[f"/runs/{run['id']}/history"].status_code == 404
        assert found["/start"].status_code == 403
        assert found["/permit"].status_code == 404
        assert found["/circuit"].status_code == 404
        assert {row["tenant"] for row in found["/circuits"].json()} <= {"acme"}
        forged = start_body("acme", "globex_only", "stolen-name")
        assert http.post("/start", json=forged).status_code == 403
    for role in ("OWNER", "ADMIN", "STAFF", "VIEWER"):
        with remote.http(remote.world.tokens["acme", role]) as http:
            assert register(http, "acme_only").status_code == 403
    names = [each["name"] for each in remote.world.client("acme", "ADMIN").get("/workflows").json()]
    assert "acme_only" in names
    assert "globex_only" not in names
    with remote.http(theirs, there) as http:  # nothing was changed
        answers = http.post("/settle", json={"number": 1, "outcomes": [returned(run)]}).json()["answers"]
        assert [each["kept"] for each in answers] == [True]


async def test_an_output_that_is_too_large_fails_its_step_alone(remote: Remote) -> None:
    app = remote.app()

    @app.step
    async def large(size: int) -> str:
        return "x" * size

    @app.workflow
    async def remote_large(size: int) -> int:
        return len(await large(size))

    async with app:
        handles = await remote_large.start_many([(size,) for size in (10, 2 << 20, 20)])
        assert await handles[0].result("30s") == 10
        assert await handles[2].result("30s") == 20
        with pytest.raises(RunFailed) as failed:
            await handles[1].result("30s")
        assert failed.value.code == "policy_violation"


async def test_a_refused_start_is_an_error_of_its_caller_alone(remote: Remote) -> None:
    app = remote.app(remote.world.tokens["acme", "WORKER"])

    @app.workflow
    async def remote_refused_start(number: int) -> int:
        return number + 1

    async with app:
        with pytest.raises(NotAllowed):
            await remote_refused_start.start(1, tenant="globex")
        handle = await remote_refused_start.start(1, tenant="acme")
        assert await handle.result("30s") == 2


async def test_an_unreadable_run_of_a_tenant_becomes_a_letter(remote: Remote) -> None:
    token, name = remote.world.tokens["acme", "WORKER"], "remote_unreadable"
    with remote.http(token) as http:
        worker = register(http, name).json()["worker"]
    with remote.http(token, worker) as http:
        first = http.post("/start", json=start_body("acme", name, "remote-readable")).json()[0]["claimed"]
        http.post("/settle", json={"number": 1, "outcomes": [returned(first)]}).raise_for_status()
        run = NewRun(
            public_id="remote-unreadable",
            tenant="acme",
            workflow=name,
            input="{}",
            options="[",
            version="v",
            key_keeps=1,
        )
        async with opened(remote.world.url) as store:
            await store.start([run])
            claimed = http.post("/claim", json={"capacity": 5, "suspect": False})
            assert claimed.status_code == 200, claimed.text
            assert claimed.json()["runs"] == []
            found = await store.run("remote-unreadable")
            assert found is not None
            assert found.status == RunStatus.DLQ_PENDING
        many = {"outcomes": [{**returned(first), "k": "began", "options": "{}", "limit": 0}] * (MAX_BATCH + 1)}
        refused = http.post("/begun", json=many)
        assert (refused.status_code, f"at most {MAX_BATCH}" in refused.text) == (422, True), refused.text
        http.post("/retire", json={}).raise_for_status()


def test_a_question_that_no_page_could_show_is_refused(remote: Remote) -> None:
    name = "remote_questions"
    with remote.http() as http:
        worker = register(http, name).json()["worker"]
    with remote.http(worker=worker) as http:
        run = http.post("/start", json=start_body("acme", name, "remote-question")).json()[0]["claimed"]
        place = {"index": 0, "key": "/ask#0", "kind": "wait", "name": "ask"}
        good = {"text": "Go?", "schema": '{"type": ["string", "null"]}', "audience": {"role": "ADMIN"}}
        wait = {"mode": "task", "names": [], "question": "Go?"}
        asks = {
            "k": "asks", "run": run["id"], "fence": run["fence"], "place": place, "delay": None, "kind": "task",
            "input": json.dumps(wait), "subjects": [f"tk-{run['public_id']}-0"], "seen": 0, "idle": True, "hold": 0,
            "question": good,
        }  # fmt: skip
        for bad in (
            *({"question": {**good, **each}} for each in ({"schema": "5"}, {"text": "a\0b"}, {"text": ""})),
            {"input": '{"mode": "task"}'}, {"input": '{"mode": "run", "names": []}'}, {"input": "1" * 5000},
        ):  # fmt: skip
            refused = http.post("/settle", json={"number": 1, "outcomes": [{**asks, **bad}]})
            assert (refused.status_code, refused.json()["code"]) == (422, "bad_outcome"), refused.text
        http.post("/settle", json={"number": 1, "outcomes": [asks]}).raise_for_status()
    with remote.world.client("acme", "ADMIN", headers={"Accept": "text/html"}) as browser:
        for page in (f"/app/tasks/{asks['subjects'][0]}", "/app/runs/remote-question"):
            assert browser.get(remote.process.address + page).status_code == 200
        value = {"value": "yes"}
        assert browser.post(f"/tasks/{asks['subjects'][0]}/answer", json=value).status_code == 200


async def test_a_token_for_single_steps_registers_no_others(remote: Remote) -> None:
    async with opened(remote.world.url) as store:
        admin = access_of(store)
        new = NewToken(tenant="acme", role=Role.WORKER, name="steps", steps=("render",))
        made = await admin.create_token(new)
        assert made.token.steps == ("render",)
        with pytest.raises(InputError, match="WORKER"):
            await admin.create_token(structs.replace(new, role=Role.STAFF))
        signed = await admin.create_token(structs.replace(new, kind=TokenKind.JWT))
    for secret in (made.secret, signed.secret):
        with remote.http(secret) as http:
            for kind, name, status in (
                ("steps", "render", 200),
                ("workflows", "render", 403),
                ("steps", "charge", 403),
            ):
                options = STEP_OPTIONS if kind == "steps" else OPTIONS
                item = {"name": name, "options": options, "schema_in": "{}", "schema_out": "{}"}
                catalogue = {"version": "v", "workflows": [], "steps": [], kind: [item]}
                body = {"name": "steps", "protocols": [1], "catalogue": catalogue, "lease": 30_000_000}
                answer = http.post("/register", json=body)
                assert answer.status_code == status, answer.text
            assert "render" in answer.json()["detail"]


async def test_a_token_that_is_refused_ends_the_opening(remote: Remote) -> None:
    app = remote.app(token="rdk_unknown")

    @app.workflow
    async def remote_unknown() -> None: ...

    with pytest.raises(NotSignedIn):
        async with app:
            pass


def test_the_secret_is_not_shown(remote: Remote) -> None:
    app = remote.app()
    assert remote.token not in repr(app.settings)
    assert SECRET not in repr(app.settings)


async def test_row_security_alone_keeps_receipts_apart(ready_url: str) -> None:
    app = Redrive(ready_url)
    async with app.client():
        store = app.runtime.store
        assert isinstance(store, PostgresStore)
        new = NewWorker(name="w", version="v", workflows=("w",), lease=60_000_000, token="t", tenant="acme")
        worker = await store.enlist(new, Catalogue(version="v", workflows=(), steps=()))

        def receipt(number: int) -> Receipt:
            return Receipt(worker=worker, tenant="acme", number=number, digest="d", make_answer=lambda _: "kept")

        with pytest.raises(StaleBatch):
            await store.as_tenant("globex").apply([], receipt=receipt(1))
        found = await store.remote_worker(worker)
        assert found is not None
        assert (found.number, found.answer) == (0, "")
        await store.as_tenant("acme").apply([], receipt=receipt(1))
        with pytest.raises(StaleBatch):
            await store.apply([], receipt=receipt(1))
        found = await store.remote_worker(worker)
        assert found is not None
        assert (found.number, found.answer) == (1, "kept")
