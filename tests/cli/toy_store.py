"""A store with a run in every state that the commands show."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from redrive import Redrive, RunFailed

TOYS = """
import redrive
from redrive import NonRetryable, Redrive, RetryPolicy

app = Redrive("sqlite:///toys.db", lease="5s")


@app.step(retry=RetryPolicy(max_retries=2, base_delay="10ms"))
async def paint(toy: str) -> str:
    if toy == "broken":
        raise NonRetryable("it has a \\x1b[31mcrack")
    if toy == "wet":
        raise ConnectionError("the paint shop does not answer")
    return f"red {toy}"


@app.step(retry=RetryPolicy(max_retries=3, base_delay="1h", max_delay="1h", jitter=0))
async def post(toy: str) -> str:
    raise TimeoutError("the post is closed")


@app.workflow
async def make(toy: str, count: int = 1) -> str:
    return await paint(toy)


@app.workflow
async def rest(toy: str) -> str:
    await paint(toy)
    await redrive.sleep("1d")
    return toy


@app.workflow
async def send(toy: str) -> str:
    return await post(toy)
"""


@dataclass(frozen=True)
class Toys:
    """The folder with the store and the module, and the runs by state."""

    folder: Path
    url: str
    good: str
    broken: str
    wet: str
    sleeping: str
    waiting: str
    later: str


async def play(app: Redrive, folder: Path) -> Toys:
    make, rest, send = (app.find(name) for name in ("make", "rest", "send"))
    async with app:
        good = await make.start("duck", correlation_id="order-7")
        broken = await make.start("broken", tenant="acme")
        wet = await make.start("wet")
        for handle in (good, broken, wet):
            try:
                await handle.result(timeout=30)
            except RunFailed:
                continue
        sleeping, waiting = await rest.start("bear"), await send.start("kite")
        later = await make.start("late", delay="2h")
        async with asyncio.timeout(30):
            while {await sleeping.status(), await waiting.status()} != {"SLEEPING"}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    ids = (handle.id for handle in (good, broken, wet, sleeping, waiting, later))
    return Toys(folder, app.settings.url, *ids)
