"""`redrive runs`: find runs, understand them, start and cancel them.

look    list, show, why, watch        act    start, cancel
"""

from __future__ import annotations

import click

from redrive.cli.runs.act import cancel, start
from redrive.cli.runs.look import list_, show, watch, why

__all__ = ["runs"]


@click.group()
def runs() -> None:
    """Find, understand, start and cancel runs.

    \b
    Examples:
      redrive runs list --status DLQ_PENDING
      redrive runs show 01k9x7
      redrive runs why 01k9x7
    """


for command in (list_, show, why, watch, start, cancel):
    runs.add_command(command)
