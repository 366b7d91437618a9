"""The cost of publishing, and the speed of deliveries."""

from __future__ import annotations

import asyncio
import base64
import resource
import subprocess
import sys
import time
from typing import Any

from bench.cpu import Cpu
from bench.ours.job import Job
from bench.ours.witness import check_settings
from redrive import Message, Redrive, publish
from redrive.app import Workflow

__all__ = ["outbox", "relay", "webhook"]

STEPS = 5
BURST = 1000
WARM_UP = 100
AT_ONCE = 500  # messages that one step publishes, to fill the outbox quickly
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()

RECEIVER = """
import asyncio, sys

class Receiver(asyncio.Protocol):
    count = 0
    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""
    def data_received(self, data):
        self.buffer += data
        while b"\\r\\n\\r\\n" in self.buffer:
            head, _, rest = self.buffer.partition(b"\\r\\n\\r\\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\\r\\n")[0])
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            Receiver.count += b"webhook-signature" in head
            self.transport.write(b"HTTP/1.1 204 No Content\\r\\n\\r\\n")

async def main():
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(Receiver.count, flush=True)

asyncio.run(main())
"""


class Counter:
    """A subscriber that counts."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.wanted = 0
        self.reached = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.ids.add(message.id)
        if len(self.ids) == self.wanted:
            self.reached.set()

    async def reach(self, wanted: int) -> None:
        """Wait until so many have arrived."""
        self.wanted = wanted
        self.reached.clear()
        if len(self.ids) < wanted:
            await self.reached.wait()


def _five(app: Redrive, name: str, *, publishes: bool) -> Workflow[..., Any, Any]:
    @app.step(name=f"{name}_step")
    async def noop(number: int) -> int:
        if publishes:
            publish("bench.done", {"number": number})
        return number

    @app.workflow(name=name)
    async def five(number: int) -> int:
        for step in range(STEPS):
            await noop(step)
        return number

    return five


async def outbox(job: Job) -> dict[str, float]:
    """Bursts of plain runs and bursts whose every step publishes, in turn; the relay's work included."""
    app, counter = Redrive(job.url, concurrency=job.concurrency), Counter()
    app.subscribe("*", name="counter")(counter)
    plain, talking = _five(app, "plain", publishes=False), _five(app, "talking", publishes=True)
    size, sent = min(BURST, job.size), 0
    spent = {"plain": 0.0, "talking": 0.0}
    used = {"plain": 0.0, "talking": 0.0}
    async with app:
        await check_settings(app.runtime.store)
        for flow in (plain, talking):
            await _burst(flow, WARM_UP)
        sent += WARM_UP * STEPS
        await counter.reach(sent)
        for _ in range(max(1, job.size // size)):
            begun, cpu = time.perf_counter(), Cpu(job.server)
            await _burst(plain, size)
            spent["plain"] += time.perf_counter() - begun
            used["plain"] += cpu.all + cpu.there
            begun, cpu = time.perf_counter(), Cpu(job.server)
            await _burst(talking, size)
            sent += size * STEPS
            await counter.reach(sent)
            spent["talking"] += time.perf_counter() - begun
            used["talking"] += cpu.all + cpu.there
    steps = max(1, job.size // size) * size * STEPS
    return {
        "steps": steps / spent["talking"],
        "empty": steps / spent["plain"],
        "kept": spent["plain"] / spent["talking"] * 100,
        "kept_cpu": used["plain"] / used["talking"] * 100,
    }


async def _burst(flow: Workflow[..., Any, Any], runs: int) -> None:
    handles = await flow.start_many([(number,) for number in range(runs)])
    results = await asyncio.gather(*(handle.result() for handle in handles))
    assert results == list(range(runs))


async def relay(job: Job) -> dict[str, float]:
    """Fill the outbox, then start the relay on an idle system: messages per second, and memory."""
    counter = Counter()
    await _fill(job, "*", "counter")
    app = Redrive(job.url)
    app.subscribe("*", name="counter")(counter)
    _five(app, "plain", publishes=False)
    base, begun, cpu = _memory(), time.perf_counter(), Cpu(job.server)
    async with app:
        await counter.reach(job.size)
        rate = job.size / (time.perf_counter() - begun)
        await _all_noted(app)
        used = cpu.per_thousand(job.size)
    return {"messages": rate, "added": _memory() - base, **used}


async def webhook(job: Job) -> dict[str, float]:
    """Measure deliveries to a server on the loopback that answers every signed request with 204."""
    await _fill(job, "*", "hook")
    receiver = subprocess.Popen(
        [sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdin is not None
    assert receiver.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(receiver.stdout.readline())}/in"
        app = Redrive(job.url, allow_hosts="127.0.0.1")
        app.webhook("hook", url, "*", secret=SECRET, concurrency=32)
        _five(app, "plain", publishes=False)
        begun, cpu = time.perf_counter(), Cpu(job.server)
        async with app:
            await _all_noted(app)
            rate = job.size / (time.perf_counter() - begun)
            used = cpu.per_thousand(job.size)
        receiver.stdin.write("\n")
        receiver.stdin.flush()
        assert int(receiver.stdout.readline()) >= job.size
    finally:
        receiver.kill()
        receiver.wait()
    return {"messages": rate, **used}


async def _fill(job: Job, topics: str, sink: str) -> None:
    """Publish `size` messages for a sink that has no relay yet."""
    from redrive.core.outbox import parse_patterns
    from redrive.store.outbox import NewSink

    app = Redrive(job.url)

    @app.step
    async def talk(count: int) -> None:
        for number in range(count):
            publish("bench.done", {"number": number})

    @app.workflow
    async def fill(count: int) -> None:
        await talk(count)

    async with app:
        await check_settings(app.runtime.store)
        await app.runtime.store.put_sinks([NewSink(name=sink, kind="bench", topics=parse_patterns(topics))])
        handles = await fill.start_many([(AT_ONCE,)] * (job.size // AT_ONCE))
        await asyncio.gather(*(handle.result() for handle in handles))


async def _all_noted(app: Redrive) -> None:
    while any(sink.pending for sink in await app.sinks.list()):  # noqa: ASYNC110 - the store rings no bell
        await asyncio.sleep(0.02)


def _memory() -> float:
    """Return the largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
