"""A node that executes bulk actions: `python desk_node.py URL` prints "ready" and runs until it is stopped."""

from __future__ import annotations

import asyncio
import sys

from desk_kit import shop

from redrive import Redrive


async def main(url: str) -> None:
    async with shop(Redrive(url, chores="50ms")).app:
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
