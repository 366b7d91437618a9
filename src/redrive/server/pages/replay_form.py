"""What somebody wants a replay to do, as a form says it, and what is wrong with that, place by place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from redrive.core.json_edit import read_typed
from redrive.core.payload.errors import path_text
from redrive.core.replay import Mode
from redrive.desk.presenter import aside, length
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.server.pages.forms import Form
from redrive.server.routes.common import policy_of

__all__ = [
    "EDITABLE",
    "FIELD",
    "Leaf",
    "OUTPUTS",
    "Wish",
    "faults_of",
    "filled",
    "in_fields",
    "leaves",
    "read_wish",
]


# -- An input as a form: its plain values, each with a name of its own, however deep they stand ----------


_MOST, _DEEPEST, _LONGEST = 40, 4, 20_000


class Leaf(msgspec.Struct, frozen=True):
    """One value with its place. A list is one value, which is typed as JSON."""

    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        """The place as errors name it."""
        return path_text(self.path)

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
        return text == self.text or (is_whole and _as_sent(text) == text)

    @property
    def is_long(self) -> bool:
        """True if a form would not do. A list with so many items need not be written down to know it."""
        crowded = isinstance(self.value, list | dict) and 2 * len(self.value) > _LONGEST
        return crowded or len(self.text) > _LONGEST

    def meant(self, text: str) -> Any:
        """What was typed in its place; what fits no kind stays the text that it is, for the check to name."""
        if isinstance(self.value, str):
            return text
        if self.value is None and not text:
            return None
        try:
            value = read_typed(text).value
        except InputError:
            return text
        return value if isinstance(value, list | dict) == (self.kind == "json") else text


def leaves(value: Any) -> list[Leaf] | None:
    """The plain values of an object; None where they are too many, too deep or too long for a form."""
    if not isinstance(value, dict) or not value:
        return None
    found: list[Leaf] = []
    for leaf in _below(value, ()):
        if len(found) == _MOST or len(leaf.path) > _DEEPEST or leaf.is_long:
            return None
        found.append(leaf)
    names = {leaf.name for leaf in found}
    return found if len(names) == len(found) else None  # a field called `a.b` beside one `b` in an `a`


def _below(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[Leaf]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner and len(path) < _DEEPEST:
            yield from _below(inner, (*path, name))
        else:
            yield Leaf((*path, name), inner)


def _as_sent(text: str) -> str:
    """A text as a browser sends it back: its lines end in one way, and a first one that is empty is lost."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")


def filled(value: Any, found: list[Leaf], texts: Mapping[str, str]) -> Any:
    """The object with what was typed in its places; a place of which nothing came stays as it is."""
    made = json.loads(json.dumps(value))
    for leaf in found:
        if leaf.name in texts and _as_sent(texts[leaf.name]) != _as_sent(leaf.text):
            inner = made
            for part in leaf.path[:-1]:
                inner = inner[part]
            inner[leaf.path[-1]] = leaf.meant(texts[leaf.name])
    return made


# -- What somebody wants a replay to do, as a form says it, and what is wrong with that, place by pl -----


FIELD = "f:"
"""What the name of a form's field begins with that is a field of the input."""

OUTPUTS = frozenset({Mode.SKIP, Mode.COMPLETE})
EDITABLE = frozenset({Mode.FROM_FAILED, Mode.FROM_STEP, Mode.FULL})
_RESULT, _OBJECT, _POLICY = '"payment 7"', '{"order": 7}', '{"max_retries": 5}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One replay as it was typed. `input` is None where nobody touched it; `typed` is the text that was."""

    mode: Mode = Mode.FROM_FAILED
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
        return not self.unread and not _missing(self)

    def options(self) -> dict[str, Any]:
        """What the desk takes."""
        return {
            "from_step": self.from_step,
            "input": self.input,
            "output": self.output,
            "retry": policy_of(dict(self.retry)) if self.retry is not None else None,
            "new_operation": self.new_operation,
        }

    @property
    def digest(self) -> str:
        """Tells this wish from another, so that nobody decides on what they have not seen checked."""
        if not self._digest:
            said = [self.mode.value, self.from_step, self.input, self.output, self.retry, self.new_operation]
            self._digest.append(hashlib.sha256(_in_order(said).encode()).hexdigest()[:24])
        return self._digest[0]


async def read_wish(sent: Form, shown: Any, *, begun: bool = False) -> Wish:
    """Read a form about an input that was shown like this; a thread reads a large one."""

    def read() -> Wish:
        wish = _wish_of(sent, shown, begun=begun)
        _ = wish.digest  # computed in the same thread, and remembered
        return wish

    return await aside(read, sent.size + length(shown))


def _wish_of(sent: Form, shown: Any, *, begun: bool = False) -> Wish:
    """Read a form about an input that was shown like this; one that is only `begun` may lack something."""
    unread: dict[str, Reason] = {}
    mode = _mode(sent.get("mode"))
    input = _input(sent, shown, unread)
    if mode not in EDITABLE and (input is not None or "input" in unread):
        unread["input"] = Reason(ReasonCode.MODE_KEEPS_INPUT)
    output = _output(sent, unread) if mode in OUTPUTS else None
    start = sent.get("from_step")
    wish = Wish(
        mode=mode,
        from_step=int(start) if mode is Mode.FROM_STEP and start.isdigit() and len(start) < 6 else None,
        input=input,
        output=output,
        retry=_retry(sent, unread),
        new_operation=bool(sent.get("new_operation")),
        reason=sent.maybe("reason"),
        typed=sent.raw("input"),
        typed_output=sent.get("output"),
        typed_retry=sent.get("retry"),
        given={name: sent.raw(FIELD + name) or "" for name in sent.names(FIELD)},
        unread=unread,
    )
    return wish if begun else replace(wish, unread={**_missing(wish), **unread})


def in_fields(wish: Wish, shown: Any) -> Wish:
    """The same with its input field by field, where the fields of what was shown can say it."""
    if wish.typed is None or (wish.input is None and "input" in wish.unread):
        return wish
    meant = shown if wish.input is None else wish.input
    found = leaves(shown) or []
    given = {leaf.name: leaf.text for leaf in leaves(meant) or []}
    takes = all(leaf.takes(given.get(leaf.name, leaf.text)) for leaf in found)
    if not takes or _in_order(filled(shown, found, given)) != _in_order(meant):
        return replace(wish, unread={**wish.unread, "input": Reason(ReasonCode.FORM_LACKS_FIELDS)})
    return replace(wish, typed=None, given=given)


def _missing(wish: Wish) -> dict[str, Reason]:
    """What the way needs that nobody gave, by place."""
    if wish.mode in OUTPUTS and not wish.typed_output:
        return {"output": Reason(ReasonCode.OUTPUT_NEEDED, example=_RESULT)}
    if wish.mode is Mode.FROM_STEP and wish.from_step is None:
        return {"from_step": Reason(ReasonCode.STEP_CHOICE_NEEDED)}
    return {}


def _mode(named: str) -> Mode:
    return Mode(named) if named in set(Mode) - {Mode.ROLLBACK} else Mode.FROM_FAILED


def _input(sent: Form, shown: Any, unread: dict[str, Reason]) -> Any:
    """The input that is meant; None if it is the one that was shown."""
    found = leaves(shown) if sent.names(FIELD) else None
    if found is not None:
        meant = filled(shown, found, {name: sent.raw(FIELD + name) or "" for name in sent.names(FIELD)})
    elif _has_input(sent, shown):
        meant = _read(sent, "input", unread)
    else:
        return None
    if "input" in unread or (_is_same(meant, shown) and shown is not None):
        return None
    if not isinstance(meant, dict):
        unread["input"] = Reason(ReasonCode.INPUT_OBJECT_NEEDED, example=_OBJECT)
        return None
    return meant


def _has_input(sent: Form, shown: Any) -> bool:
    """True if an input came; one that was shown and is blank now is one, blank fields to change are none."""
    return sent.raw("input") is not None if shown is not None else bool(sent.get("input"))


def _is_same(meant: Any, shown: Any) -> bool:
    return bool(meant == shown) and _in_order(meant, sort=False) == _in_order(shown, sort=False)


def _in_order(value: Any, *, sort: bool = True) -> str:
    """Return a value as text, whatever the order of names in it.

    It is written in pieces: a thread that writes a large one lets others run in between.
    """
    return "".join(json.JSONEncoder(sort_keys=sort).iterencode(value))


def _output(sent: Form, unread: dict[str, Reason]) -> Any:
    given = _read(sent, "output", unread)
    if why := unread.get("output"):
        unread["output"] = Reason(ReasonCode.OUTPUT_NOT_JSON, why=why, example=_RESULT)
    return given


def _retry(sent: Form, unread: dict[str, Reason]) -> Mapping[str, Any] | None:
    given = _read(sent, "retry", unread)
    if isinstance(given, dict):
        return given
    if sent.get("retry"):
        unread.setdefault("retry", Reason(ReasonCode.POLICY_OBJECT_NEEDED, example=_POLICY))
    return None


def _read(sent: Form, name: str, unread: dict[str, Reason]) -> Any:
    text = sent.get(name)
    if not text:
        return None
    try:
        return read_typed(text).value
    except InputError as error:
        unread[name] = Reason.of_error(error)
        return None


def faults_of(refusal: Reason) -> tuple[dict[str, Reason], list[Reason]]:
    """Return what a check found, by the place in the input; and what belongs to no place."""
    if not refusal.faults:
        return {}, [refusal]
    placed: dict[str, Reason] = {}
    for place, why in refusal.faults:
        if place:
            placed.setdefault(place, why)
    return placed, [why for place, why in refusal.faults if not place]
