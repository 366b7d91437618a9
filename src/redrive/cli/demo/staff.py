"""The demo's worker process: what `redrive worker redrive.cli.demo.shop:app` does, but tied to the demo.

Standard input is a pipe that the demo holds open. When the demo is gone, however it went, the pipe
closes and this process stops in good order.
"""

from __future__ import annotations

import asyncio
import os
import threading

from redrive.cli.demo.shop import app
from redrive.cli.serve import Stop, run


def main() -> None:
    """Work until the demo is gone, or this process is told to stop."""
    run(app, also=_watch_input)


def _watch_input(stop: Stop) -> None:
    loop = asyncio.get_running_loop()
    threading.Thread(target=_tell_when_closed, args=(loop, stop), daemon=True).start()


def _tell_when_closed(loop: asyncio.AbstractEventLoop, stop: Stop) -> None:
    while os.read(0, 1):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.ask)


if __name__ == "__main__":
    main()
