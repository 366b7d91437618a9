"""`redrive dlq`: list dead letters, decide about them and annotate them.

look      list_show: the list, and one letter, which letter_page renders
groups    failures by cause: assign, comment on and mute one
decide    replay, complete, edit; decision previews, confirms and applies them
close     resolve, ignore, reopen        annotate    assign, comment, tag
bulk      one decision on all letters that match a filter, and its progress
letter_selection  the letters of a command: by their ids, or by the options of a filter
"""

from __future__ import annotations

import click

from redrive.cli.dlq.bulk import bulk_group
from redrive.cli.dlq.edit import edit
from redrive.cli.dlq.groups import groups
from redrive.cli.dlq.list_show import list_, show
from redrive.cli.dlq.replay import complete, replay
from redrive.cli.dlq.triage import assign, comment, escalate, ignore, reopen, resolve, tag

__all__ = ["dlq"]


@click.group()
def dlq() -> None:
    """Handle dead letters: failures that need a decision.

    \b
    Examples:
      redrive dlq list
      redrive dlq show dl-01k9x7
      redrive dlq replay dl-01k9x7 --dry-run
    """


for command in (
    list_, show, groups, replay, edit, complete, resolve, ignore, reopen, assign, escalate, comment, tag, bulk_group,
):  # fmt: skip
    dlq.add_command(command)
