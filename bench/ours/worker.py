"""A worker in a separate process, as `redrive worker` starts it; it runs until its standard input closes."""

from __future__ import annotations

import asyncio
import sys

from bench.ours.flows import Flows
from redrive.cli.worker_process import run_event_loop, tune_interpreter


async def main(url: str, concurrency: int) -> None:
    async with Flows(url, concurrency=concurrency).app:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    tune_interpreter()
    run_event_loop(main(sys.argv[1], int(sys.argv[2])))
