"""The checks in `examples/checks`, with real worker processes on both databases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cluster
import empty_schema
import pytest

CHECKS = Path(__file__).parents[2] / "examples" / "checks"
FULL = ["--full"] if int(os.environ.get("REDRIVE_SOAK", "1")) > 1 else []
"""Makes the checks as long as the issue asks for: 50 kills over 200 runs."""


def test_every_check_succeeds(tmp_path: Path) -> None:
    output = _run("run.py", f"sqlite:///{tmp_path}/check.db", tmp_path)
    checks = {path.stem for path in CHECKS.glob("*.py")} - {"kit", "run", "work"}
    assert {line.split()[1].rstrip(":") for line in output.splitlines()} == checks


@pytest.mark.parametrize("kind", cluster.ENOUGH)
async def test_workers_are_killed_on_postgres(kind: str, tmp_path: Path) -> None:
    """`./dev prove` runs all checks there."""
    cluster.need_postgres()
    async with empty_schema.ready(kind) as url:
        assert "ok  " in _run("run.py" if FULL else "kills.py", url, tmp_path)


def _run(script: str, url: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, script, url, *FULL],
        cwd=CHECKS,
        env={**os.environ, "CHECK_FOLDER": str(folder)},
        capture_output=True,
        text=True,
        timeout=1800 if FULL else 600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
