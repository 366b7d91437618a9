"""A profile of a step: the time of each function on the loop's thread.

The profiler slows everything down, small functions most. So the burst is measured without it as well,
and what the profiler saw is scaled to that: the column adds up to what a step really costs.
"""

from __future__ import annotations

import cProfile
from collections import Counter, defaultdict
from operator import itemgetter
from pathlib import Path
from types import CodeType

from bench.cpu import Cpu
from bench.ours.flows import Flows
from bench.ours.throughput import STEPS, burst
from bench.stores import Stores
from redrive.cli.worker_process import run_event_loop, tune_interpreter

__all__ = ["profile"]

BURSTS, RUNS, SHOWN = 5, 1000, 40
PLACES = ("src/redrive/", "site-packages/", "lib/python")


def profile(stores: Stores, on: str) -> None:
    """Print the functions that cost most, in microseconds per step, on one kind of store."""
    tune_interpreter()
    with stores.fresh(on) as url:
        run_event_loop(_profile(url, stores.process(on)))


async def _profile(url: str, server: int | None) -> None:
    flows = Flows(url, concurrency=RUNS)
    async with flows.app:
        await burst(flows, RUNS)
        cpu = Cpu(server)
        for _ in range(BURSTS):
            await burst(flows, RUNS)
        steps = BURSTS * RUNS * STEPS
        loop, others, there = (part / steps * 1e6 for part in (cpu.here, cpu.all - cpu.here, cpu.there))
        profiler = cProfile.Profile()
        profiler.enable()
        await burst(flows, RUNS)
        profiler.disable()
    print(f"µs per step: {loop:.1f} on the loop's thread, {others:.1f} on others, {there:.1f} in the server\n")
    _print(profiler, loop)


def _print(profiler: cProfile.Profile, loop: float) -> None:
    functions: dict[str, float] = defaultdict(float)
    parts: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for entry in profiler.getstats():
        place = _place(entry.code)
        if "poll" not in place:  # waiting costs no processor time
            functions[place] += entry.inlinetime
            parts[_part(place)] += entry.inlinetime
            calls[place] += entry.callcount
    scale = loop / sum(functions.values())
    print("     µs   share   part          (self, per step)")
    for part, seconds in _largest(parts):
        print(f"{seconds * scale:7.2f}  {seconds * scale / loop:6.1%}   {part}")
    print("\n     µs   share   calls   function")
    for place, seconds in _largest(functions)[:SHOWN]:
        count = calls[place] / (RUNS * STEPS)
        print(f"{seconds * scale:7.2f}  {seconds * scale / loop:6.1%}  {count:6.2f}   {place}")


def _largest(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=itemgetter(1), reverse=True)


def _part(place: str) -> str:
    """Return the folder of a function. Functions in C have none, but may name their module."""
    if "asyncio" in place or "_contextvars" in place:
        return "asyncio"
    if "sqlite3" in place or "asyncpg" in place or "_socket" in place:
        return "the driver"
    folder, found, _ = place.rpartition("/")
    return folder if found else "records" if "of records" in place else "all else, and what is built in"


def _place(code: CodeType | str) -> str:
    """Return the file and line of a function. Generated methods of records have none."""
    if isinstance(code, str):
        return code
    if code.co_filename == "<string>":
        return f"{code.co_name} of records"
    text = Path(code.co_filename).as_posix()
    for folder in PLACES:
        _, found, rest = text.rpartition(folder)
        if found:
            return f"{rest}:{code.co_firstlineno} {code.co_name}"
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}"
