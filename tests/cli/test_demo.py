"""`redrive demo` as a process."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import httpx2
import pytest
from worker_process import PATIENCE

from redrive import Redrive, RunFilter
from redrive.cli.demo.shop import PASSWORD, USERS
from redrive.cli.demo.worker import WorkerProcess

DEMO = [sys.executable, "-m", "redrive", "demo"]


@contextlib.contextmanager
def demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a demo whose output is piped, so that it prints lines; kill it if the test leaves it running."""
    with subprocess.Popen(
        [*DEMO, "--dir", str(folder), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.05)


def workers(folder: Path) -> list[int]:
    """Return the process ids of all workers that the demo started, from their output."""
    log = folder / "worker.log"
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return [int(pid) for pid in re.findall(r"^redrive worker (\d+): working on", text, re.MULTILINE)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").exists() or ") Z " not in Path(f"/proc/{pid}/stat").read_text()


def address_of(process: subprocess.Popen[str]) -> str:
    """Return the address of the dashboard from the demo's output."""
    assert process.stdout is not None
    return next(found[1] for line in process.stdout if (found := re.search(r"(http://\S+)", line)))


def sign_in(address: str) -> None:
    """Sign in as every user that the demo names; check role and tenant."""
    for person in USERS:
        login = {"email": person.email, "password": PASSWORD}
        me = httpx2.post(f"{address}/api/v1/login", json=login, timeout=PATIENCE).raise_for_status().json()
        assert (me["role"], me["tenant"]) == (person.role, person.tenant)


async def recovered(folder: Path) -> None:
    """Wait until a run whose worker crashed has succeeded and other runs have started."""
    async with asyncio.timeout(PATIENCE), Redrive(f"sqlite:///{folder / 'shop.db'}").client() as app:
        while True:
            page = await app.runs.list(RunFilter(workflow="import_catalogue", status="SUCCESS"))
            for run in page.items:
                (step,) = (await app.runs.get(run.id)).steps
                assert step.attempts[-1].status == "SUCCESS"
                assert {attempt.attempt for attempt in step.attempts} == {1}  # A crash does not use up an attempt.
                if (await app.runs.list(RunFilter(workflow="fulfil"))).items:
                    return
            await asyncio.sleep(0.1)


def type_what_it_says(output: str, folder: Path) -> None:
    """Run the commands that the demo prints, in a shell without redrive on its PATH."""
    lines = [line.strip() for line in output.partition("To look at it:")[2].strip().splitlines()]
    assert lines[-1].startswith("redrive runs list")
    lines = [line for line in lines if " ID " not in line]  # A user would replace ID.
    typed = subprocess.run(
        ["sh", "-e"],
        input="\n".join(lines),
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert typed.returncode == 0, typed.stderr
    assert "fulfil" in typed.stdout


def test_a_run_survives_a_crash_and_the_commands_printed_by_the_demo_work(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with demo(folder) as process:
        until(lambda: bool(workers(folder)))
        sign_in(address_of(process))
        asyncio.run(recovered(folder))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert "and was started again." in output
    assert f"The store is kept in {folder.resolve()}" in output
    assert len(workers(folder)) >= 2
    assert [pid for pid in workers(folder) if is_alive(pid)] == []
    type_what_it_says(output, tmp_path)


def test_a_killed_worker_is_started_again_and_ends_with_the_demo(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        until(lambda: bool(workers(tmp_path)))
        os.kill(workers(tmp_path)[0], signal.SIGKILL)
        until(lambda: len(workers(tmp_path)) > 1)
        process.kill()
        process.communicate(timeout=PATIENCE)
    until(lambda: not any(is_alive(pid) for pid in workers(tmp_path)))


def test_the_demo_runs_without_rich_stops_by_itself_and_cleans_up(tmp_path: Path) -> None:
    code = "import sys; sys.modules['rich'] = None; from redrive.cli import main; main(['demo', '--seconds', '0.5'])"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (result.returncode, "redrive dlq list" in result.stdout) == (0, True), result.stderr
    assert re.search(r"http://127\.0\.0\.1:\d+  sign in as owner@shop\.example", result.stdout)
    assert result.stdout.endswith("The store is removed; --keep keeps it.\n")
    assert list(tmp_path.iterdir()) == []


async def test_a_worker_that_cannot_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE), WorkerProcess(tmp_path, "mysql://nowhere") as crew:
        with pytest.raises(click.ClickException, match=r"(?s)ended with code 1; its log is .*mysql"):
            await check_until_it_raises(crew)


async def check_until_it_raises(crew: WorkerProcess) -> None:
    while True:
        crew.check()
        await asyncio.sleep(0.05)


def test_an_invalid_setting_is_reported_without_a_traceback(tmp_path: Path) -> None:
    result = subprocess.run(
        [*DEMO, "--dir", str(tmp_path)],
        env={**os.environ, "WORKER_CONCURRENCY": "many"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: concurrency (WORKER_CONCURRENCY) must be a whole number")
