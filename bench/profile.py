"""Where the time of a step goes, function by function, on the loop's thread.

The profiler slows everything down, small functions most. So the burst is measured without it as well,
and what the profiler saw is scaled to that: the column adds up to what a step really costs.
"""

from __future__ import annotations

import asyncio
import cProfile
from collections import Counter, defaultdict
from operator import itemgetter
from pathlib import Path
from types import CodeType

from bench.ours.cpu import Cpu
from bench.ours.flows import Flows
from bench.stores import fresh_file

__all__ = ["profile"]

RUNS, STEPS, SHOWN = 1000, 5, 40
PLACES = ("src/redrive/", "site-packages/", "lib/python")


def profile() -> None:
    """Print the functions that cost most, in microseconds per step."""
    with fresh_file() as path:
        asyncio.run(_profile(f"sqlite:///{path}"))


async def _profile(url: str) -> None:
    flows = Flows(url, concurrency=RUNS)
    async with flows.app:
        await _burst(flows)
        cpu = Cpu()
        await _burst(flows)
        loop, everything = cpu.here, cpu.all
        profiler = cProfile.Profile()
        profiler.enable()
        await _burst(flows)
        profiler.disable()
    _print(profiler, loop / (RUNS * STEPS) * 1e6, everything / (RUNS * STEPS) * 1e6)


async def _burst(flows: Flows) -> None:
    handles = await flows.five.start_many([(number,) for number in range(RUNS)])
    await asyncio.gather(*(handle.result() for handle in handles))


def _print(profiler: cProfile.Profile, loop: float, everything: float) -> None:
    functions: dict[str, float] = defaultdict(float)
    parts: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for entry in profiler.getstats():
        place = _place(entry.code)
        if "poll" not in place:  # waiting is no work
            functions[place] += entry.inlinetime
            parts[_part(place)] += entry.inlinetime
            calls[place] += entry.callcount
    scale = loop / sum(functions.values())
    print(f"{loop:.1f} µs per step on the loop's thread, {everything - loop:.1f} µs on the store's threads\n")
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
    """The folder of a function; what is written in C has none, but may say whose it is."""
    if "asyncio" in place or "_contextvars" in place:
        return "asyncio"
    if "sqlite3" in place:
        return "store"
    folder, found, _ = place.rpartition("/")
    return folder if found else "records" if "of records" in place else "all else, and what is built in"


def _place(code: CodeType | str) -> str:
    """Where a function is; the methods of records are made of text and have no place."""
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
