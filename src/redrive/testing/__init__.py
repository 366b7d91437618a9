"""The testing kit: virtual time, injected faults, and crashes at every point of a workflow.

    from redrive.testing import Crash, Http, crash_everywhere, engine, faults

    async def test_a_run_survives_a_slow_bank():
        async with engine(app) as e:
            with faults(step="charge", fail=[TimeoutError, Http(429, retry_after=30), Crash]):
                run = await e.run(fulfil, order)
        assert run.status == "SUCCESS"
        assert run.result == receipt

    async def test_fulfil_survives_everything():
        await crash_everywhere(fulfil, order)

Time is virtual: it stands still until the test moves it, and a sleep of two days takes a millisecond. The store is
SQLite in memory. The kit does not need pytest; with pytest, there is the fixture `redrive_engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.app.code_check import replay_histories
    from redrive.testing.crash import CrashPoint, crash_everywhere
    from redrive.testing.step_faults import Crash, Hang, Http, Ok, faults, stand_in
    from redrive.testing.virtual_clock import VirtualClock
    from redrive.testing.virtual_engine import Engine, RunReport, engine

__all__ = [
    "Crash",
    "CrashPoint",
    "Engine",
    "Hang",
    "Http",
    "Ok",
    "RunReport",
    "VirtualClock",
    "crash_everywhere",
    "engine",
    "faults",
    "replay_histories",
    "stand_in",
]

_MODULES = {
    "redrive.app.code_check": ("replay_histories",),
    ".virtual_clock": ("VirtualClock",),
    ".crash": ("CrashPoint", "crash_everywhere"),
    ".virtual_engine": ("Engine", "RunReport", "engine"),
    ".step_faults": ("Crash", "Hang", "Http", "Ok", "faults", "stand_in"),
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use: pytest loads this package as a plugin in every session, so it must be cheap."""
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
