"""Those who wait for results are told; those who do not leave nothing behind."""

from __future__ import annotations

import sys
from typing import Any, cast

from redrive.app.results import Results
from redrive.store.port import Store


async def test_runs_that_nobody_waits_for_are_not_remembered() -> None:
    results = Results(cast(Store, None), here=list)
    for number in range(1000):
        results.look_now(f"run-{number}")
    held: Any = results._fresh
    assert sys.getsizeof(held) == sys.getsizeof(set())
