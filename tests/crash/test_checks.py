"""The checks in `examples/checks`, with real worker processes on both databases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cluster
import empty_schema
import pytest

CHECKS = Path(__file__).parents[2] / "examples" / "checks"


@pytest.mark.parametrize("kind", ["sqlite", *cluster.ENOUGH])
async def test_every_check_succeeds(kind: str, tmp_path: Path) -> None:
    if kind == "sqlite":
        _run_checks(f"sqlite:///{tmp_path}/check.db")
        return
    cluster.need_postgres()
    async with empty_schema.ready(kind) as url:
        _run_checks(url)


def _run_checks(url: str) -> None:
    done = subprocess.run([sys.executable, "run.py", url], cwd=CHECKS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {path.stem for path in CHECKS.glob("*.py")} - {"kit", "run", "work"}
    assert {line.split()[1].rstrip(":") for line in done.stdout.splitlines()} == checks
