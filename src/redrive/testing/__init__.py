"""Test the unhappy path as easily as the happy one.

    from redrive.testing import Crash, Http, crash_everywhere, engine, faults

    async def test_a_slow_bank_is_no_tragedy():
        async with engine(app) as e:
            with faults(step="charge", fail=[TimeoutError, Http(429, retry_after=30), Crash]):
                run = await e.run(fulfil, order)
        assert run.status == "SUCCESS"
        assert run.result == receipt

    async def test_fulfil_survives_everything():
        await crash_everywhere(fulfil, order)

Time is virtual: it stands still until the test moves it, and a two-day sleep takes a millisecond. The
store is SQLite in memory. Nothing here needs pytest; with it, the fixture `redrive_engine` is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redrive.testing.clock import VirtualClock
    from redrive.testing.crash import CrashPoint, crash_everywhere
    from redrive.testing.driver import Engine, RunReport, engine
    from redrive.testing.injection import Crash, Hang, Http, Ok, faults

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
]

_HOMES = {
    "Crash": "injection",
    "CrashPoint": "crash",
    "Engine": "driver",
    "Hang": "injection",
    "Http": "injection",
    "Ok": "injection",
    "RunReport": "driver",
    "VirtualClock": "clock",
    "crash_everywhere": "crash",
    "engine": "driver",
    "faults": "injection",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: the pytest plugin lives here and must cost nothing."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)
