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


@pytest.mark.parametrize("kind", ["sqlite", *cluster.ENOUGH])
async def test_every_check_succeeds(kind: str, tmp_path: Path) -> None:
    if kind == "sqlite":
        _run_checks(f"sqlite:///{tmp_path}/check.db")
        return
    cluster.need_postgres()
    async with empty_schema.ready(kind) as url:
        _run_checks(url)


def _run_checks(url: str) -> None:
    command = [sys.executable, "run.py", url, *FULL]
    done = subprocess.run(command, cwd=CHECKS, capture_output=True, text=True, timeout=1800 if FULL else 600)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {path.stem for path in CHECKS.glob("*.py")} - {"kit", "run", "work"}
    assert {line.split()[1].rstrip(":") for line in done.stdout.splitlines()} == checks
