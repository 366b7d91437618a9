"""Each measurement runs in a process of its own, which prints its figures as JSON."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from bench.plan import Measurement
from bench.stores import fresh_file

__all__ = ["call", "measure_ours"]

ROOT = Path(__file__).parent.parent


def measure_ours(one: Measurement, store: str | None) -> dict[str, float]:
    """Run one of Redrive's workloads on a fresh SQLite file, or on the store that was named."""
    if store is not None:
        return call([sys.executable, "-m", "bench.ours"], one, store)
    with fresh_file() as path:
        return call([sys.executable, "-m", "bench.ours"], one, f"sqlite:///{path}")


def call(command: list[str], one: Measurement, store: str) -> dict[str, float]:
    """Run a measuring process; its last line is its answer."""
    wanted = json.dumps({**dataclasses.asdict(one), "store": store})
    done = subprocess.run([*command, wanted], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{one.workload} of {one.subject} failed:\n{done.stdout}{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
