"""A worker process of its own: `python -m crew URL FOLDER WHO SETTINGS`.

It works until SIGTERM; a second one ends it at once. SETTINGS is JSON: settings of the app, and `trick`,
a fault that this process has and others have not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import scenes

from redrive.store.port import Claim, Claims
from redrive.store.sqlite import SqliteStore
from redrive.worker.loop import Worker


def say(word: str) -> None:
    print(word, flush=True)


def deaf() -> None:
    """Heartbeats are answered, but the worker does not listen: only the store can stop it."""
    Worker.heard = lambda self, beat: None  # type: ignore[method-assign]


def dies_after_claim() -> None:
    """Vanishes when a claim is durable, before anything is done about it."""
    claim = SqliteStore.claim

    async def claim_and_die(self: SqliteStore, wanted: Claim) -> Claims:
        claims = await claim(self, wanted)
        if claims.runs:
            say("claimed")
            os.kill(os.getpid(), signal.SIGKILL)
        return claims

    SqliteStore.claim = claim_and_die  # type: ignore[method-assign]


TRICKS = {"deaf": deaf, "dies_after_claim": dies_after_claim}


async def work(url: str, folder: Path, who: str, settings: dict[str, Any]) -> None:
    if trick := settings.pop("trick", None):
        TRICKS[trick]()
    app = scenes.build(url, folder, who, **settings)
    asked_to_stop = asyncio.Event()

    def stop() -> None:
        if asked_to_stop.is_set():
            os._exit(1)
        asked_to_stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    async with app:
        say("ready")
        await asked_to_stop.wait()
        say("stopping")
    say("stopped")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(message)s")
    url, folder, who, settings = sys.argv[1:]
    asyncio.run(work(url, Path(folder), who, json.loads(settings)))
