"""`redrive dlq edit`: correct the input in an editor, see the difference, run it again."""

from __future__ import annotations

from typing import Any

import click

from redrive.cli.dlq.replay import WAIT_OPTION, replay_options
from redrive.cli.messages import UsageError, hint
from redrive.cli.options import ChangeOptions, change_options
from redrive.cli.output import Output, output_options
from redrive.cli.target import Target, target_options


@click.command()
@click.argument("id", metavar="LETTER")
@click.option(
    "--mode",
    type=click.Choice(("from_failed", "from_step", "full"), case_sensitive=False),
    help="Where to begin, as for replay.  [default: from_failed]",
)
@click.option("--from-step", metavar="STEP", help="Begin at this step, by number or name; implies its mode.")
@replay_options
@WAIT_OPTION
@change_options
@output_options
@target_options
def edit(
    id: str,
    mode: str | None,
    from_step: str | None,
    wait: bool,
    options: dict[str, Any],
    change: ChangeOptions,
    output: Output,
    place: Target,
) -> None:
    """Correct a letter's input in your editor ($VISUAL or $EDITOR), and run it again with it.

    The new input is checked; a mistake opens the editor again and says what is wrong. Then you see what
    changes and what would happen, and are asked. Steps that succeeded keep the results that they gave for
    the original input: begin earlier (--from-step, --mode full) if these depend on what you correct.

    \b
    Examples:
      redrive dlq edit dl-01k9x7
      EDITOR=nano redrive dlq edit dl-01k9x7 --mode full
    """
    from redrive.cli.dlq.decision import DecisionOptions
    from redrive.cli.dlq.editor import edit_and_replay

    if not (change.yes or change.dry_run or change.is_interactive):
        raise UsageError(
            "edit needs a terminal to ask you on. In a script: --yes, with a program as $EDITOR, or "
            f"`{hint('dlq', 'replay', id, '--patch', 'JSON')}`"
        )
    chosen = mode or ("from_step" if from_step else "from_failed")
    how = {"mode": chosen, "from_step": from_step, "by": change.by, **options}
    edit_and_replay(place, id, how, DecisionOptions(change=change, output=output, wait=wait))
