"""A node for tests that kill processes: it publishes, and delivers into a file, one line for each delivery."""

from __future__ import annotations

import asyncio
import os
import sys

import redrive
from redrive import Message, Redrive

COUNT = 40


def build(url: str, file: str, who: str) -> tuple[Redrive, object]:
    app = Redrive(url, lease="1s")

    @app.step
    async def tell(n: int) -> None:
        redrive.publish("n", n, key=f"k{n % 4}")

    @app.workflow
    async def count(begin: int) -> None:
        for n in range(begin, begin + COUNT):
            await tell(n)

    @app.subscribe("n", name="file")
    async def write(message: Message) -> None:
        with open(file, "a", encoding="utf-8") as out:
            out.write(f"{who} {message.payload} {message.id}\n")
            out.flush()
            os.fsync(out.fileno())
        await asyncio.sleep(0.01)

    return app, count


async def main(url: str, file: str, who: str) -> None:
    app, _ = build(url, file, who)
    async with app:
        print("up", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
