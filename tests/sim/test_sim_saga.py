"""Random workflows that are rolled back while faults strike: everything is undone, in order (P7).

Fifteen seeds in the normal run. `REDRIVE_SIM=17` repeats one, `REDRIVE_SIM=1000-3000` tries others.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any, cast

import pytest
from sim_programs import Node, Sim, Writer
from sim_store import CheckedStore
from test_sim import PATIENCE, Trouble

from redrive import RetryPolicy, RunHandle, step_info
from redrive.chores import Reaper
from redrive.core.saga import read_ledger
from redrive.core.states import EntryKind, StepStatus
from redrive.reasons import Reason, ReasonCode
from redrive.store.filters import LetterFilter
from redrive.store.port import Store
from redrive.store.sqlite import SqliteStore
from redrive.testing import Engine, VirtualClock, engine

_UNDONE = ("act", "once", "book")


def _seeds() -> range:
    first, _, last = os.environ.get("REDRIVE_SIM", "0-14").partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("seed", _seeds())
async def test_everything_is_undone_in_order(seed: int) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await Simulation(seed).play()
    except BaseException as error:
        error.add_note(f"repeat it with: REDRIVE_SIM={seed} ./dev test tests/sim/test_sim_saga.py")
        raise


class Simulation:
    """A simulation of one seed: a few programs that are rolled back if they do not succeed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock(seed=seed)
        self.sim = Sim(self.clock)
        self.store = CheckedStore(SqliteStore("sqlite:///:memory:", self.clock))
        often = self.rng.choice([0.0, 0.02, 0.1, 0.3])
        self.trouble = Trouble(self.rng, self.clock, often=often, crashes_left=self.rng.choice([0, 3, 12]))
        self.undone: list[tuple[str, str]] = []
        self.keys: dict[tuple[str, str], set[str]] = {}
        self.refuses: dict[str, int] = {}
        self.stuck = 0
        self.program = self._prepare()

    def _prepare(self) -> Any:
        app = self.sim.app
        policy = RetryPolicy(max_retries=1, base_delay=2, factor=1, jitter=0)

        async def undo_act(name: str, fails: int, takes: float, result: str | None) -> None:
            self._undo(name)

        async def undo_once(name: str, result: str) -> None:
            self._undo(name)

        async def undo_book(run: str, name: str, result: str) -> None:
            self._undo(name)

        app.registered_steps["act"].compensate(uncertain=True, retry=policy)(undo_act)
        app.registered_steps["once"].compensate(retry=policy)(undo_once)
        app.registered_steps["book"].compensate(retry=policy)(undo_book)

        @app.workflow(max_crashes=1000, rollback=True)
        async def saga(program: list[Any]) -> Any:
            return await self.sim.play.fn(program)

        return saga

    def _undo(self, name: str) -> None:
        info = step_info()
        self.undone.append((info.run_id, name))
        self.keys.setdefault((info.run_id, name), set()).add(info.idempotency_key)
        left = self.refuses.setdefault(name, self.rng.choice([0, 0, 0, 1, 2, 3]))
        if left:
            self.refuses[name] = left - 1
            raise ConnectionError(f"{name} cannot be undone yet")

    async def play(self) -> None:
        store = cast(Store, self.store)
        async with engine(self.sim.app, store=store, clock=self.clock, plan=self.trouble) as e:
            handles = [await self._start() for _ in range(self.rng.randint(1, 3))]
            await self._let_things_happen(e, handles)
            self.trouble.often = 0.0
            for handle in handles:
                await self._finish(e, handle)
            assert self.store.violations == []  # P4
            for handle in handles:
                await self._check(e, handle.id)

    async def _start(self) -> RunHandle[Any]:
        program: Node = Writer(self.rng, ("all", "act")).program()
        if self.rng.random() < 0.7:
            program = (*program, ("doom", "the end"))
        limit = self.rng.choice([None, None, "20s", "10m"])
        return cast("RunHandle[Any]", await self.program.start(list(program), deadline=limit))

    async def _let_things_happen(self, e: Engine, handles: list[RunHandle[Any]]) -> None:
        outsider = Reaper(e.store, self.clock)
        for _ in range(self.rng.randint(3, 12)):
            await e.advance(self.rng.choice([0, 0.3, 2, 10, 45, 900]))
            match self.rng.choice(["nothing"] * 4 + ["reap", "restart", "crash", "cancel"]):
                case "reap":
                    await outsider.run_once()
                case "restart":
                    await e.restart()
                case "crash":
                    await e.crash()
                case "cancel":
                    handle = self.rng.choice(handles)
                    if await handle.status() in ("PENDING", "RUNNING", "SLEEPING"):
                        await handle.cancel(by="the simulation")

    async def _finish(self, e: Engine, handle: RunHandle[Any]) -> None:
        """Finish a run; resume its rollback whenever that stopped."""
        for _ in range(50):
            run = await e.finish(handle)
            if run.described.code != "compensation_failed":
                return
            self.stuck += 1
            await (await e.app.saga(handle.id)).resume(by="the simulation")
        raise AssertionError("resumed fifty times in vain")

    # -- the promise -------------------------------------------------------------------------------------

    async def _check(self, e: Engine, run_id: str) -> None:
        row = await e.store.run(run_id)
        assert row is not None
        journal = await e.store.journal(row.id)
        calls = [name for run, name in self.undone if run == run_id]
        rows = read_ledger(journal)
        if row.status == "SUCCESS":
            assert (calls, rows) == ([], ())
            return
        assert row.status in ("COMPENSATED", "TIMED_OUT", "CANCELLED"), row
        steps = [entry for entry in journal if entry.kind is EntryKind.STEP and entry.name in _UNDONE]
        happened = {entry.index for entry in steps if entry.status is StepStatus.SUCCESS}
        certain = [each for each in rows if not each.uncertain]
        assert {each.undone.index for each in certain} == happened  # every step, each once
        assert all(each.is_done for each in rows)
        done = [each.undone.done or 0 for each in certain]
        assert done == sorted(done, reverse=True)
        self._check_calls(calls, rows)
        for name in set(calls):
            assert len(self.keys[run_id, name]) == 1
        letters = [x for x in (await e.store.letters(LetterFilter(), limit=500, cursor=None)).items if x.run == row.id]
        if row.status == "COMPENSATED":
            resolutions = [Reason.from_text(letter.resolution or "").code for letter in letters]
            assert resolutions == [ReasonCode.ROLLED_BACK]
        assert len(letters) <= 1  # P5
        assert (row.status == "TIMED_OUT") <= (len(letters) == 1)

    def _check_calls(self, calls: list[str], rows: Any) -> None:
        """Check that compensations were called in the order of the ledger, each after the one before ended."""
        import json

        wanted = [json.loads(each.entry.input)["name"] for each in rows if not each.is_listed_only]
        assert list(dict.fromkeys(calls)) == wanted, (calls, wanted)
