"""A worker in a process of its own; it works until its standard input is closed."""

from __future__ import annotations

import asyncio
import sys

from bench.ours.flows import Flows


async def main(url: str) -> None:
    async with Flows(url).app:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main(sys.argv[1]))
