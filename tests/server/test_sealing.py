"""Encryption at the worker: the server, its database, its log and the wire have no payload in clear, on each store."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import cluster
import httpx2
import pytest
from server_kit import HERE, PATIENCE, PREFIX, SECRET, Process, World, populated

import redrive
from redrive import FailureEvent, Redrive, RetryPolicy
from redrive.errors import Conflict, InputError, RunFailed
from redrive.remote.client import Address
from redrive.store.filters import LetterFilter, RunFilter

pytestmark = pytest.mark.heavy
KINDS = ["sqlite", *cluster.POSTGRES[:1]]
KEY, SERVER_KEY = (base64.b64encode(bytes([number]) * 32).decode() for number in (7, 9))
MARK = "tajne-dane"
"""In every payload of these tests, and in nothing else."""


@dataclass
class Sealed:
    """A server without the workers' key. On PostgreSQL it encrypts its store with another key."""

    world: World
    process: Process
    tokens: dict[str, str]
    wire: list[bytes] = field(default_factory=list)
    proxy: str = ""

    def app(self, role: str = "WORKER", keys: str = KEY, url: str = "", **settings: Any) -> Redrive:
        return Redrive(url or self.proxy, token=self.tokens[role], encryption_keys=keys, **settings)

    def call(self, method: str, path: str, body: Any = None, *, language: str = "en", key: str = "") -> httpx2.Response:
        """Send a request of an owner, who does not have the workers' key."""
        headers = {"Authorization": f"Bearer {self.tokens['OWNER']}", "Accept-Language": language}
        headers |= {"Idempotency-Key": key} if key else {}
        address = self.process.address
        return httpx2.request(method, f"{address}{path}", json=body, headers=headers, follow_redirects=True, timeout=30)

    def cli(self, *arguments: str, keys: str = KEY, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command against the server."""
        own = {"REDRIVE_URL": f"{self.process.address}?tenant=acme", "REDRIVE_TOKEN": self.tokens["OWNER"]}
        return subprocess.run(
            [sys.executable, "-m", "redrive", *arguments],
            env={**os.environ, **own, "REDRIVE_ENCRYPTION_KEYS": keys, **more},
            cwd=HERE,
            text=True,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )

    async def dump(self) -> bytes:
        """Return everything in the database."""
        if self.world.is_sqlite:
            path = Path(self.world.url.removeprefix("sqlite:///"))
            return b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*"))
        connection = await asyncpg.connect(self.world.url)
        try:
            tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'redrive'")
            rows = [await connection.fetch(f'SELECT t::text FROM redrive."{name}" AS t') for (name,) in tables]
            return "\n".join(row[0] for each in rows for row in each).encode()
        finally:
            await connection.close()


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sealed]:
    with populated(request.param, tmp_path_factory.mktemp("sealed")) as world:
        tokens = {role: world.tokens["acme", role] for role in ("WORKER", "OWNER")}
        own = {} if request.param == "sqlite" else {"REDRIVE_ENCRYPTION_KEYS": SERVER_KEY}
        process = Process(world.url, chores=True, app=None, **own).ready()
        try:
            yield Sealed(world, process, tokens)
        finally:
            process.end()
            world.close()


@asynccontextmanager
async def recorded(sealed: Sealed) -> AsyncIterator[Sealed]:
    """Record everything that goes to the server and comes back, below `sealed.proxy`."""
    host, port = sealed.process.address.removeprefix("http://").split(":")
    tasks: set[asyncio.Task[Any]] = set()
    connections: set[asyncio.Task[Any]] = set()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError, OSError):
            while data := await source.read(1 << 16):
                sealed.wire.append(data)
                target.write(data)
                await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = asyncio.current_task()
        assert here is not None
        connections.add(here)
        back, there = await asyncio.open_connection(host, int(port))
        both = [asyncio.create_task(each) for each in (copy(reader, there), copy(back, writer))]
        tasks.update(both)
        await asyncio.wait(both)
        writer.close()
        there.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        sealed.proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}?tenant=acme"
        yield sealed
        for task in tasks:
            task.cancel()
        await asyncio.gather(*connections)


def register(app: Redrive) -> dict[str, Any]:
    """Register workflows that pass payloads on every way that there is."""
    heard: list[FailureEvent] = []

    @app.step
    async def greet(name: str) -> str:
        redrive.step_info().heartbeat({"at": name})
        redrive.publish("sealed.told", {"name": name})
        return f"hello {name}"

    @app.step(retry=RetryPolicy(max_retries=1, delays=["10ms"]))
    async def refuse(name: str, number: int) -> None:
        error = ValueError(f"account {MARK} of order {number} is closed")
        error.details = {"name": name}  # type: ignore[attr-defined]
        raise error

    @app.workflow
    async def sealed_child(name: str) -> str:
        return f"{name} of a child"

    @app.workflow
    async def sealed_story(name: str) -> dict[str, Any]:
        redrive.set_status(f"waiting for {name}", name=name)
        words = await greet(name)
        answer = await redrive.wait_for("paid")
        child = await sealed_child.run(name)
        return {"words": words, "answer": answer, "child": child}

    @app.workflow
    async def sealed_listener(event: FailureEvent) -> str:
        heard.append(event)
        return event.error

    @app.workflow(on_failure=sealed_listener, index=["order"])
    async def sealed_failure(name: str, order: str, number: int = 0) -> str:
        if name.startswith("fixed"):
            return name
        await refuse(name, number)
        return name

    return {"story": sealed_story, "failure": sealed_failure, "heard": heard}


async def until(check: Any) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not (found := await check()):  # noqa: ASYNC110 - a real server
            await asyncio.sleep(0.05)
    return found


async def test_payloads_are_encrypted_wherever_the_server_has_them(served: Sealed) -> None:
    async with recorded(served):
        app = served.app()
        flows = register(app)
        client = served.app("OWNER")
        async with app, client.client():
            story = await flows["story"].start(MARK, tenant="acme", idempotency_key="one")
            again = await flows["story"].start(MARK, tenant="acme", idempotency_key="one")
            assert again.id == story.id
            with pytest.raises(Conflict):
                await flows["story"].start(f"{MARK} 2", tenant="acme", idempotency_key="one")
            await client.runs.send(story.id, "paid", {"cents": 5, "by": MARK})
            found = await story.result("60s")
            assert found == {
                "words": f"hello {MARK}",
                "answer": {"cents": 5, "by": MARK},
                "child": f"{MARK} of a child",
            }
            failed = await flows["failure"].start(MARK, f"order {MARK}", tenant="acme")
            with pytest.raises(RunFailed, match=f"account {MARK} of order 0 is closed"):
                await failed.result("60s")

            # With the keys, users see all of it.
            run = await client.runs.get(story.id)
            assert (run.input, run.output) == ({"name": MARK}, found)
            assert run.note is not None
            assert (run.note.text, run.note.data) == (f"waiting for {MARK}", {"name": MARK})
            assert [step.output for step in run.steps if step.name == "greet"] == [f"hello {MARK}"]
            letter = await client.dlq.get(failed.id)
            assert letter.message == f"account {MARK} of order 0 is closed"
            assert (letter.error_type, letter.details) == ("builtins.ValueError", {"name": MARK})
            assert f"account {MARK}" in letter.stack
            assert "refuse" in letter.stack
            assert letter.steps[0].attempts[0].message == letter.message
            assert letter.message in ((await client.runs.get(failed.id)).error or "")
            where = RunFilter(index={"order": f"order {MARK}"})
            assert [each.id for each in (await client.runs.list(where)).items] == [failed.id]
            await until(lambda: _is_true(flows["heard"]))
            (event,) = flows["heard"]
            assert event.error == f"ValueError: account {MARK} of order 0 is closed"
            assert event.input == {"name": MARK, "order": f"order {MARK}", "number": 0}

            # Equal failures are one group, and another failure is not.
            many = [(MARK, "x", number) for number in range(400)]
            handles = await flows["failure"].start_many([redrive.Start(args, {}, {"tenant": "acme"}) for args in many])
            await asyncio.gather(*(each.result("60s") for each in handles), return_exceptions=True)
            letters = await client.dlq.count(LetterFilter(fingerprint=letter.fingerprint))
            assert letters == 401

    texts = [await served.dump(), b"".join(served.wire), "".join(served.process.lines).encode()]
    for text, what in zip(texts, ("the database", "the wire", "the log"), strict=True):
        found = text.find(MARK.encode())
        assert found == -1, (what, text[max(0, found - 300) : found + 100])
        assert b"enc1:" in text or what == "the log"
        assert base64.b64encode(MARK.encode())[:12] not in text


async def _is_true(value: Any) -> bool:
    return bool(value)


@pytest.mark.parametrize("served", KINDS[:1], indirect=True)  # the test above reads what both stores hold
async def test_users_with_the_key_edit_what_the_server_cannot_read(served: Sealed) -> None:
    async with recorded(served):
        app = served.app()
        flows = register(app)
        client = served.app("OWNER")
        async with app, client.client():
            handles = [await flows["failure"].start(MARK, "y", number, tenant="acme") for number in range(3)]
            await asyncio.gather(*(each.result("60s") for each in handles), return_exceptions=True)
            plan = await client.dlq.replay(handles[0].id, "FULL", patch={"name": f"fixed {MARK}"}, dry_run=True)
            assert [(each.path, each.after) for each in plan.changes] == [("name", f"fixed {MARK}")]
            with pytest.raises(InputError, match="number"):
                await client.dlq.replay(handles[0].id, "FULL", patch={"number": "no number"})
            replay = await client.dlq.replay(handles[0].id, "FULL", patch={"name": f"fixed {MARK}"})
            assert await app.handle(replay.run_id, "sealed_failure").result("60s") == f"fixed {MARK}"

            # The same with the command line.
            editor = f"{sys.executable} {HERE / 'sealed_editor.py'}"
            shown = await asyncio.to_thread(served.cli, "dlq", "show", f"dl-{handles[1].id}")
            assert f"account {MARK} of order 1 is closed" in shown.stdout, shown
            edited = await asyncio.to_thread(
                served.cli, "dlq", "edit", handles[1].id, "--mode", "full", "--yes", EDITOR=editor
            )
            assert edited.returncode == 0, edited
            patched = await asyncio.to_thread(
                served.cli,
                *("dlq", "replay", handles[2].id, "--mode", "full", "--yes", "--patch", '{"name": "fixed by hand"}'),
            )
            assert patched.returncode == 0, patched
            for each in handles[1:]:
                row = await until(lambda each=each: _ended_letter(client, each.id))
                assert row.status == "RESOLVED"
            listed = await client.runs.list(RunFilter(workflow="sealed_failure", status=("SUCCESS",)))
            outputs = [(await client.runs.get(each.id)).output for each in listed.items]
            assert {"fixed by hand", f"fixed {MARK} in the editor"} <= set(outputs)
            started = await asyncio.to_thread(
                served.cli,
                *("runs", "start", "sealed_failure", "--input", f'{{"name": "fixed {MARK}", "order": "z"}}', "--quiet"),
            )
            assert started.returncode == 0, started
            assert await app.handle(started.stdout.strip(), "sealed_failure").result("60s") == f"fixed {MARK}"
            invalid = await asyncio.to_thread(served.cli, "runs", "start", "sealed_failure", "--input", "{}")
            assert invalid.returncode == 5, invalid
            assert "name" in invalid.stderr
    assert MARK.encode() not in await served.dump()


async def _ended_letter(client: Redrive, id: str) -> Any:
    letter = await client.dlq.get(id)
    return letter if letter.status != "REPLAYING" else None


async def test_what_needs_the_key_is_refused_and_says_so(served: Sealed) -> None:
    async with recorded(served):
        app = served.app()
        flows = register(app)
        async with app:
            failed = await flows["failure"].start(MARK, "y", tenant="acme")
            await asyncio.gather(failed.result("60s"), return_exceptions=True)
            refusals: list[tuple[str, Any, str]] = [
                (
                    "runs",
                    {"workflow": "sealed_failure", "input": {"name": "in clear", "order": "a"}},
                    "workflow_sealed",
                ),
                (
                    f"workflow-dlq/dl-{failed.id}/replay",
                    {"mode": "FULL", "patch": {"name": "in clear"}},
                    "input_sealed",
                ),
            ]
            sealed = {"workflow": "sealed_failure", "input": {"sealed": "enc1:00000000:AAAA"}}
            refusals += [
                ("runs", sealed, "sealed_hash_needed"),
                ("runs", {**sealed, "input_hash": "plain"}, "sealed_hash_needed"),
                ("runs", {**sealed, "input_hash": "det1:1:A", "input_index": {"x": ["y"]}}, "sealed_index_invalid"),
            ]
            for path, body, code in refusals:
                refused = await asyncio.to_thread(served.call, "POST", f"{PREFIX}/{path}", body, key=code)
                assert (refused.status_code, refused.json()["reason_code"]) == (422, code)
            listed = (await asyncio.to_thread(served.call, "GET", f"{PREFIX}/workflows")).json()
            assert {each["name"]: each["sealed"] for each in listed}["sealed_failure"]
            letter = f"admin/dlq/dl-{failed.id}"
            for language, path, phrase in (
                ("en", f"runs/{failed.id}", "Encrypted by its workers"),
                ("pl", f"runs/{failed.id}", "Zaszyfrowane przez procesy robocze"),
                ("en", letter, "Encrypted by its workers"),
                ("en", f"{letter}/replay", "Change it where the key is"),
                ("pl", f"{letter}/replay", "Zmień je tam, gdzie jest klucz"),
                ("en", "workflows/one?name=sealed_failure", "Start runs where the key is"),
                ("pl", "workflows/one?name=sealed_failure", "Uruchamiaj przebiegi tam"),
            ):
                page = await asyncio.to_thread(served.call, "GET", f"/app/{path}", language=language)
                assert page.status_code == 200, path
                assert phrase in page.text, (path, page.text)
                assert "enc1:" not in page.text
    # A worker beside the store starts, although it cannot read the newest run.
    own = "plain" if served.world.is_sqlite else SERVER_KEY
    beside = Redrive(served.world.url, secret_key=SECRET, encryption_keys=own)

    @beside.workflow
    async def beside_the_store() -> None: ...

    async with beside:
        pass
    keyless = served.app(keys="", url=served.process.address)
    register(keyless)
    with pytest.raises(InputError, match="sealed_"):
        async with keyless:
            pass
    # Keys that only decrypt take the mark away again.
    opening = served.app(keys=f"plain,{KEY}", url=f"{served.process.address}?tenant=acme")
    flows = register(opening)
    async with opening:
        clear = await flows["failure"].start("fixed", "in clear", tenant="acme")
        assert await clear.result("60s") == "fixed"
        async with served.app("OWNER", keys="", url=served.process.address).client() as client:
            assert (await client.runs.get(clear.id)).input["name"] == "fixed"


async def test_a_worker_elsewhere_compresses_what_it_encrypted(served: Sealed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Address, "is_local", False)
    async with recorded(served):
        served.wire.clear()
        app = served.app(allow_plain=True)
        flows = register(app)
        async with app:
            name = f"fixed {MARK} {'x' * 20_000}"
            done = await flows["failure"].start(name, "y", tenant="acme")
            assert await done.result("60s") == name
    wire = b"".join(served.wire)
    assert b"Content-Encoding: gzip" in wire
    assert MARK.encode() not in wire
