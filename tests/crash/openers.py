"""A process that opens new files, each when its gate opens: `python -m openers FOLDER ROUNDS WHO`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import scenes


async def open_all(folder: Path, rounds: int, who: str) -> None:
    for number in range(rounds):
        app = scenes.build(f"sqlite:///{folder}/fresh-{number}.db", folder, who, lease=5)
        (folder / f"waits-{number}-{who}").touch()
        while not scenes.gate(folder, str(number)).exists():
            pass  # as close as possible to the other process
        async with app:
            handle = await app.find("quick").start(number)
            assert await handle.result("120s") == f"anyone {number}"
    print("opened all", flush=True)


if __name__ == "__main__":
    asyncio.run(open_all(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
