"""A worker process, run as `redrive worker` would run it: `python -m crew URL FOLDER WHO SETTINGS`.

SETTINGS is JSON: settings of the app, and `trick`, a fault that only this process has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import scenes

from redrive.cli.worker_process import run_worker
from redrive.store.claims import ClaimRequest, ClaimResult
from redrive.store.sqlite import SqliteStore
from redrive.worker.worker import Worker


def deaf() -> None:
    """Make the worker ignore the answers to its heartbeats, so that only the store can stop it."""
    Worker.on_heartbeat = lambda self, beat: None  # type: ignore[method-assign]


def dies_after_claim() -> None:
    """Kill the process when a claim is durable, before it starts the runs."""
    really_claim = SqliteStore.claim

    async def and_die(self: SqliteStore, claim: ClaimRequest) -> ClaimResult:
        claims = await really_claim(self, claim)
        if claims.runs:
            os.kill(os.getpid(), signal.SIGKILL)
        return claims

    SqliteStore.claim = and_die  # type: ignore[method-assign]


TRICKS = {"deaf": deaf, "dies_after_claim": dies_after_claim}


if __name__ == "__main__":
    url, folder, who, text = sys.argv[1:]
    settings = json.loads(text)
    if trick := settings.pop("trick", None):
        TRICKS[trick]()
    run_worker(scenes.build(url, Path(folder), who, **settings))
