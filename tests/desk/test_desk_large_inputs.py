"""Large inputs, patches and outputs: a thread checks and compares them, and the event loop does not."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from desk_kit import ONCE, new_app

from redrive import NonRetryable, Redrive
from redrive.app import Workflow
from redrive.core.payload import Signature
from redrive.desk import replays, validation
from redrive.desk.run_starter import StartRequest
from redrive.desk.validation import LARGE_SIZE, PayloadChecker, measure_size
from redrive.errors import PayloadTooLarge
from redrive.testing import engine

LISTS: list[list[str]] = [[]] * 8_000
NUMBERS = [0.5] * 8_000


def import_app() -> tuple[Redrive, Workflow[..., Any, object]]:
    """Return an app whose step fails for good, with a parameter and a result of any shape."""
    app = new_app()

    @app.step(retry=ONCE)
    async def load(rows: list[Any]) -> list[Any]:
        raise NonRetryable("the table is locked")

    @app.workflow
    async def importing(rows: list[Any]) -> int:
        return len(await load(rows))

    return app, importing


class Threads:
    """Records of the threads in which functions handle small and large values."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *places: tuple[Any, str]) -> None:
        self.large: dict[str, set[bool]] = {}
        self.small: dict[str, set[bool]] = {}
        here = threading.get_ident()
        for owner, name in places:
            monkeypatch.setattr(owner, name, self._noted(name, getattr(owner, name), here))

    def _noted(self, name: str, real: Any, here: int) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            size = measure_size(list(given), more)
            noted = self.large if size >= LARGE_SIZE else self.small
            noted.setdefault(name, set()).add(threading.get_ident() == here)
            return real(*given, **more)

        return call


@pytest.mark.parametrize("rows", [LISTS, NUMBERS, ["x" * LARGE_SIZE]], ids=["lists", "numbers", "text"])
async def test_the_loop_checks_small_values_only(monkeypatch: pytest.MonkeyPatch, rows: list[Any]) -> None:
    app, importing = import_app()
    async with engine(app) as e:
        run = await importing.start([1])
        await e.settle()
        threads = Threads(
            monkeypatch,
            (PayloadChecker, "_encode"),
            (PayloadChecker, "_decode"),
            (validation, "find_faults"),
            (validation, "find_masked_paths"),
            (replays, "encode_json"),
            (replays, "diff_json"),
        )
        desk = app.runtime.desk(app.runtime.store, app.runtime.clock)
        for some in ([2], rows):
            await desk.starter.start([StartRequest(workflow="importing", input={"rows": some})])
            await app.dlq.replay(run.id, input={"rows": some}, dry_run=True)
            await app.dlq.replay(run.id, patch={"rows": some}, dry_run=True)
            await app.dlq.replay(run.id, "SKIP", output=some, dry_run=True)
        del app.registered_workflows["importing"], app.registered_steps["load"]
        for some in ([3], rows):
            await app.dlq.replay(run.id, input={"rows": some}, dry_run=True)
            await app.dlq.replay(run.id, "SKIP", output=some, dry_run=True)
    assert len(threads.small) == len(threads.large) == 6
    assert set.union(*threads.small.values()) == {True}
    assert set.union(*threads.large.values()) == {False}


async def test_a_value_far_above_the_limit_is_refused_before_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    app, importing = import_app()
    async with engine(app) as e:
        run = await importing.start([1])
        await e.settle()
        threads = Threads(monkeypatch, (Signature, "decode"), (Signature, "decode_result"), (validation, "find_faults"))
        huge = ["x" * (3 << 20)]
        desk = app.runtime.desk(app.runtime.store, app.runtime.clock)
        with pytest.raises(PayloadTooLarge, match=r"the input of workflow 'importing' takes 3\.0 MiB"):
            await desk.starter.start([StartRequest(workflow="importing", input={"rows": huge})])
        with pytest.raises(PayloadTooLarge, match=r"the output of step 'load' takes 3\.0 MiB"):
            await app.dlq.replay(run.id, "SKIP", output=huge)
        del app.registered_workflows["importing"]
        with pytest.raises(PayloadTooLarge):
            await app.dlq.replay(run.id, input={"rows": huge})
    assert (threads.small, threads.large) == ({}, {})


def test_a_length_is_counted_up_to_the_limit_only() -> None:
    class Counted(list[Any]):
        looked_at = 0

        def __iter__(self) -> Any:
            Counted.looked_at += 1
            return super().__iter__()

    assert measure_size(Counted([Counted()] * LARGE_SIZE)) >= LARGE_SIZE
    assert measure_size({"rows": [Counted(), Counted([1.5]), "abc"]}, None) < 100
    assert Counted.looked_at == 2
