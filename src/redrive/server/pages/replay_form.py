"""The form of a replay: the input field by field or as JSON, and the faults of what was typed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from redrive.core.failure_reason import LetterCode
from redrive.core.json_edit import parse_typed_json
from redrive.core.payload.faults import format_path
from redrive.core.replay_plan import ReplayMode
from redrive.core.states import StepStatus
from redrive.desk.models import StepRecord
from redrive.desk.validation import in_thread_if_large, measure_size
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.server.pages.forms import Form
from redrive.server.routes.common import parse_policy

_MAX_FIELDS, _MAX_DEPTH, _MAX_TEXT_LENGTH = 40, 4, 20_000
FIELD_PREFIX = "f:"
"""The prefix of the names of form fields that edit the input."""

OUTPUT_MODES = frozenset({ReplayMode.SKIP, ReplayMode.COMPLETE})
EDITABLE_MODES = frozenset({ReplayMode.FROM_FAILED, ReplayMode.FROM_STEP, ReplayMode.FULL})
_RESULT_EXAMPLE, _OBJECT_EXAMPLE, _POLICY_EXAMPLE = '"payment 7"', '{"order": 7}', '{"max_retries": 5}'


def has_failed_step(steps: Iterable[StepRecord], code: str | None) -> bool:
    """Return True if a step ended the run, so that it alone can run again, be skipped or be done manually."""
    ended = {StepStatus.DLQ}
    if code == LetterCode.INFRASTRUCTURE_FAILURE:  # the step that executed when the worker crashed
        ended.add(StepStatus.RUNNING)
    return any(step.status in ended and not step.superseded for step in steps)


class FormField(msgspec.Struct, frozen=True):
    """A value of an input with its path. A list is one value, which is edited as JSON."""

    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        """The path as faults name it."""
        return format_path(self.path)

    @property
    def label(self) -> str:
        """The path as pages show it."""
        return " \u203a ".join(self.path)

    @property
    def text(self) -> str:
        """The value as it stands in its field; empty for null."""
        if isinstance(self.value, str):
            return self.value
        return "" if self.value is None else json.dumps(self.value, ensure_ascii=False)

    @property
    def kind(self) -> str:
        """The kind of form field: flag, number, json or text."""
        match self.value:
            case bool():
                return "flag"
            case int() | float():
                return "number"
            case list() | dict():
                return "json"
        return "text"

    def is_one_line(self, text: str) -> bool:
        """Return True if a field of one line is enough for the text."""
        return self.kind != "json" and len(text) <= 80 and not set("\r\n") & set(text)

    def keeps(self, text: str) -> bool:
        """Return True if a browser returns the text from its field unchanged, or it is the present one."""
        is_whole = "\0" not in text and text.encode(errors="ignore").decode() == text
        return text == self.text or (is_whole and _normalize_newlines(text) == text)

    @property
    def is_too_long(self) -> bool:
        """True if the value is too long for a form. A list with that many items is not serialized to find out."""
        crowded = isinstance(self.value, list | dict) and 2 * len(self.value) > _MAX_TEXT_LENGTH
        return crowded or len(self.text) > _MAX_TEXT_LENGTH

    def parse(self, text: str) -> Any:
        """Return the value that was typed. Text of another kind stays text, and validation reports it."""
        if isinstance(self.value, str):
            return text
        if self.value is None and not text:
            return None
        try:
            value = parse_typed_json(text).value
        except InputError:
            return text
        return value if isinstance(value, list | dict) == (self.kind == "json") else text


def list_form_fields(value: Any) -> list[FormField] | None:
    """Return the values of an object; None if they are too many, too deep or too long for a form."""
    if not isinstance(value, dict) or not value:
        return None
    found: list[FormField] = []
    for field in _walk_fields(value, ()):
        if len(found) == _MAX_FIELDS or len(field.path) > _MAX_DEPTH or field.is_too_long:
            return None
        found.append(field)
    # A field `a.b` and a field `b` in an object `a` have the same name.
    return found if len({field.name for field in found}) == len(found) else None


def _walk_fields(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[FormField]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner and len(path) < _MAX_DEPTH:
            yield from _walk_fields(inner, (*path, name))
        else:
            yield FormField((*path, name), inner)


def _normalize_newlines(text: str) -> str:
    """Return a text as a browser sends it: with LF only, and without a newline at its start."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")


def fill_fields(value: Any, found: list[FormField], texts: Mapping[str, str]) -> Any:
    """Return the object with the texts filled in by field name; a field without a text keeps its value."""
    made = json.loads(json.dumps(value))
    for field in found:
        if field.name in texts and _normalize_newlines(texts[field.name]) != _normalize_newlines(field.text):
            inner = made
            for part in field.path[:-1]:
                inner = inner[part]
            inner[field.path[-1]] = field.parse(texts[field.name])
    return made


class ReplayForm(msgspec.Struct, frozen=True, kw_only=True):
    """A replay as it was typed. `input` is None if it was not changed; `typed` is its JSON text."""

    mode: ReplayMode = ReplayMode.FROM_FAILED
    from_step: int | None = None
    input: Any = None
    output: Any = None
    retry: Mapping[str, Any] | None = None
    new_operation: bool = False
    ask_again: bool = False
    reason: str | None = None
    typed: str | None = None
    typed_output: str = ""
    typed_retry: str = ""
    given: Mapping[str, str] = msgspec.field(default_factory=dict)
    unread: Mapping[str, Reason] = msgspec.field(default_factory=dict)
    """The faults by form field: `input`, `from_step`, `output` or `retry` is invalid or missing."""

    digest: str = ""
    """Identifies the replay, so that a user decides only on one whose preview was shown."""

    @property
    def is_whole(self) -> bool:
        """True if everything that the mode needs was given and could be read."""
        return not self.unread and not _find_missing(self)

    def options(self) -> dict[str, Any]:
        """Return the options of `dlq.replay`."""
        return {
            "from_step": self.from_step,
            "input": self.input,
            "output": self.output,
            "retry": parse_policy(dict(self.retry)) if self.retry is not None else None,
            "new_operation": self.new_operation,
            "ask_again": self.ask_again,
        }


async def read_replay_form(form: Form, shown: Any, *, begun: bool = False) -> ReplayForm:
    """Read a form that was made for the input `shown`; one that is only `begun` may lack something.

    A thread reads a large one.
    """
    return await in_thread_if_large(
        lambda: _parse_replay_form(form, shown, begun=begun), form.size + measure_size(shown)
    )


def _parse_replay_form(form: Form, shown: Any, *, begun: bool) -> ReplayForm:
    unread: dict[str, Reason] = {}
    named, start = form.get("mode"), form.get("from_step")
    mode = ReplayMode(named) if named in set(ReplayMode) - {ReplayMode.ROLLBACK} else ReplayMode.FROM_FAILED
    given = {name: form.raw(FIELD_PREFIX + name) or "" for name in form.names(FIELD_PREFIX)}
    input = _parse_input(form, given, shown, unread)
    if mode not in EDITABLE_MODES and (input is not None or "input" in unread):
        unread["input"] = Reason(ReasonCode.MODE_KEEPS_INPUT)
    output = _parse_json_field(form, "output", unread) if mode in OUTPUT_MODES else None
    if why := unread.get("output"):
        unread["output"] = Reason(ReasonCode.OUTPUT_NOT_JSON, why=why, example=_RESULT_EXAMPLE)
    retry = _parse_json_field(form, "retry", unread)
    if form.get("retry") and not isinstance(retry, dict):
        unread.setdefault("retry", Reason(ReasonCode.POLICY_OBJECT_NEEDED, example=_POLICY_EXAMPLE))
    replay = ReplayForm(
        mode=mode,
        from_step=int(start) if mode is ReplayMode.FROM_STEP and start.isdigit() and len(start) < 6 else None,
        input=input,
        output=output,
        retry=retry if isinstance(retry, dict) else None,
        new_operation=bool(form.get("new_operation")),
        ask_again=bool(form.get("ask_again")) and input is not None and mode is not ReplayMode.FULL,
        reason=form.maybe("reason"),
        typed=form.raw("input"),
        typed_output=form.get("output"),
        typed_retry=form.get("retry"),
        given=given,
    )
    decision = [mode.value, replay.from_step, input, output, replay.retry, replay.new_operation, replay.ask_again]
    digest = hashlib.sha256(_serialize(decision).encode()).hexdigest()[:24]
    return replace(replay, unread=unread if begun else {**_find_missing(replay), **unread}, digest=digest)


def convert_to_fields(replay: ReplayForm, shown: Any) -> ReplayForm:
    """Return the form with its JSON input as fields, if the fields of the input `shown` can express it."""
    if replay.typed is None or (replay.input is None and "input" in replay.unread):
        return replay
    input = shown if replay.input is None else replay.input
    found = list_form_fields(shown) or []
    given = {field.name: field.text for field in list_form_fields(input) or []}
    kept = all(field.keeps(given.get(field.name, field.text)) for field in found)
    if not kept or _serialize(fill_fields(shown, found, given)) != _serialize(input):
        return replace(replay, unread={**replay.unread, "input": Reason(ReasonCode.FORM_LACKS_FIELDS)})
    return replace(replay, typed=None, given=given)


def _find_missing(replay: ReplayForm) -> dict[str, Reason]:
    """Return the faults of form fields that the mode needs and that are blank."""
    if replay.mode in OUTPUT_MODES and not replay.typed_output:
        return {"output": Reason(ReasonCode.OUTPUT_NEEDED, example=_RESULT_EXAMPLE)}
    if replay.mode is ReplayMode.FROM_STEP and replay.from_step is None:
        return {"from_step": Reason(ReasonCode.STEP_CHOICE_NEEDED)}
    return {}


def _parse_input(form: Form, given: Mapping[str, str], shown: Any, unread: dict[str, Reason]) -> Any:
    """Return the input of a form, None if it is the one that was shown."""
    found = list_form_fields(shown) if given else None
    if found is not None:
        input = fill_fields(shown, found, given)
    # A blank text replaces an input that was shown; in a bulk action, which shows none, it changes nothing.
    elif (form.raw("input") is not None) if shown is not None else form.get("input"):
        input = _parse_json_field(form, "input", unread)
    else:
        return None
    same = input == shown and _serialize(input, sort=False) == _serialize(shown, sort=False)
    if "input" in unread or (same and shown is not None):
        return None
    if not isinstance(input, dict):
        unread["input"] = Reason(ReasonCode.INPUT_OBJECT_NEEDED, example=_OBJECT_EXAMPLE)
        return None
    return input


def _serialize(value: Any, *, sort: bool = True) -> str:
    """Return a value as JSON text; `sort` makes the order of names irrelevant.

    The text is written in pieces: a thread that writes a large one lets other threads run in between.
    """
    return "".join(json.JSONEncoder(sort_keys=sort).iterencode(value))


def _parse_json_field(form: Form, name: str, unread: dict[str, Reason]) -> Any:
    text = form.get(name)
    if not text:
        return None
    try:
        return parse_typed_json(text).value
    except InputError as error:
        unread[name] = Reason.of_error(error)
        return None


def split_faults(refusal: Reason) -> tuple[dict[str, Reason], list[Reason]]:
    """Return the faults of a refusal by path in the input, and those without a path."""
    if not refusal.faults:
        return {}, [refusal]
    placed: dict[str, Reason] = {}
    for path, why in refusal.faults:
        if path:
            placed.setdefault(path, why)
    return placed, [why for path, why in refusal.faults if not path]
