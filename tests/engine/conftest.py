"""Fewer crash points for the tests of the engine than `crash_everywhere` tries for users."""

from __future__ import annotations

import os

import pytest

from redrive.testing import crash
from redrive.testing.crash import CrashTiming


@pytest.fixture(autouse=True)
def crash_after_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the crash before a call: it equals the crash after the previous one. `./dev prove` tries both."""
    if os.environ.get("REDRIVE_CRASHES") != "all":
        monkeypatch.setattr(crash, "_AT_STORE_CALLS", (CrashTiming.AFTER, CrashTiming.LOST))
