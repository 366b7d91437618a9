"""`redrive dlq`: the desk. Look at dead letters, decide about them, note things on them.

look      list, show (story: the page that is read), groups
decide    replay, complete; edit (editing, editor); through deciding (plan, ask, do), planned, waiting
close     resolve, ignore        triage    assign, comment, tag
many      one decision on all letters that match a filter        sets    how far that is
shared    filters, values: options    finding: letters as people name them
"""

from __future__ import annotations

import click

from redrive.cli.dlq.bulk import sets
from redrive.cli.dlq.edit import edit
from redrive.cli.dlq.list import list_, show
from redrive.cli.dlq.replay import complete, replay
from redrive.cli.dlq.triage import assign, comment, groups, ignore, resolve, tag

__all__ = ["dlq"]


@click.group(short_help="Handle failures that wait for a person.")
def dlq() -> None:
    """Handle dead letters: failures that wait for a person.

    \b
    Examples:
      redrive dlq list
      redrive dlq show dl-01k9x7
      redrive dlq replay dl-01k9x7 --dry-run
    """


for command in (
    list_, show, groups, replay, edit, complete, resolve, ignore, assign, comment, tag, sets,
):  # fmt: skip
    dlq.add_command(command)
