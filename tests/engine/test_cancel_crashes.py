"""Cancellation with faults: each of its store calls fails or loses its reply."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.clock import SystemClock
from redrive.core.redact import Redactor
from redrive.core.states import RunStatus, StepStatus
from redrive.desk.presenter import Presenter
from redrive.desk.runs import Runs
from redrive.errors import StoreUnavailable
from redrive.testing.faulty_store import FAIL, LOSE, Fault, inject_faults, nth


@pytest.mark.parametrize("fault", [FAIL, LOSE], ids=["call fails", "reply is lost"])
@pytest.mark.parametrize("call", range(1, 8))
async def test_a_cancellation_is_applied_once_whatever_happens_to_its_calls(
    tmp_path: Path, call: int, fault: Fault
) -> None:
    app = Redrive(f"sqlite:///{tmp_path}/cancel.db", lease="1s")
    begun = asyncio.Event()

    @app.step
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.workflow
    async def job() -> None:
        await endless()

    async with app:
        handle = await job.start()
        await asyncio.wait_for(begun.wait(), 10)
        store = inject_faults(app.runtime.store, nth(call, fault))
        own = app.runtime.runs
        runs = Runs(
            store,
            SystemClock(),
            Presenter(Redactor()),
            own._replayer,
            own._previewer,
            app.runtime.changed,
            store.workers,
            own._sender,
        )
        for _ in range(2):  # a user whose call failed tries again
            try:
                await runs.cancel(handle.id, by="a test")
                break
            except StoreUnavailable:
                continue
        run = await handle.describe()
        letters = (await app.dlq.list()).items
    assert (run.status, letters) == (RunStatus.CANCELLED, [])
    assert {step.status for step in run.steps} <= {StepStatus.CANCELLED}
