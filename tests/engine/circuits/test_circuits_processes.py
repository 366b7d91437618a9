"""Four processes with fifty callers at a circuit that admits three probes, on both databases (trap A4)."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import cluster
import engines
import pytest
from circuit_crew import build

from redrive import Redrive
from redrive.core.circuit import CircuitState, CircuitStatus
from redrive.settle.circuits import make_circuit_update, update_circuit
from redrive.store.circuits import CircuitRow

CREW = Path(__file__).with_name("circuit_crew.py")
PLACES = engines.KINDS
PATIENCE = 90.0
CALLERS = 50


@asynccontextmanager
async def database(kind: str, folder: Path) -> AsyncIterator[str]:
    """Yield the URL of an empty store."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/redrive.db"
        return
    cluster.need_postgres()
    async with cluster.fresh(kind) as url:
        yield url


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Poll until the condition holds and return its value; fail after `PATIENCE` seconds."""
    give_up_at = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < give_up_at, f"waited {PATIENCE:g} s in vain until {what}"
        await asyncio.sleep(0.05)


class Scene:
    """Four workers in separate processes, a client in this process, and the dependency's folder."""

    def __init__(self, app: Redrive, pay: Any, folder: Path, workers: list[Any]) -> None:
        self.app = app
        self.pay = pay
        self.folder = folder
        self.workers = workers

    def reached(self) -> list[tuple[int, int]]:
        """Return the calls that reached the dependency, as process id and number."""
        file = self.folder / "reached"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    async def circuit(self) -> CircuitRow:
        store = self.app.runtime.store
        return (await store.circuit("default", "bank", counted=1000)).row

    async def half_open(self) -> None:
        """Set the circuit half open and wait until every worker knows: the next callers are the probes."""
        state = CircuitState(status=CircuitStatus.HALF_OPEN, generation=2)
        await update_circuit(self.app.runtime.store, ("default", "bank"), lambda case: make_circuit_update(case, state))
        for worker in self.workers:
            assert await asyncio.wait_for(worker.stdout.readline(), PATIENCE) == b"knows\n"

    async def call(self) -> list[Any]:
        """Start fifty callers at once, and return when each was admitted or parked."""
        handles = await self.pay.start_many([(number,) for number in range(CALLERS)])
        await until(self._all_answered, "three call and the others wait")
        return list(handles)

    async def _all_answered(self) -> bool:
        return (await self.circuit()).parked >= CALLERS - 3 and len(self.reached()) >= 3


@asynccontextmanager
async def scene(kind: str, folder: Path) -> AsyncIterator[Scene]:
    async with database(kind, folder) as url:
        app, pay = build(url, folder)
        async with app.client():
            workers = [await _hire(url, folder) for _ in range(4)]
            try:
                for worker in workers:
                    assert await asyncio.wait_for(worker.stdout.readline(), PATIENCE) == b"ready\n"
                yield Scene(app, pay, folder, workers)
            finally:
                (folder / "go").touch()
                for worker in workers:
                    if worker.returncode is None:
                        worker.kill()
                    await worker.wait()


async def _hire(url: str, folder: Path) -> Any:
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    return await asyncio.create_subprocess_exec(sys.executable, CREW, url, str(folder), **pipes)


@pytest.mark.parametrize("kind", PLACES)
async def test_of_fifty_callers_in_four_processes_three_reach_the_dependency(tmp_path: Path, kind: str) -> None:
    async with scene(kind, tmp_path) as s:
        await s.half_open()
        handles = await s.call()
        assert len(s.reached()) == 3
        row = await s.circuit()
        assert (row.status, row.parked) == (CircuitStatus.HALF_OPEN, CALLERS - 3)
        (tmp_path / "go").touch()
        results = [await handle.result(timeout=PATIENCE) for handle in handles]
        assert results == list(range(CALLERS))
        assert sorted(number for _, number in s.reached()) == list(range(CALLERS))
        assert (await s.circuit()).status is CircuitStatus.CLOSED


@pytest.mark.parametrize("kind", PLACES)
async def test_the_permit_of_a_killed_probe_is_returned(tmp_path: Path, kind: str) -> None:
    async with scene(kind, tmp_path) as s:
        await s.half_open()
        handles = await s.call()
        victim, _ = s.reached()[0]
        killed = [number for pid, number in s.reached() if pid == victim]
        (worker,) = [worker for worker in s.workers if worker.pid == victim]
        worker.kill()
        await worker.wait()
        await until(lambda: len([pid for pid, _ in s.reached() if pid != victim]) == 3, "others have the permits")
        assert len(s.reached()) == 3 + len(killed)
        (tmp_path / "go").touch()
        assert [await handle.result(timeout=PATIENCE) for handle in handles] == list(range(CALLERS))


@pytest.mark.parametrize("kind", PLACES)
async def test_failed_probes_open_the_circuit_again_and_every_caller_waits_or_has_failed(
    tmp_path: Path, kind: str
) -> None:
    async with scene(kind, tmp_path) as s:
        await s.app.circuits.set("bank", by="ann", open_for="10m")
        await s.half_open()
        await s.call()
        (tmp_path / "down").touch()
        (tmp_path / "go").touch()

        async def opened() -> bool:
            row = await s.circuit()
            return row.is_open and row.generation == 3

        await until(opened, "it is open again")
        assert len(s.reached()) == 3
        assert (await s.circuit()).parked == CALLERS - 3
