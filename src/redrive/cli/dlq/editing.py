"""Editing a letter's input: the draft in an editor, what is wrong with it and in which line, the decision."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from redrive.app import Redrive
from redrive.cli.dlq.decide import act_of
from redrive.cli.dlq.deciding import Act, Asked, decide
from redrive.cli.dlq.editor import Draft, placed
from redrive.cli.exits import FAILED, INTERRUPTED, REFUSED, Stopped
from redrive.cli.hints import hint
from redrive.cli.output import as_json, say
from redrive.cli.place import Place, ask
from redrive.core.redact import MASK
from redrive.core.typed import read_typed
from redrive.desk.replaying import Replay
from redrive.errors import Conflict, InputError, UnknownWorkflow
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode, quote

__all__ = ["edit_and_decide"]

_HEAD = (
    "The input of {letter} of workflow {workflow}, as JSON. Correct it, save, and close the editor.",
    "Lines that begin with # are left out. Without a change, nothing is done.",
    "{mask} hides a value: leave it to keep the value, or type a new one.",
)
_DECIDED = frozenset({FAILED, INTERRUPTED})  # exit codes of a decision that was made


def edit_and_decide(place: Place, id: str, how: dict[str, Any], asked: Asked) -> None:
    """Have the input corrected until it fits, then decide as for any replay."""
    subject = ask(place, lambda app: _found(app, id, act_of(**how)))
    with _drafting(subject) as draft:
        edited = _edited(place, draft, subject, how, patient=asked.change.somebody_watches)
        if edited is None:
            say("The input is as it was, so nothing was done.")
        else:
            decide(place, [subject.letter], act_of(**how, input=edited), asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is edited: the input as it may be shown."""

    letter: str
    workflow: str
    text: str

    def remarks(self, mistake: _Mistake | None) -> list[str]:
        """What stands above the input in the editor; a mistake takes one line of it."""
        head = [line.format(letter=self.letter, workflow=self.workflow, mask=MASK) for line in _HEAD]
        return head if mistake is None else [f"MISTAKE: {mistake.told(below=len(head) + 1)}", *head]


@dataclass(frozen=True, slots=True)
class _Mistake:
    """What is wrong with a text; `said` is what the check found, None if the text cannot even be read."""

    text: str
    said: Reason | None = None

    def told(self, *, below: int = 0) -> str:
        """In words, with its lines in a file that has so many others above the text."""
        try:
            lines = read_typed(self.text, below=below).lines
        except InputError as error:
            return f"this is no JSON that can be used: {error}"
        return "" if self.said is None else " ".join(placed(self.said, lines).split())


@contextmanager
def _drafting(subject: _Subject) -> Iterator[Draft]:
    """A draft that is kept where something was typed and nothing came of it: nobody types an input twice."""
    patch = hint("dlq", "replay", subject.letter, "--patch", "JSON")
    draft = Draft(subject.text, otherwise=f"change fields with `{patch}`")
    keep = True
    try:
        yield draft
        keep = False
    except click.exceptions.Exit as error:
        keep = error.exit_code not in _DECIDED
        raise
    finally:
        kept = draft.close(keep=keep)
        if kept is not None:
            again = hint("dlq", "replay", subject.letter, "--input", f"@{kept}")
            say(f"What you typed is kept in {kept}. When it is right: {again}")


async def _found(app: Redrive, id: str, act: Act) -> _Subject:
    """What to edit; a letter that cannot be replayed in this way is refused before anybody edits it."""
    subject = await act.find(app, id)
    plan = await act.make(app, subject, True)
    if isinstance(plan, Replay):
        raise Conflict(f"{subject.id} was decided on before, by {plan.by}; see its run {plan.run_id}")
    run = await app.runs.get(plan.run_id)
    text = json.dumps(as_json(run.input), indent=2, ensure_ascii=False)
    return _Subject(letter=subject.id, workflow=subject.workflow, text=text)


def _edited(
    place: Place, draft: Draft, subject: _Subject, how: dict[str, Any], *, patient: bool
) -> dict[str, Any] | None:
    """The new input once it fits; None if it is the old one. Only a patient caller is asked to correct it."""
    mistake: _Mistake | None = None
    while draft.edit(subject.remarks(mistake)):
        value, mistake = _read(draft.text)
        if mistake is None:
            act = act_of(**how, input=value)
            differs, mistake = ask(place, functools.partial(_check, draft.text, subject.letter, act))
            if mistake is None:
                return value if differs else None
        if not patient:
            raise Stopped(mistake.told(), REFUSED)
    if mistake is not None:
        raise Stopped(f"nothing was changed, as the input still has this mistake: {mistake.told()}", REFUSED)
    return None


async def _check(text: str, letter: str, act: Act, app: Redrive) -> tuple[bool, _Mistake | None]:
    """Whether the new input differs from the old one, and what is wrong with it."""
    try:
        plan = await act.make(app, await act.find(app, letter), True)
    except UnknownWorkflow:
        raise  # another edit would not help
    except InputError as error:
        return False, _Mistake(text, Reason.of_error(error))
    return bool(plan.changes), None


def _read(text: str) -> tuple[dict[str, Any], _Mistake | None]:
    try:
        value = read_typed(text).value
    except InputError:
        return {}, _Mistake(text)
    if not isinstance(value, dict):
        return {}, _Mistake(text, Reason(ReasonCode.OBJECT_NEEDED, field="the input", given=quote(value)))
    return value, None
