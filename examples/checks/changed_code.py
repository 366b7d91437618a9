"""Code without a patch does not fit the open runs; with a patch it does, and a deploy of it continues all of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import kit
import work

from redrive.core.states import RunStatus

_RUNS = 100 if kit.FULL else 10


def _check_code(release: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "redrive", "code", "check", "work:app"]
    environment = {**os.environ, "CHECK_RELEASE": release}
    folder = Path(__file__).parent
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


async def check(workers: kit.Workers) -> str:
    workers.stop()
    workers.start()
    handles = [await work.parcel.start(f"parcel {n}") for n in range(_RUNS)]

    async def all_wait() -> bool:
        return all([await handle.status() is RunStatus.SLEEPING for handle in handles])

    await kit.until(all_wait, "all runs wait")
    hasty = await asyncio.to_thread(_check_code, "hasty")
    assert hasty.returncode == 1, hasty.stdout + hasty.stderr
    assert f"{_RUNS} of" in hasty.stderr, hasty.stderr
    patched = await asyncio.to_thread(_check_code, "patched")
    assert patched.returncode == 0, patched.stdout + patched.stderr
    workers.stop()
    workers.start(release="patched")
    late = await work.parcel.start("late")
    for handle in [*handles, late]:
        await handle.send("paid")
    results = [await handle.result(timeout=kit.PATIENCE) for handle in handles]
    assert results == [f"parcel {n} by post" for n in range(_RUNS)], results
    assert await late.result(timeout=kit.PATIENCE) == "late by courier"
    workers.stop()
    return f"code without a patch fails for {_RUNS} runs, code with it continues them; a new run took the new path"


check.starts_workers = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    kit.main(check)
