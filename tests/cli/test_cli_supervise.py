"""`redrive worker --processes` and `redrive dev` as processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.request import urlopen

import pytest
from console import PATIENCE, piped
from toy_store import TOYS
from worker_process import WorkerProcess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toys.py").write_text(TOYS, encoding="utf-8")
    return tmp_path


def pid_of(line: str) -> int:
    found = re.search(r"redrive worker (\d+): working on", line)
    assert found is not None, line
    return int(found[1])


def test_processes_are_started_again_and_stopped_together(folder: Path) -> None:
    crew = WorkerProcess(folder, "toys:app", "--processes", "2", "--url", "sqlite:///other.db")
    try:
        crew.wait_for("keeping 2 worker processes alive")
        first = [crew.wait_for("working on") for _ in range(2)]
        assert all("store sqlite:///other.db" in line for line in first)
        os.kill(pid_of(first[0]), signal.SIGKILL)
        crew.wait_for("ended with SIGKILL; it is started again in 1 s")
        third = crew.wait_for("working on")
        assert pid_of(third) not in map(pid_of, first)
        url = ("--url", f"sqlite:///{folder}/other.db")
        newest = piped("workers", "list", "-q", *url).output.split()[0]
        assert piped("workers", "drain", newest, "--reason", "a new machine", *url).exit_code == 0
        crew.wait_for("was ended by an operator; it is not started again")
        crew.signal(signal.SIGTERM)
        crew.wait_for("all worker processes have stopped")
        assert crew.wait() == 0
    finally:
        crew.end()
    for pid in (pid_of(first[1]), pid_of(third)):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_before_the_processes_have_started_is_clean(folder: Path, number: signal.Signals) -> None:
    crew = WorkerProcess(folder, "toys:app", "--processes", "2")
    try:
        crew.wait_for("keeping 2 worker processes alive")
        crew.signal(number)
        crew.wait_for("all worker processes have stopped")
        assert crew.wait() == 0
    finally:
        crew.end()


def test_processes_that_cannot_start_are_not_restarted_endlessly(folder: Path) -> None:
    crew = WorkerProcess(folder, "toys:app", "--processes", "3", "--url", "sqlite:///no/such/toys.db")
    try:
        crew.wait_for("failed at their start; giving up")
        assert crew.wait() == 1
    finally:
        crew.end()


def test_dev_reports_the_progress_of_every_run(folder: Path) -> None:
    dev = subprocess.Popen(
        [sys.executable, "-m", "redrive", "dev", "toys:app", "--no-server"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    watchdog = threading.Timer(PATIENCE, dev.kill)  # A missing line must not block the test.
    watchdog.start()
    try:
        assert dev.stdout is not None
        assert "working on make, rest, send" in dev.stdout.readline()
        to_type = [dev.stdout.readline().strip() for _ in range(4)]
        assert to_type[1].endswith("""redrive runs start make --input '{"toy": "text"}' --app toys:app""")
        assert to_type[3].endswith("redrive runs list --app toys:app")
        for toy in ("duck", "broken"):
            command = [sys.executable, "-m", "redrive", "runs", "start", "make", "--app", "toys:app"]
            subprocess.run([*command, "--input", f'{{"toy": "{toy}"}}'], cwd=folder, check=True, timeout=PATIENCE)
        told = [dev.stdout.readline() for _ in range(4)]
        assert any("paint  attempt 1, succeeded" in line for line in told), told
        assert any(re.search(r" make  SUCCESS$", line) for line in told), told
        assert any("paint  attempt 1 of 3, unclassified error, not retried" in line for line in told), told
        assert any("make  DLQ_PENDING, a dead letter: non_retryable" in line for line in told), told
        dev.send_signal(signal.SIGINT)
        assert "stopped; open runs continue when a worker starts" in dev.communicate(timeout=PATIENCE)[0]
        assert dev.returncode == 0
    finally:
        watchdog.cancel()
        if dev.poll() is None:
            dev.kill()
            dev.communicate()


@pytest.mark.parametrize("taken", [False, True])
def test_dev_serves_the_api_beside_its_worker_unless_the_port_is_taken(folder: Path, taken: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = str(occupied.getsockname()[1]) if taken else "0"
        dev = subprocess.Popen(
            [sys.executable, "-m", "redrive", "dev", "toys:app", "--port", port],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert dev.stdout is not None
            told = next(line for line in dev.stdout if "API" in line)
            if taken:
                assert "are not served: cannot listen on" in told
            else:
                with urlopen(told.split()[-1].replace("/api/docs", "/readyz"), timeout=PATIENCE) as answer:
                    assert answer.read() == b'{"status":"ok"}'
            dev.send_signal(signal.SIGINT)
            assert "stopped; open runs continue when a worker starts" in dev.communicate(timeout=PATIENCE)[0]
            assert dev.returncode == 0
        finally:
            if dev.poll() is None:
                dev.kill()
                dev.communicate()
