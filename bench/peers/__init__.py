"""Peers: comparable systems, each in an environment of its own, running the same workloads.

A peer's packages are never installed beside Redrive's. `make_environment` makes what is missing with
pip; the script `dbos_peer.py` runs inside it and imports nothing from here.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from bench.plan import Measurement
from bench.processes import call
from bench.stores import FOLDER, fresh_file, prepare

__all__ = ["Missing", "make_environment", "measure_peer"]

PACKAGE = "dbos>=3.3,<4"
ENVIRONMENT = FOLDER / "dbos"
PYTHON = ENVIRONMENT / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
SCRIPT = Path(__file__).parent / "dbos_peer.py"


class Missing(Exception):
    """The peer could not be installed, for instance because there is no network."""


def make_environment() -> None:
    """Make the peer's environment unless it is there."""
    prepare()
    if PYTHON.exists() and _run([str(PYTHON), "-c", "import dbos"]).returncode == 0:
        return
    venv.create(ENVIRONMENT, clear=True, with_pip=True)
    done = _run([str(PYTHON), "-m", "pip", "install", "--quiet", PACKAGE])
    if done.returncode != 0:
        raise Missing(f"pip could not install {PACKAGE}: {done.stderr.strip().splitlines()[-1]}")


def measure_peer(one: Measurement) -> dict[str, float]:
    """Run one of the peer's workloads on a fresh SQLite file."""
    with fresh_file() as path:
        return call([str(PYTHON), str(SCRIPT)], one, str(path))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
