"""The demo's worker process: what `redrive worker redrive.cli.demo.shop:app` does, but tied to the demo.

Standard input is a pipe that the demo holds open. When the demo is gone, however it went, the pipe
closes and this process stops in good order.
"""

from __future__ import annotations

from redrive.cli.demo.shop import app
from redrive.cli.serve import run, tie


def main() -> None:
    """Work until the demo is gone, or this process is told to stop."""
    run(app, also=tie)


if __name__ == "__main__":
    main()
