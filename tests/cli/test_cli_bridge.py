"""`redrive bridge bullmq`, up to the point where it needs a Redis."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis_server
from click.testing import CliRunner

from redrive.cli import main


def test_without_an_app_the_workflow_is_needed() -> None:
    refused = CliRunner().invoke(main, ["bridge", "bullmq"])
    assert refused.exit_code == 2
    assert "name an app as module:app, the workflow that a job starts with --workflow, or --steps" in refused.output


@pytest.mark.heavy
def test_a_bridge_serves_its_queue_until_sigterm(tmp_path: Path) -> None:
    with redis_server.running() as url:
        options = [
            "--workflow",
            "execute",
            "--tenant",
            "acme",
            "--redis",
            url,
            "--url",
            f"sqlite:///{tmp_path}/runs.db",
        ]
        command = [sys.executable, "-m", "redrive", "bridge", "bullmq", *options, "--resync"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bridge:
            assert bridge.stdout is not None
            assert "dead letters put back: 0" in bridge.stdout.readline()
            assert "serving workflow-execution; store sqlite" in bridge.stdout.readline()
            bridge.send_signal(signal.SIGTERM)
            assert "stopped; jobs in Redis wait for the next bridge" in bridge.stdout.read()
            assert bridge.wait(30) == 0
