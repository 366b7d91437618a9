"""`python -m bench walk`: the files and functions that one run passes, and its calls up the layers.

A run of one step is started on a SQLite file, with the worker in the same process, and its result is awaited.
All threads are watched from the start until the result is there. Some work happens beside a run by chance,
such as a heartbeat, or the worker's look at circuits after it was idle. So many runs are watched, some
right after another and some after a pause, and only what all of them have in common is counted.

A call "up the layers" is a call from a module to a module of a higher layer of the import contract in
`pyproject.toml`: a callback, since the lower module cannot import the higher one.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType

from bench.stores import fresh_file
from redrive import Redrive

__all__ = ["walk"]

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
BENCH = str(Path(__file__).parent)
RUNS, WARM_UP = 100, 20
# Seconds before a run, in turn: the worker is still busy, is idle, or was idle for so long that it polls rarely.
PAUSES = (0, 0.05, 0, 0.05, 0, 0.05, 0, 0.05, 0, 2.5)


class Walk:
    """The functions that were called, in order, and the calls among them."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, None] = {}
        self.calls: dict[tuple[CodeType, CodeType], None] = {}

    def add(self, frame: FrameType) -> None:
        """Note a call of a function in the source folder, with the function there that called it."""
        if (function := enclosing_function(frame)) is None:
            return
        self.functions[function] = None
        caller = frame.f_back
        # Look through the standard library (context managers, gather), but not through the user's code.
        while caller is not None and not caller.f_code.co_filename.startswith(BENCH):
            if (calling := enclosing_function(caller)) is not None:
                self.calls[calling, function] = None
                return
            caller = caller.f_back


class Recorder:
    """The profile function of all threads; it notes calls while it has a walk."""

    def __init__(self) -> None:
        self.walk: Walk | None = None

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (walk := self.walk) is not None:
            walk.add(frame)


def enclosing_function(frame: FrameType) -> CodeType | None:
    """Return the function of a frame if it is ours; a comprehension or lambda belongs to its caller."""
    code = frame.f_code
    ours = code.co_filename.startswith(str(SOURCE)) and not code.co_name.startswith("<")
    return code if ours else None


def walk() -> None:
    """Print what one run passes."""
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        with fresh_file() as path:
            walks = asyncio.run(record(f"sqlite:///{path}", recorder))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    print_walk(common_part(walks))


async def record(url: str, recorder: Recorder) -> list[Walk]:
    """Return the walks of several runs, one after the other."""
    app, walks = Redrive(url), []

    @app.step
    async def single(number: int) -> int:
        return number

    @app.workflow
    async def one(number: int) -> int:
        return await single(number)

    async with app:
        for number in range(WARM_UP):
            handle = await one.start(number)
            await handle.result()
        for number in range(RUNS):
            await asyncio.sleep(PAUSES[number % len(PAUSES)])
            recorder.walk = Walk()
            walks.append(recorder.walk)
            handle = await one.start(number)
            await handle.result()
            recorder.walk = None
    return walks


def common_part(walks: list[Walk]) -> Walk:
    """Return what all walks have in common, in the order of the first."""
    common = Walk()
    for function in walks[0].functions:
        if all(function in each.functions for each in walks):
            common.functions[function] = None
    for call in walks[0].calls:
        if all(call in each.calls for each in walks):
            common.calls[call] = None
    return common


def print_walk(found: Walk) -> None:
    """Print the counts, the calls up, and the files in the order in which the run reached them."""
    layers = read_layers()
    files: dict[str, int] = {}
    for function in found.functions:
        files[file_of(function)] = files.get(file_of(function), 0) + 1
    up = [call for call in found.calls if is_up(call, layers)]
    print(f"files       {len(files):4}\nfunctions   {len(found.functions):4}\ncalls up    {len(up):4}")
    print("\ncalls up the layers")
    for caller, called in up:
        print(f"    {place_of(caller)} -> {place_of(called)}")
    print("\nfiles, in order, with the functions passed in each")
    for number, (file, functions) in enumerate(files.items(), start=1):
        print(f"{number:4}  {functions:3}  {file}")


def read_layers() -> dict[str, int]:
    """Return the height of each package or module that the import contract names; 0 is the bottom."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    heights: dict[str, int] = {}
    for height, layer in enumerate(reversed(layers)):
        for name in layer.replace("|", ":").split(":"):
            heights[name.strip(" ()")] = height
    return heights


def is_up(call: tuple[CodeType, CodeType], layers: Mapping[str, int]) -> bool:
    """Return True if a call goes from a lower layer to a higher one."""
    caller, called = (height_of(function, layers) for function in call)
    return caller is not None and called is not None and caller < called


def height_of(function: CodeType, layers: Mapping[str, int]) -> int | None:
    """Return the layer of a function's package; None for what the contract does not name."""
    package = ".".join(Path(file_of(function)).with_suffix("").parts[:1])
    return layers.get(f"redrive.{package}")


def file_of(function: CodeType) -> str:
    return Path(function.co_filename).relative_to(SOURCE / "redrive").as_posix()


def place_of(function: CodeType) -> str:
    return f"{file_of(function)} {function.co_qualname}"


if __name__ == "__main__":
    walk()
