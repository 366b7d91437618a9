"""`redrive dlq edit`: correct the input in an editor, see the difference, run it again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from redrive.cli.dlq.replay import WAIT_OPTION, make_replay_decision, replay_options
from redrive.cli.errors import CONFLICT, FAILED, INTERRUPTED, REFUSED, CommandFailed, UsageError
from redrive.cli.hints import hint
from redrive.cli.options import ChangeOptions
from redrive.cli.output import Output, as_json, echo_err
from redrive.cli.target import Target, decision_options, run_on
from redrive.core.redact import MASK
from redrive.errors import InputError, UnknownWorkflow

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.reasons import Reason

_LAST_SEGMENT = re.compile(r"(?:\.[^.\[\]]+|\[[^\]]*\])$")
_INSTRUCTIONS = (
    "The input of {letter} of workflow {workflow}, as JSON. Correct it, save, and close the editor.",
    "Lines that begin with # are ignored. Without a change, nothing happens.",
    "{mask} hides a value: leave it to keep the value, or type a new one.",
)
_DECIDED_EXIT_CODES = frozenset({FAILED, INTERRUPTED})  # exit codes of a decision that was made


@click.command(short_help="Correct a letter's input in your editor and replay it.")
@click.argument("id", metavar="LETTER")
@click.option(
    "--mode",
    type=click.Choice(("from_failed", "from_step", "full"), case_sensitive=False),
    help="Where to start, as for replay.  [default: from_failed]",
)
@click.option("--from-step", metavar="STEP", help="Start at this step, by number or name; implies --mode from_step.")
@replay_options
@WAIT_OPTION
@decision_options
def edit(
    id: str,
    mode: str | None,
    from_step: str | None,
    wait: bool,
    options: dict[str, Any],
    change: ChangeOptions,
    output: Output,
    target: Target,
) -> None:
    """Correct a letter's input in your editor ($VISUAL or $EDITOR), and run it again with it.

    The new input is checked. If it is invalid, the editor opens again and names the mistake. Then you see
    the changes and the plan, and are asked to confirm. Finished steps keep their results, which they
    computed from the original input. If these depend on your correction, start earlier (--from-step,
    --mode full).

    \b
    Examples:
      redrive dlq edit dl-01k9x7
      EDITOR=nano redrive dlq edit dl-01k9x7 --mode full
    """
    from redrive.cli.replay_decision import run_decision

    if not (change.yes or change.dry_run or change.is_interactive):
        raise UsageError(
            "edit needs a terminal to ask you on. In a script: --yes, with a program as $EDITOR, or "
            f"`{hint('dlq', 'replay', id, '--patch', 'JSON')}`"
        )
    mode = mode or ("from_step" if from_step else "from_failed")
    call: dict[str, Any] = {"mode": mode, "from_step": from_step, "by": change.by, **options}
    with run_on(target, lambda app: _load_input(app, id, call)) as draft:
        edited = _edit_until_valid(target, draft, call, ask_again=change.is_interactive)
        if edited is None:
            echo_err("The input is unchanged, so nothing was done.")
        else:
            decision = make_replay_decision(**call, input=edited)
            run_decision(target, [draft.letter], decision, change, output, wait=wait)


class _InputMistake(msgspec.Struct, frozen=True):
    """A mistake in an edited text; `reason` is None if the text is not even JSON."""

    text: str
    reason: Reason | None = None

    def describe(self, *, below: int = 0) -> str:
        """Describe the mistake with its line numbers, for a file with `below` more lines above the text."""
        from redrive.core.json_edit import parse_typed_json

        try:
            lines = parse_typed_json(self.text, below=below).lines
        except InputError as error:
            return f"the text is not usable JSON: {error}"
        return "" if self.reason is None else " ".join(locate_faults(self.reason, lines).split())


async def _load_input(app: Redrive, id: str, call: dict[str, Any]) -> InputDraft:
    """Load the input to edit; refuse a letter that cannot be replayed before the user edits it."""
    from redrive.desk.replays import Replay

    decision = make_replay_decision(**call)
    subject = await decision.find(app, id)
    plan = await decision.make(app, subject, True)
    if isinstance(plan, Replay):
        raise CommandFailed(f"{subject.id} was decided before, by {plan.by}: see its run {plan.run_id}", CONFLICT)
    run = await app.runs.get(plan.run_id)
    text = json.dumps(as_json(run.input), indent=2, ensure_ascii=False)
    return InputDraft(subject.id, subject.workflow, text)


def _edit_until_valid(
    target: Target, draft: InputDraft, call: dict[str, Any], *, ask_again: bool
) -> dict[str, Any] | None:
    """Return the new input once it is valid, or None if it is the old one. `ask_again` reopens the editor."""
    mistake: _InputMistake | None = None
    while draft.edit(mistake):
        value, mistake = _check_text(target, draft.text, draft.letter, call)
        if mistake is None:
            return value
        if not ask_again:
            raise CommandFailed(mistake.describe(), REFUSED)
    if mistake is not None:
        raise CommandFailed(f"nothing was changed, as the input is still invalid: {mistake.describe()}", REFUSED)
    return None


def _check_text(
    target: Target, text: str, letter: str, call: dict[str, Any]
) -> tuple[dict[str, Any] | None, _InputMistake | None]:
    """Return the edited input, None if it equals the old one, and its mistake if it has one."""
    from redrive.core.json_edit import parse_typed_json
    from redrive.reasons import Reason, ReasonCode, quote

    try:
        value = parse_typed_json(text).value
    except InputError:
        return None, _InputMistake(text)
    if not isinstance(value, dict):
        return None, _InputMistake(text, Reason(ReasonCode.OBJECT_NEEDED, field="the input", given=quote(value)))
    decision = make_replay_decision(**call, input=value)

    async def check(app: Redrive) -> tuple[dict[str, Any] | None, _InputMistake | None]:
        try:
            plan = await decision.make(app, await decision.find(app, letter), True)
        except UnknownWorkflow:
            raise  # another edit would not help
        except InputError as error:
            return None, _InputMistake(text, Reason.of_error(error))
        return value if plan.changes else None, None

    return run_on(target, check)


def locate_faults(mistake: Reason, lines: Mapping[str, int]) -> str:
    """Return the sentence for a mistake, with the line of each path that it names."""
    from redrive.reasons import Reason

    def locate(path: str, why: Reason) -> str:
        if not path:
            return str(why)
        known = path
        while known and known not in lines:  # a missing field has no line, but the object around it has
            shorter = _LAST_SEGMENT.sub("", known)
            known = shorter if shorter != known else ""
        return f"line {lines.get(known, 1)}, {path}: {why}"

    if not mistake.faults:
        return str(mistake)
    faults = tuple(locate(path, why) for path, why in mistake.faults)
    return str(Reason(mistake.code, **{**mistake.params, "faults": faults}))


class InputDraft:
    """The input of a letter in the user's editor: remarks, which begin with #, and below them the JSON text."""

    def __init__(self, letter: str, workflow: str, text: str) -> None:
        import tempfile

        self.letter = letter
        self.text = text
        self._remarks = [line.format(letter=letter, workflow=workflow, mask=MASK) for line in _INSTRUCTIONS]
        handle, name = tempfile.mkstemp(prefix="redrive-", suffix=".json")
        os.close(handle)
        self._path = Path(name)
        self._original = text

    def edit(self, mistake: _InputMistake | None) -> bool:
        """Open the editor, with the mistake above the text; return False if the text did not change."""
        lines = self._remarks
        if mistake is not None:
            lines = [f"MISTAKE: {mistake.describe(below=len(lines) + 1)}", *lines]
        head = "".join(f"# {line}\n" for line in lines)
        self._path.write_text(f"{head}{self.text}\n", encoding="utf-8")
        try:
            click.edit(filename=str(self._path))
        except click.ClickException as error:
            patch = hint("dlq", "replay", self.letter, "--patch", "JSON")
            advice = f"Name another editor in $EDITOR, or change fields with `{patch}`"
            raise CommandFailed(f"{error.message}. Nothing was changed. {advice}") from error
        try:
            data = self._path.read_bytes()
        except OSError as error:
            reason = f"the editor left no file to read ({error.strerror})"
            raise CommandFailed(f"{reason}: nothing was changed; name another editor in $EDITOR", REFUSED) from None
        try:
            saved = data.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = data[: error.start].count(b"\n") + 1
            raise CommandFailed(f"line {line} is not UTF-8 text: have your editor save as UTF-8", REFUSED) from None
        before = self.text
        self.text = "\n".join(line for line in saved.split("\n") if not line.lstrip().startswith("#")).strip()
        return self.text != before

    def __enter__(self) -> InputDraft:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove the file; keep the text if the user typed any and no decision was made."""
        is_decided = isinstance(error, click.exceptions.Exit) and error.exit_code in _DECIDED_EXIT_CODES
        is_readable = True
        try:
            self._path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            is_readable = False  # the editor saved it in another encoding: keep it as it is
        except OSError:
            pass
        if error is None or is_decided or (self.text == self._original and is_readable):
            self._path.unlink(missing_ok=True)
            return
        if is_readable:
            self._path.write_text(f"{self.text}\n", encoding="utf-8")
        again = hint("dlq", "replay", self.letter, "--input", f"@{self._path}")
        echo_err(f"Your text is kept in {self._path}. When it is right: {again}")
