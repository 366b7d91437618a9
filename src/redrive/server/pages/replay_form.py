"""What somebody wants a replay to do, as a form says it, and what is wrong with that, place by place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from redrive.core.json_edit import parse_typed_json
from redrive.core.payload.errors import format_path
from redrive.core.replay import ReplayMode
from redrive.desk.presenter import in_thread_if_large, measure_size
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.server.pages.forms import Form
from redrive.server.routes.common import parse_policy

# -- An input as a form: its plain values, each with a name of its own, however deep they stand ----------


_MAX_FIELDS, _MAX_DEPTH, _MAX_TEXT_LENGTH = 40, 4, 20_000


class FormField(msgspec.Struct, frozen=True):
    """One value with its place. A list is one value, which is typed as JSON."""

    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        """The place as errors name it."""
        return format_path(self.path)

    @property
    def label(self) -> str:
        """The place for people."""
        return " \u203a ".join(self.path)

    @property
    def text(self) -> str:
        """The value as it is typed; nothing where there is none."""
        if isinstance(self.value, str):
            return self.value
        return "" if self.value is None else json.dumps(self.value, ensure_ascii=False)

    @property
    def kind(self) -> str:
        """How it is typed in."""
        match self.value:
            case bool():
                return "flag"
            case int() | float():
                return "number"
            case list() | dict():
                return "json"
        return "text"

    def is_one_line(self, text: str) -> bool:
        """True if a field of one line is the place to type this."""
        return self.kind != "json" and len(text) <= 80 and not set("\r\n") & set(text)

    def takes(self, text: str) -> bool:
        """True if a browser sends this back from its field as it is, or it is what was there before."""
        is_whole = "\0" not in text and text.encode(errors="ignore").decode() == text
        return text == self.text or (is_whole and _normalize_newlines(text) == text)

    @property
    def is_too_long(self) -> bool:
        """True if a form would not do. A list with so many items need not be written down to know it."""
        crowded = isinstance(self.value, list | dict) and 2 * len(self.value) > _MAX_TEXT_LENGTH
        return crowded or len(self.text) > _MAX_TEXT_LENGTH

    def meant(self, text: str) -> Any:
        """What was typed in its place; what fits no kind stays the text that it is, for the check to name."""
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
    """The plain values of an object; None where they are too many, too deep or too long for a form."""
    if not isinstance(value, dict) or not value:
        return None
    found: list[FormField] = []
    for leaf in _walk_fields(value, ()):
        if len(found) == _MAX_FIELDS or len(leaf.path) > _MAX_DEPTH or leaf.is_too_long:
            return None
        found.append(leaf)
    names = {leaf.name for leaf in found}
    return found if len(names) == len(found) else None  # a field called `a.b` beside one `b` in an `a`


def _walk_fields(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[FormField]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner and len(path) < _MAX_DEPTH:
            yield from _walk_fields(inner, (*path, name))
        else:
            yield FormField((*path, name), inner)


def _normalize_newlines(text: str) -> str:
    """A text as a browser sends it back: its lines end in one way, and a first one that is empty is lost."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")


def fill_fields(value: Any, found: list[FormField], texts: Mapping[str, str]) -> Any:
    """The object with what was typed in its places; a place of which nothing came stays as it is."""
    made = json.loads(json.dumps(value))
    for leaf in found:
        if leaf.name in texts and _normalize_newlines(texts[leaf.name]) != _normalize_newlines(leaf.text):
            inner = made
            for part in leaf.path[:-1]:
                inner = inner[part]
            inner[leaf.path[-1]] = leaf.meant(texts[leaf.name])
    return made


# -- What somebody wants a replay to do, as a form says it, and what is wrong with that, place by pl -----


FIELD_PREFIX = "f:"
"""What the name of a form's field begins with that is a field of the input."""

OUTPUT_MODES = frozenset({ReplayMode.SKIP, ReplayMode.COMPLETE})
EDITABLE_MODES = frozenset({ReplayMode.FROM_FAILED, ReplayMode.FROM_STEP, ReplayMode.FULL})
_RESULT_EXAMPLE, _OBJECT_EXAMPLE, _POLICY_EXAMPLE = '"payment 7"', '{"order": 7}', '{"max_retries": 5}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayForm:
    """One replay as it was typed. `input` is None where nobody touched it; `typed` is the text that was."""

    mode: ReplayMode = ReplayMode.FROM_FAILED
    from_step: int | None = None
    input: Any = None
    output: Any = None
    retry: Mapping[str, Any] | None = None
    new_operation: bool = False
    reason: str | None = None
    typed: str | None = None
    typed_output: str = ""
    typed_retry: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, Reason] = field(default_factory=dict)
    """By place (`input`, `from_step`, `output`, `retry`), what cannot be read, or is missing."""

    _digest: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def is_whole(self) -> bool:
        """True if it can be tried: all that its way needs was given, and could be read."""
        return not self.unread and not _find_missing(self)

    def options(self) -> dict[str, Any]:
        """What the desk takes."""
        return {
            "from_step": self.from_step,
            "input": self.input,
            "output": self.output,
            "retry": parse_policy(dict(self.retry)) if self.retry is not None else None,
            "new_operation": self.new_operation,
        }

    @property
    def digest(self) -> str:
        """Tells this wish from another, so that nobody decides on what they have not seen checked."""
        if not self._digest:
            said = [self.mode.value, self.from_step, self.input, self.output, self.retry, self.new_operation]
            self._digest.append(hashlib.sha256(_serialize(said).encode()).hexdigest()[:24])
        return self._digest[0]


async def read_replay_form(sent: Form, shown: Any, *, begun: bool = False) -> ReplayForm:
    """Read a form about an input that was shown like this; a thread reads a large one."""

    def read() -> ReplayForm:
        wish = _parse_replay_form(sent, shown, begun=begun)
        _ = wish.digest  # computed in the same thread, and remembered
        return wish

    return await in_thread_if_large(read, sent.size + measure_size(shown))


def _parse_replay_form(sent: Form, shown: Any, *, begun: bool = False) -> ReplayForm:
    """Read a form about an input that was shown like this; one that is only `begun` may lack something."""
    unread: dict[str, Reason] = {}
    mode = _parse_mode(sent.get("mode"))
    input = _parse_input(sent, shown, unread)
    if mode not in EDITABLE_MODES and (input is not None or "input" in unread):
        unread["input"] = Reason(ReasonCode.MODE_KEEPS_INPUT)
    output = _parse_output(sent, unread) if mode in OUTPUT_MODES else None
    start = sent.get("from_step")
    wish = ReplayForm(
        mode=mode,
        from_step=int(start) if mode is ReplayMode.FROM_STEP and start.isdigit() and len(start) < 6 else None,
        input=input,
        output=output,
        retry=_parse_retry(sent, unread),
        new_operation=bool(sent.get("new_operation")),
        reason=sent.maybe("reason"),
        typed=sent.raw("input"),
        typed_output=sent.get("output"),
        typed_retry=sent.get("retry"),
        given={name: sent.raw(FIELD_PREFIX + name) or "" for name in sent.names(FIELD_PREFIX)},
        unread=unread,
    )
    return wish if begun else replace(wish, unread={**_find_missing(wish), **unread})


def convert_to_fields(wish: ReplayForm, shown: Any) -> ReplayForm:
    """The same with its input field by field, where the fields of what was shown can say it."""
    if wish.typed is None or (wish.input is None and "input" in wish.unread):
        return wish
    meant = shown if wish.input is None else wish.input
    found = list_form_fields(shown) or []
    given = {leaf.name: leaf.text for leaf in list_form_fields(meant) or []}
    takes = all(leaf.takes(given.get(leaf.name, leaf.text)) for leaf in found)
    if not takes or _serialize(fill_fields(shown, found, given)) != _serialize(meant):
        return replace(wish, unread={**wish.unread, "input": Reason(ReasonCode.FORM_LACKS_FIELDS)})
    return replace(wish, typed=None, given=given)


def _find_missing(wish: ReplayForm) -> dict[str, Reason]:
    """What the way needs that nobody gave, by place."""
    if wish.mode in OUTPUT_MODES and not wish.typed_output:
        return {"output": Reason(ReasonCode.OUTPUT_NEEDED, example=_RESULT_EXAMPLE)}
    if wish.mode is ReplayMode.FROM_STEP and wish.from_step is None:
        return {"from_step": Reason(ReasonCode.STEP_CHOICE_NEEDED)}
    return {}


def _parse_mode(named: str) -> ReplayMode:
    return ReplayMode(named) if named in set(ReplayMode) - {ReplayMode.ROLLBACK} else ReplayMode.FROM_FAILED


def _parse_input(sent: Form, shown: Any, unread: dict[str, Reason]) -> Any:
    """The input that is meant; None if it is the one that was shown."""
    found = list_form_fields(shown) if sent.names(FIELD_PREFIX) else None
    if found is not None:
        meant = fill_fields(
            shown, found, {name: sent.raw(FIELD_PREFIX + name) or "" for name in sent.names(FIELD_PREFIX)}
        )
    elif _has_input(sent, shown):
        meant = _parse_json_field(sent, "input", unread)
    else:
        return None
    if "input" in unread or (_is_same_input(meant, shown) and shown is not None):
        return None
    if not isinstance(meant, dict):
        unread["input"] = Reason(ReasonCode.INPUT_OBJECT_NEEDED, example=_OBJECT_EXAMPLE)
        return None
    return meant


def _has_input(sent: Form, shown: Any) -> bool:
    """True if an input came; one that was shown and is blank now is one, blank fields to change are none."""
    return sent.raw("input") is not None if shown is not None else bool(sent.get("input"))


def _is_same_input(meant: Any, shown: Any) -> bool:
    return bool(meant == shown) and _serialize(meant, sort=False) == _serialize(shown, sort=False)


def _serialize(value: Any, *, sort: bool = True) -> str:
    """Return a value as text, whatever the order of names in it.

    It is written in pieces: a thread that writes a large one lets others run in between.
    """
    return "".join(json.JSONEncoder(sort_keys=sort).iterencode(value))


def _parse_output(sent: Form, unread: dict[str, Reason]) -> Any:
    given = _parse_json_field(sent, "output", unread)
    if why := unread.get("output"):
        unread["output"] = Reason(ReasonCode.OUTPUT_NOT_JSON, why=why, example=_RESULT_EXAMPLE)
    return given


def _parse_retry(sent: Form, unread: dict[str, Reason]) -> Mapping[str, Any] | None:
    given = _parse_json_field(sent, "retry", unread)
    if isinstance(given, dict):
        return given
    if sent.get("retry"):
        unread.setdefault("retry", Reason(ReasonCode.POLICY_OBJECT_NEEDED, example=_POLICY_EXAMPLE))
    return None


def _parse_json_field(sent: Form, name: str, unread: dict[str, Reason]) -> Any:
    text = sent.get(name)
    if not text:
        return None
    try:
        return parse_typed_json(text).value
    except InputError as error:
        unread[name] = Reason.of_error(error)
        return None


def split_faults(refusal: Reason) -> tuple[dict[str, Reason], list[Reason]]:
    """Return what a check found, by the place in the input; and what belongs to no place."""
    if not refusal.faults:
        return {}, [refusal]
    placed: dict[str, Reason] = {}
    for place, why in refusal.faults:
        if place:
            placed.setdefault(place, why)
    return placed, [why for place, why in refusal.faults if not place]
