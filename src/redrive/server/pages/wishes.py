"""What somebody wants a replay to do, as a form says it, and what is wrong with that, place by place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from redrive.core.replay import Mode
from redrive.core.typed import read_typed
from redrive.desk.aside import aside, length
from redrive.errors import InputError
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.forms import Form
from redrive.server.pages.leaves import filled, leaves
from redrive.server.routes.shared import policy_of

__all__ = ["EDITABLE", "FIELD", "OUTPUTS", "Wish", "faults_of", "in_fields", "read_wish"]

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
