"""The engine on uvloop, which creates tasks differently: tests that depend on tasks run there, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

CORE = (
    "test_branches.py",
    "test_def_workflows.py",
    "test_resuming.py::test_the_branch_that_finished_first_is_first_again_after_a_resume",
    "test_resuming.py::test_task_groups_time_limits_and_wrapped_calls_resume_the_same_way",
    "../app/test_app_results.py",
    "test_time_limits.py::test_cancelling_reaches_a_running_step_with_the_next_heartbeat",
)
PLUGIN = """
import asyncio
import pytest
import uvloop

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())

@pytest.fixture(autouse=True)
async def _really_on_uvloop():
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
"""


def test_the_core_scenarios_hold_on_uvloop(tmp_path: Path) -> None:
    (tmp_path / "on_uvloop.py").write_text(PLUGIN)
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "on_uvloop", "-p", "no:cacheprovider"]
    quietly = ["-W", "ignore::DeprecationWarning", f"--basetemp={tmp_path / 'inner'}"]
    done = subprocess.run(
        [*command, *quietly, *(str(here / name) for name in CORE)],
        cwd=here.parent.parent,
        env={**_environment(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def _environment() -> dict[str, str]:
    """Return the environment without the variables of the outer pytest."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
