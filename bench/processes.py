"""Processes of measurements: each one measures once and prints its figures as JSON."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from bench.peers.environments import python_of
from bench.plan import OURS, Measurement
from bench.stores import Stores

__all__ = ["measure"]

ROOT = Path(__file__).parent.parent


def measure(one: Measurement, stores: Stores) -> dict[str, float]:
    """Run one workload, Redrive's or a peer's, on a fresh store."""
    command = [sys.executable, "-m", "bench.ours"]
    if one.system != OURS:
        command = [str(python_of(one.system)), "-m", f"bench.peers.{one.system}_peer"]
    with stores.fresh(one.on) as url:
        wanted = {**dataclasses.asdict(one), "store": url, "server": stores.process(one.on)}
        return _call(command, one, json.dumps(wanted))


def _call(command: list[str], one: Measurement, wanted: str) -> dict[str, float]:
    """Run a measuring process; its last line is its answer."""
    done = subprocess.run([*command, wanted], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{one.workload} of {one.subject} on {one.on} failed:\n{done.stdout}{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
