"""A text in the user's editor, in a file of its own that outlives whatever goes wrong."""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from redrive.app import Redrive
from redrive.cli.dlq.decision import DecisionOptions, ReplayDecision, run_decision
from redrive.cli.dlq.replay import make_replay_decision
from redrive.cli.messages import FAILED, INTERRUPTED, REFUSED, CommandFailed, hint
from redrive.cli.output import as_json, echo_err
from redrive.cli.target import Target, run_on
from redrive.core.json_edit import parse_typed_json
from redrive.core.redact import MASK
from redrive.desk.decisions import Replay
from redrive.errors import Conflict, InputError, UnknownWorkflow
from redrive.reasons import Reason, ReasonCode, quote

# -- A text in the user's editor, in a file of its own that outlives whatever goes wrong -----------------


_LAST_SEGMENT = re.compile(r"(?:\.[^.\[\]]+|\[[^\]]*\])$")


class InputDraft:
    """A file that somebody edits: remarks, which begin with #, and below them the text."""

    def __init__(self, text: str, *, otherwise: str) -> None:
        """`otherwise` says what to do where no editor works."""
        self.text = text
        self._otherwise = otherwise
        handle, name = tempfile.mkstemp(prefix="redrive-", suffix=".json")
        os.close(handle)
        self._path = Path(name)
        self._begun_with = text

    def edit(self, remarks: Sequence[str]) -> bool:
        """Open the editor; False if the text is as it was before."""
        head = "".join(f"# {line}\n" for line in remarks)
        self._path.write_text(f"{head}{self.text}\n", encoding="utf-8")
        try:
            click.edit(filename=str(self._path))
        except click.ClickException as error:
            raise CommandFailed(
                f"{error.message}. Nothing was changed. Name another editor in $EDITOR, or {self._otherwise}"
            ) from error
        before, self.text = self.text, _strip_remarks(_read_file(self._path))
        return self.text != before

    def close(self, *, keep: bool) -> Path | None:
        """Remove the file, or keep what was typed in it, without the remarks, if anything was."""
        if keep and self.text == self._begun_with and not _is_unreadable(self._path):
            keep = False
        if not keep:
            self._path.unlink(missing_ok=True)
            return None
        if not _is_unreadable(self._path):
            self._path.write_text(f"{self.text}\n", encoding="utf-8")
        return self._path


def _read_file(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        why = f"the editor left no file to read ({error.strerror})"
        raise CommandFailed(f"{why}: nothing was changed; name another editor in $EDITOR", REFUSED) from None
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise CommandFailed(f"line {line} is not UTF-8 text: have your editor save as UTF-8", REFUSED) from None


def _is_unreadable(path: Path) -> bool:
    """True if the editor saved something that cannot be read, which is left as it is."""
    try:
        path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        return True
    except OSError:
        return False
    return False


def _strip_remarks(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#")).strip()


def locate_faults(mistake: Reason, lines: Mapping[str, int]) -> str:
    """Return the sentence for a mistake, with the line of each place that it names."""
    if not mistake.faults:
        return str(mistake)
    faults = tuple(_locate_fault(place, why, lines) for place, why in mistake.faults)
    return str(Reason(mistake.code, **{**mistake.params, "faults": faults}))


def _locate_fault(place: str, why: Reason, lines: Mapping[str, int]) -> str:
    if not place:
        return str(why)
    path = place
    while path and path not in lines:  # what is missing stands nowhere, but it is missing somewhere
        shorter = _LAST_SEGMENT.sub("", path)
        path = shorter if shorter != path else ""
    return f"line {lines.get(path, 1)}, {place}: {why}"


# -- Editing a letter's input: the draft in an editor, what is wrong with it and in which line, the  -----


_INSTRUCTIONS = (
    "The input of {letter} of workflow {workflow}, as JSON. Correct it, save, and close the editor.",
    "Lines that begin with # are left out. Without a change, nothing is done.",
    "{mask} hides a value: leave it to keep the value, or type a new one.",
)
_DECIDED_EXIT_CODES = frozenset({FAILED, INTERRUPTED})  # exit codes of a decision that was made


def edit_and_replay(place: Target, id: str, how: dict[str, Any], asked: DecisionOptions) -> None:
    """Have the input corrected until it fits, then decide as for any replay."""
    subject = run_on(place, lambda app: _load_input(app, id, make_replay_decision(**how)))
    with _open_draft(subject) as draft:
        edited = _edit_until_valid(place, draft, subject, how, patient=asked.change.is_interactive)
        if edited is None:
            echo_err("The input is as it was, so nothing was done.")
        else:
            run_decision(place, [subject.letter], make_replay_decision(**how, input=edited), asked)


class _EditableInput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is edited: the input as it may be shown."""

    letter: str
    workflow: str
    text: str

    def remarks(self, mistake: _InputMistake | None) -> list[str]:
        """What stands above the input in the editor; a mistake takes one line of it."""
        head = [line.format(letter=self.letter, workflow=self.workflow, mask=MASK) for line in _INSTRUCTIONS]
        return head if mistake is None else [f"MISTAKE: {mistake.told(below=len(head) + 1)}", *head]


class _InputMistake(msgspec.Struct, frozen=True):
    """What is wrong with a text; `said` is what the check found, None if the text cannot even be read."""

    text: str
    said: Reason | None = None

    def told(self, *, below: int = 0) -> str:
        """In words, with its lines in a file that has so many others above the text."""
        try:
            lines = parse_typed_json(self.text, below=below).lines
        except InputError as error:
            return f"this is no JSON that can be used: {error}"
        return "" if self.said is None else " ".join(locate_faults(self.said, lines).split())


@contextmanager
def _open_draft(subject: _EditableInput) -> Iterator[InputDraft]:
    """A draft that is kept where something was typed and nothing came of it: nobody types an input twice."""
    patch = hint("dlq", "replay", subject.letter, "--patch", "JSON")
    draft = InputDraft(subject.text, otherwise=f"change fields with `{patch}`")
    keep = True
    try:
        yield draft
        keep = False
    except click.exceptions.Exit as error:
        keep = error.exit_code not in _DECIDED_EXIT_CODES
        raise
    finally:
        kept = draft.close(keep=keep)
        if kept is not None:
            again = hint("dlq", "replay", subject.letter, "--input", f"@{kept}")
            echo_err(f"What you typed is kept in {kept}. When it is right: {again}")


async def _load_input(app: Redrive, id: str, act: ReplayDecision) -> _EditableInput:
    """What to edit; a letter that cannot be replayed in this way is refused before anybody edits it."""
    subject = await act.find(app, id)
    plan = await act.make(app, subject, True)
    if isinstance(plan, Replay):
        raise Conflict(f"{subject.id} was decided on before, by {plan.by}; see its run {plan.run_id}")
    run = await app.runs.get(plan.run_id)
    text = json.dumps(as_json(run.input), indent=2, ensure_ascii=False)
    return _EditableInput(letter=subject.id, workflow=subject.workflow, text=text)


def _edit_until_valid(
    place: Target, draft: InputDraft, subject: _EditableInput, how: dict[str, Any], *, patient: bool
) -> dict[str, Any] | None:
    """The new input once it fits; None if it is the old one. Only a patient caller is asked to correct it."""
    mistake: _InputMistake | None = None
    while draft.edit(subject.remarks(mistake)):
        value, mistake = _parse_input(draft.text)
        if mistake is None:
            act = make_replay_decision(**how, input=value)
            differs, mistake = run_on(place, functools.partial(_check_input, draft.text, subject.letter, act))
            if mistake is None:
                return value if differs else None
        if not patient:
            raise CommandFailed(mistake.told(), REFUSED)
    if mistake is not None:
        raise CommandFailed(f"nothing was changed, as the input still has this mistake: {mistake.told()}", REFUSED)
    return None


async def _check_input(text: str, letter: str, act: ReplayDecision, app: Redrive) -> tuple[bool, _InputMistake | None]:
    """Whether the new input differs from the old one, and what is wrong with it."""
    try:
        plan = await act.make(app, await act.find(app, letter), True)
    except UnknownWorkflow:
        raise  # another edit would not help
    except InputError as error:
        return False, _InputMistake(text, Reason.of_error(error))
    return bool(plan.changes), None


def _parse_input(text: str) -> tuple[dict[str, Any], _InputMistake | None]:
    try:
        value = parse_typed_json(text).value
    except InputError:
        return {}, _InputMistake(text)
    if not isinstance(value, dict):
        return {}, _InputMistake(text, Reason(ReasonCode.OBJECT_NEEDED, field="the input", given=quote(value)))
    return value, None
