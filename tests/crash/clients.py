"""A client that starts batch after batch until it is killed: `python -m clients URL FOLDER SIZE`.

Each accepted batch is recorded after the call has returned, as an application would do it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import scenes
from ledger import Ledger, Line

from redrive import Start


async def start_batches(url: str, folder: Path, size: int) -> None:
    app = scenes.build(url, folder)
    accepted = Ledger(folder / "accepted")
    async with app.client():
        for batch in range(10_000):
            numbers = range(batch * size, (batch + 1) * size)
            items = [Start((n,), options={"idempotency_key": f"order {n}"}) for n in numbers]
            for handle in await app.find("quick").start_many(items):
                accepted.note(Line("accepted", "client", handle.id, "", batch))


if __name__ == "__main__":
    asyncio.run(start_batches(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
