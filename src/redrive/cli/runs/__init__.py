"""`redrive runs`: find, explain, start, cancel, retry and move runs, and send events to them.

list_show    list, show, why, tree, watch        changes    start, cancel, retry, rollback, send, move
"""

from __future__ import annotations

import click

from redrive.cli.code import export
from redrive.cli.runs.changes import cancel, move, retry, rollback, send, start
from redrive.cli.runs.list_show import list_, show, tree, watch, why

__all__ = ["runs"]


@click.group()
def runs() -> None:
    """Find, explain, start, cancel and retry runs, and send them events.

    \b
    Examples:
      redrive runs list --status DLQ_PENDING
      redrive runs show 01k9x7
      redrive runs why 01k9x7
    """


for command in (list_, show, why, tree, watch, start, send, cancel, retry, rollback, move, export):
    runs.add_command(command)
