"""`redrive dlq edit`: correct the input in an editor, see the difference, run it again."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.change import Change, changing
from redrive.cli.dlq.decide import act_of, reworked
from redrive.cli.exits import REFUSED, Misused, Stopped
from redrive.cli.hints import hint
from redrive.cli.output import Output, as_json, say, shown
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.cli.dlq.deciding import Act, Subject
    from redrive.desk.preview import DryRun

__all__ = ["edit"]

_HEAD = (
    "The input of {letter} of workflow {workflow}, as JSON. Correct it, save, and close the editor.",
    "Lines that begin with # are left out. Without a change, nothing is done.",
    "{mask} hides a value: leave it to keep the value, or type a new one.",
)


@click.command()
@click.argument("id", metavar="LETTER")
@click.option(
    "--mode",
    type=click.Choice(("from_failed", "from_step", "full"), case_sensitive=False),
    help="Where to begin, as for replay.  [default: from_failed]",
)
@click.option("--from-step", metavar="STEP", help="Begin at this step, by number or name; implies its mode.")
@reworked
@changing
@shown
@at_a_place
def edit(
    id: str,
    mode: str | None,
    from_step: str | None,
    wait: bool,
    options: dict[str, Any],
    change: Change,
    output: Output,
    place: Place,
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
    from redrive.cli.dlq.deciding import Asked, decide

    if not (change.yes or change.dry_run or change.somebody_watches):
        raise Misused(
            "edit needs a terminal to ask you on. In a script: --yes, with a program as $EDITOR, or "
            f"`{hint('dlq', 'replay', id, '--patch', 'JSON')}`"
        )
    chosen = mode or ("from_step" if from_step else "from_failed")
    how = {"mode": chosen, "from_step": from_step, "by": change.by, **options}
    draft = ask(place, lambda app: _draft(app, id, act_of(**how)))
    edited = _edited(place, draft, how, patient=change.somebody_watches)
    if edited is None:
        say("The input is as it was, so nothing was done.")
        return
    decide(place, [draft.letter], act_of(**how, input=edited), Asked(change=change, output=output, wait=wait))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """What is edited: the input as it may be shown."""

    letter: str
    workflow: str
    text: str


async def _draft(app: Redrive, id: str, act: Act) -> _Draft:
    """What to edit; a letter that cannot be replayed in this way is refused before anybody edits it."""
    subject, plan = await _planned(app, id, act)
    run = await app.runs.get(plan.run_id)
    text = json.dumps(as_json(run.input), indent=2, ensure_ascii=False)
    return _Draft(letter=subject.id, workflow=subject.workflow, text=text)


async def _planned(app: Redrive, id: str, act: Act) -> tuple[Subject, DryRun]:
    from redrive.desk.preview import DryRun

    subject = await act.find(app, id)
    plan = await act.make(app, subject, True)
    assert isinstance(plan, DryRun)
    return subject, plan


def _edited(place: Place, draft: _Draft, how: dict[str, Any], *, patient: bool) -> dict[str, Any] | None:
    """The new input once it fits; None if it is the old one. Only a patient caller is asked to correct it."""
    text, mistake = draft.text, ""
    while True:
        typed = _typed(draft, text, mistake)
        if typed is None or typed == text:
            if mistake:
                raise Stopped(f"nothing was changed, as the input still has this mistake: {mistake}", REFUSED)
            return None
        text = typed
        value, mistake = _read(typed)
        if not mistake:
            differs, mistake = ask(
                place, functools.partial(_check, draft=draft, act=act_of(**how, input=value))
            )
            if not mistake:
                return value if differs else None
        if not patient:
            raise Stopped(mistake, REFUSED)


async def _check(app: Redrive, draft: _Draft, act: Act) -> tuple[bool, str]:
    """Whether the new input differs from the old one, and what is wrong with it."""
    from redrive.errors import InputError, UnknownWorkflow

    try:
        _, plan = await _planned(app, draft.letter, act)
    except UnknownWorkflow:
        raise  # another edit would not help
    except InputError as error:
        return False, str(error)
    return bool(plan.changes), ""


def _read(text: str) -> tuple[dict[str, Any], str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        return {}, f"this is no JSON: {error}"
    if not isinstance(value, dict):
        return {}, "the input must be an object from parameter name to value"
    return value, ""


def _typed(draft: _Draft, text: str, mistake: str) -> str | None:
    """What was saved in the editor, without the remarks above it; None if nothing was."""
    from redrive.core.redact import MASK

    remarks = [line.format(letter=draft.letter, workflow=draft.workflow, mask=MASK) for line in _HEAD]
    wrong = [f"MISTAKE: {line}" for line in mistake.splitlines()]
    head = "".join(f"# {line}\n" for line in [*wrong, *remarks])
    try:
        saved = click.edit(f"{head}{text}\n", extension=".json")
    except click.ClickException as error:
        raise Stopped(
            f"{error.message}. Nothing was changed. Name another editor in $EDITOR, or change fields with "
            f"`{hint('dlq', 'replay', draft.letter, '--patch', 'JSON')}`"
        ) from error
    if saved is None:
        return None
    return "\n".join(line for line in saved.split("\n") if not line.lstrip().startswith("#")).strip()
