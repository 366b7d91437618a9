"""A process that starts one run many times at once: `python starting_people.py URL HOW MANY`.

Prints "ready", waits for a line, makes MANY starts at the same moment and prints the ids.
"""

from __future__ import annotations

import asyncio
import json
import sys

from redrive import Redrive


def build(url: str) -> Redrive:
    """Return an app with one workflow."""
    app = Redrive(url)

    @app.step
    async def charge(order: str) -> str:
        return f"{order} charged"

    @app.workflow
    async def pay(order: str) -> str:
        return await charge(order)

    return app


async def main(url: str, how: str, many: int) -> None:
    app = build(url)
    async with app.client():
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        if how == "event":
            calls = [app.receive_event("orders", "e-1", "pay", "A-1") for _ in range(many)]
        else:
            calls = [app.find("pay").start("A-1", idempotency_key="A-1") for _ in range(many)]
        print(json.dumps([handle.id for handle in await asyncio.gather(*calls)]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
