"""A process with several users who decide on letters: `python desk_people.py URL`.

Prints "ready". For each line `["LETTER", "MODE", COUNT]` it lets that many users decide on the letter at the same time,
and prints the answer to each of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from redrive import Redrive
from redrive.errors import Conflict


async def decide(app: Redrive, letter: str, mode: str) -> list[object]:
    try:
        if mode in ("resolve", "ignore"):
            return [mode, str((await getattr(app.dlq, mode)(letter, by=f"{mode} {os.getpid()}")).status)]
        replay = await app.dlq.replay(letter, mode, by=f"user at {os.getpid()}")
    except Conflict:
        return ["conflict"]
    return ["replay", replay.number, replay.mode, replay.run_id, replay.by, replay.at.isoformat()]


async def main(url: str) -> None:
    app = Redrive(url)
    async with app.client():
        await app.dlq.list()
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            letter, mode, count = json.loads(line)
            answers = await asyncio.gather(*[decide(app, letter, mode) for _ in range(count)])
            print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
