"""Random decisions of several users while faults strike the engine: each is applied at most once (P6).

Fifteen seeds in the normal run. `REDRIVE_SIM=17` repeats one, `REDRIVE_SIM=1000-3000` tries others.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Any, cast

import pytest
from sim_store import CheckedStore
from test_sim import PATIENCE, Trouble

import redrive
from redrive import Redrive, RetryPolicy, StepFailed, run_info, step_info
from redrive.core.states import FINAL_RUN_STATUSES
from redrive.desk.models import DeadLetter, Run
from redrive.errors import Conflict, InputError, NotFound
from redrive.store.port import Store
from redrive.store.sqlite import SqliteStore
from redrive.testing import Engine, VirtualClock, engine

_PEOPLE = ("ann", "bob", "eve")
_RARER = ("step", "from_step", "skip", "hand", "full", "close", "cancel")
_FAILED = ("DLQ_PENDING", "TIMED_OUT")


def _seeds() -> range:
    first, _, last = os.environ.get("REDRIVE_SIM", "0-14").partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("seed", _seeds())
async def test_each_decision_is_applied_at_most_once(seed: int) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await Simulation(seed).play()
    except BaseException as error:
        error.add_note(f"repeat it with: REDRIVE_SIM={seed} ./dev test tests/sim/test_sim_replay.py")
        raise


class Office:
    """An app whose steps fail while `broken` is set, with a record of its calls."""

    def __init__(self) -> None:
        self.app = app = Redrive("sqlite:///:memory:", version="1")
        self.broken: set[str] = set()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.keys: dict[tuple[str, str], set[str]] = {}
        quick = RetryPolicy(max_retries=1, base_delay=2, jitter=0)

        @app.step(retry=quick)
        async def act(name: str) -> str:
            self._called(name)
            return name

        @app.step(at_most_once=True)
        async def once(name: str) -> str:
            self._called(name)
            return name

        @app.step(transactional=True, retry=quick)
        async def book(tx, name: str) -> str:
            await tx.execute("CREATE TABLE IF NOT EXISTS bookings (root TEXT)")
            await tx.execute("INSERT INTO bookings VALUES (?)", step_info().idempotency_key.split(":")[2])
            self._called(name)
            return "booked"

        @app.workflow(timeout="1h", max_crashes=10)
        async def job(number: int) -> list[str]:
            done = [await act("first")]
            done += await asyncio.gather(act("left"), once("once"), self._nap(act))
            try:
                done.append(await book("book"))
            except StepFailed:
                redrive.now()
                await act("clean up")
                raise
            return [*done, await act("last")]

        self.job = job

    async def _nap(self, act: Any) -> str:
        await redrive.sleep(5)
        return str(await act("right"))

    def _called(self, name: str) -> None:
        key = step_info().idempotency_key
        self.calls[key.split(":")[2], name] += 1
        self.keys.setdefault((run_info().run_id, key.rsplit(":", 2)[1]), set()).add(key)
        if name in self.broken:
            raise ConnectionError(f"{name} is down")


class Simulation:
    """A simulation of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock(seed=seed)
        self.office = Office()
        self.store = CheckedStore(SqliteStore("sqlite:///:memory:", self.clock))
        often = self.rng.choice([0.0, 0.02, 0.1])
        self.trouble = Trouble(self.rng, self.clock, often=often, crashes_left=self.rng.choice([0, 2, 5]))
        self.taken: Counter[str] = Counter()

    async def play(self) -> None:
        store = cast(Store, self.store)
        async with engine(self.office.app, store=store, clock=self.clock, plan=self.trouble) as e:
            for number in range(self.rng.randint(1, 3)):
                await self.office.job.start(number)
            for _ in range(self.rng.randint(6, 14)):
                self._change_the_world()
                await e.advance(self.rng.choice([0, 1, 6, 30, 120, 4000]))
                await self._let_people_decide(e)
                await self._check(e)
            self.trouble.often = 0.0
            await e.finish_all()
            await self._check(e)
            assert self.store.violations == []

    def _change_the_world(self) -> None:
        names = ["first", "left", "right", "once", "book", "last", "clean up"]
        self.office.broken = {name for name in names if self.rng.random() < self.rng.choice([0, 0.2, 0.6])}

    # -- users -------------------------------------------------------------------------------------------

    async def _let_people_decide(self, e: Engine) -> None:
        letters = (await e.app.dlq.list()).items
        if self.rng.random() < 0.8:
            letters = [letter for letter in letters if letter.status == "OPEN"]
        if letters:
            chosen = [self.rng.choice(letters) for _ in range(self.rng.randint(1, 4))]
            task = asyncio.gather(*[self._decide(e, letter) for letter in chosen])
            while not task.done():
                await asyncio.wait([task], timeout=0.01)

    async def _decide(self, e: Engine, letter: DeadLetter) -> None:
        try:
            await self._one_decision(e, letter)
        except (Conflict, InputError, NotFound):
            self.taken["refused"] += 1
        else:
            self.taken["taken"] += 1

    async def _one_decision(self, e: Engine, letter: DeadLetter) -> None:
        dlq, by, rng = e.app.dlq, self.rng.choice(_PEOPLE), self.rng
        match rng.choice(["from_failed"] * 4 + ["step", "from_step", "skip", "hand", "full", "close", "cancel"]):
            case "from_failed":
                edit = {"patch": {"number": rng.randint(0, 9)}} if rng.random() < 0.3 else {}
                await dlq.replay(letter.id, by=by, **edit)
            case "step":
                await dlq.replay(letter.id, "STEP_ONLY", by=by)
            case "from_step":
                steps = (await dlq.get(letter.id)).steps
                begin = rng.choice([s.index for s in steps if s.name != "once"] or [0])
                await dlq.replay(letter.id, "FROM_STEP", from_step=begin, by=by)
            case "skip":
                await dlq.replay(letter.id, "SKIP", output="given", by=by)
            case "hand":
                await dlq.complete(letter.id, "given", by=by)
            case "full":
                await dlq.replay(letter.id, "FULL", by=by)
            case "close":
                await rng.choice([dlq.resolve, dlq.ignore])(letter.id, by=by)
            case "cancel":
                await e.app.runs.cancel(letter.run_id, by=by)

    # -- the promises ------------------------------------------------------------------------------------

    async def _check(self, e: Engine) -> None:
        runs = {run.id: run for run in (await e.app.runs.list(limit=500)).items}
        letters = [await e.app.dlq.get(letter.id) for letter in (await e.app.dlq.list()).items]
        roots = Counter(root_of(runs[letter.run_id], runs) for letter in letters)
        assert all(count == 1 for count in roots.values()), roots
        failed = {run.id for run in runs.values() if run.status == "DLQ_PENDING"}
        assert failed <= {letter.run_id for letter in letters}
        for letter in letters:
            self._check_letter(letter, runs[letter.run_id])
        assert all(n <= 1 for (_, name), n in self.office.calls.items() if name == "once"), self.office.calls
        assert all(len(keys) == 1 for keys in self.office.keys.values())
        await self._check_bookings(e, runs)

    def _check_letter(self, letter: DeadLetter, run: Run) -> None:
        going_on = [replay for replay in letter.replays if replay.outcome is None]
        failures = [replay for replay in letter.replays if replay.outcome in _FAILED]
        decided = [line for line in letter.history if line.event in ("dlq.retry", "dlq.completed")]
        assert len(going_on) == (letter.status == "REPLAYING"), letter
        assert (letter.replay_count, letter.failed_replays) == (len(letter.replays), len(failures)), letter
        assert len(decided) == len(letter.replays), letter
        assert [replay.number for replay in letter.replays] == list(range(1, len(letter.replays) + 1))
        match letter.status:
            case "REPLAYING":
                assert run.status not in FINAL_RUN_STATUSES
                assert going_on == [letter.replays[-1]]
                assert going_on[0].run_id == run.id
            case "OPEN":
                assert run.status in _FAILED
            case "IGNORED":
                assert run.status in ("FAILED", "TIMED_OUT")
            case "RESOLVED":
                by_replay = letter.closed_by == "redrive"
                assert run.status in (("SUCCESS", "PARTIAL", "CANCELLED") if by_replay else ("FAILED", "TIMED_OUT"))
            case other:
                raise AssertionError(other)

    async def _check_bookings(self, e: Engine, runs: dict[str, Run]) -> None:
        """Check P2 over all replays: there are as many effects as current and superseded results."""
        recorded = 0
        for run in runs.values():
            steps = (await e.app.runs.get(run.id)).steps
            recorded += sum(s.name == "book" and s.output == "booked" for s in steps)
        tables = await e.fetch("SELECT name FROM sqlite_master WHERE name = 'bookings'")
        rows = await e.fetch("SELECT root FROM bookings") if tables else []
        assert len(rows) == recorded


def root_of(run: Run, runs: dict[str, Run]) -> str:
    """Return the id of the first run in a chain of full replays."""
    return run.id if run.replay_of is None else root_of(runs[run.replay_of], runs)
