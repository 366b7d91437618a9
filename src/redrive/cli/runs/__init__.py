"""`redrive runs`: find, explain, start, cancel and retry runs, and send events to them.

list_show    list, show, why, tree, watch        start_cancel    start, cancel, retry, rollback        events    send
"""

from __future__ import annotations

import click

from redrive.cli.runs.events import send
from redrive.cli.runs.list_show import list_, show, tree, watch, why
from redrive.cli.runs.start_cancel import cancel, retry, rollback, start

__all__ = ["runs"]


@click.group()
def runs() -> None:
    """Find, explain, start, cancel and retry runs.

    \b
    Examples:
      redrive runs list --status DLQ_PENDING
      redrive runs show 01k9x7
      redrive runs why 01k9x7
    """


for command in (list_, show, why, tree, watch, start, send, cancel, retry, rollback):
    runs.add_command(command)
