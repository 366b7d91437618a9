"""An environment for each peer, made with pip where it is missing."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from bench.plan import ABSURD, DBOS, PGQUEUER, PROCRASTINATE

__all__ = ["PACKAGES", "Missing", "make_environment", "python_of"]

FOLDER = Path(__file__).parent.parent.parent / ".bench"

PACKAGES = {
    ABSURD: ["absurd-sdk>=0.5,<0.6", "absurdctl>=0.5,<0.6", "psycopg[binary]"],
    DBOS: ["dbos>=3.3,<4"],
    PGQUEUER: ["pgqueuer[asyncpg]>=1.6,<2"],
    PROCRASTINATE: ["procrastinate>=3.10,<4", "psycopg[binary,pool]"],
}
_MODULES = {ABSURD: "absurd_sdk"}


class Missing(Exception):
    """Error of a peer that could not be installed, for instance without a network."""


def python_of(peer: str) -> Path:
    """Return the Python of a peer's environment."""
    return FOLDER / peer / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def make_environment(peer: str) -> None:
    """Make a peer's environment unless it is there."""
    python = python_of(peer)
    if python.exists() and _run([str(python), "-c", f"import {_MODULES.get(peer, peer)}"]).returncode == 0:
        return
    venv.create(FOLDER / peer, clear=True, with_pip=True)
    done = _run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[peer]])
    if done.returncode != 0:
        raise Missing(f"pip could not install {PACKAGES[peer][0]}: {done.stderr.strip().splitlines()[-1]}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
