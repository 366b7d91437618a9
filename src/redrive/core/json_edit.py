"""Editing an input as JSON: put back what was hidden, apply a patch, show what changed.

    original ──redact──▶ shown ──a person──▶ edited input, or patch
                                                  │ unmask
                                                  ▼
    changes(original, new input)  ◀──  new input, or patch ──merge_patch──▶ new input

Nothing is changed in place.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias

import msgspec

from redrive.core.json_schema import find_too_deep
from redrive.core.payload.errors import Path, format_path
from redrive.core.payload.plain import MAX_DEPTH
from redrive.core.redact import JSON, MASK, Redactor, find_masked_paths, is_masked
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode

# -- Editing an input as JSON: put back what was hidden, apply a patch, show what changed ----------------


ChangeKind: TypeAlias = Literal["added", "removed", "changed"]
_MAX_NAMED_PATHS = 5  # an error names this many places


def merge_patch(original: JSON, patch: JSON) -> dict[str, JSON]:
    """The original with a merge patch applied (RFC 7396): null removes a field, a list is replaced whole."""
    if not isinstance(patch, dict):
        raise InputError(Reason(ReasonCode.PATCH_OBJECT_NEEDED))
    if not isinstance(original, dict):
        raise InputError(Reason(ReasonCode.INPUT_NOT_PATCHABLE))
    _refuse_deep_nesting(patch)
    return _merge(original, patch)


def _merge(target: JSON, patch: dict[str, JSON]) -> dict[str, JSON]:
    merged = dict(target) if isinstance(target, dict) else {}
    for key, wanted in patch.items():
        if wanted is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), wanted) if isinstance(wanted, dict) else wanted
    return merged


def _refuse_deep_nesting(value: JSON) -> None:
    deep = find_too_deep(value)
    if deep is not None:
        why = Reason(ReasonCode.NESTED_TOO_DEEP, most=MAX_DEPTH)
        raise InputError(Reason(ReasonCode.FAULT, path=format_path(deep), why=why))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One place that differs. What was added has no `before`, what was removed no `after`."""

    path: str
    kind: ChangeKind
    before: JSON = None
    after: JSON = None

    def to_json(self) -> dict[str, JSON]:
        """The change as plain JSON, without the side that does not exist."""
        missing = {"added": "before", "removed": "after"}.get(self.kind)
        written = {"path": self.path, "kind": self.kind, "before": self.before, "after": self.after}
        return {name: value for name, value in written.items() if name != missing}

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Change:
        """The change that `to_json` wrote."""
        before, after = data.get("before"), data.get("after")
        return cls(path=data["path"], kind=data["kind"], before=before, after=after)


_Side: TypeAlias = tuple[JSON, ...]
"""One value, or none where the place does not exist."""

_Sides: TypeAlias = tuple[_Side, _Side, _Side]
"""A place before and after an edit, and as somebody sent it."""


def diff_json(before: JSON, after: JSON, redactor: Redactor | None = None, *, sent: JSON = None) -> tuple[Change, ...]:
    """Every place that differs, in the order of `before`; items of lists are compared by position.

    1, 1.0 and true differ, as the function may tell them apart. With a redactor the real values are
    compared and what may be shown of them is returned: a new password is a change from `MASK` to `MASK`.
    `sent` is `after` with the masks that were left in it: a hidden value that somebody typed counts as
    changed, even if it is the same, or else a few guesses would find it out.
    """
    found: list[Change] = []
    pending: list[tuple[Path, _Sides, bool]] = [((), ((before,), (after,), () if sent is None else (sent,)), False)]
    while pending:  # a stack of its own: what people send may be nested deeper than Python's
        path, (old, new, typed), hidden = pending.pop()
        if old and new and not hidden and _are_same_containers(old[0], new[0]):
            pending.extend(reversed(_child_sides(path, old[0], new[0], typed, redactor)))
        elif (
            not old or not new or _values_differ(old[0], new[0]) or _overwrites_mask(path, old, typed, hidden, redactor)
        ):
            found.append(_build_change(path, old, new, hidden, redactor))
    return tuple(found)


def _overwrites_mask(path: Path, old: _Side, typed: _Side, hidden: bool, redactor: Redactor | None) -> bool:
    """True if something is hidden here, and somebody sent another thing than its mask."""
    if redactor is None or not typed or is_masked(typed[0]):
        return False
    return bool(_redact_side(path, old, hidden, redactor) != old[0])


def _are_same_containers(old: JSON, new: JSON) -> bool:
    """True if the difference is to be told from the pieces."""
    return type(old) is type(new) and isinstance(old, dict | list)


def _child_sides(
    path: Path, old: JSON, new: JSON, typed: _Side, redactor: Redactor | None
) -> list[tuple[Path, _Sides, bool]]:
    ours, theirs, sent = _children(old), _children(new), _children(typed[0] if typed else None)
    hidden: frozenset[str | int] = frozenset()
    if redactor is not None:
        # A part is hidden on both sides if either side says so: a name beside it may have been edited.
        in_list = bool(path) and isinstance(path[-1], int)
        hidden = redactor.hidden_parts(old, in_list=in_list) | redactor.hidden_parts(new, in_list=in_list)
    return [
        ((*path, part), (_get_side(ours, part), _get_side(theirs, part), _get_side(sent, part)), part in hidden)
        for part in {**ours, **theirs}
    ]


def _children(value: JSON) -> dict[str | int, JSON]:
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if isinstance(value, list) else {}


def _get_side(pieces: dict[str | int, JSON], part: str | int) -> _Side:
    return (pieces[part],) if part in pieces else ()


def _values_differ(old: JSON, new: JSON) -> bool:
    if type(old) is type(new) and isinstance(old, dict | list):
        return bool(diff_json(old, new))
    return type(old) is not type(new) or bool(old != new)


def _build_change(path: Path, old: _Side, new: _Side, hidden: bool, redactor: Redactor | None) -> Change:
    before, after = (_redact_side(path, side, hidden, redactor) if side else None for side in (old, new))
    kind: ChangeKind = "changed" if old and new else "removed" if old else "added"
    names = path if redactor is None else tuple(_redact_part(part, redactor) for part in path)
    return Change(path=format_path(names), kind=kind, before=before, after=after)


def _redact_side(path: Path, side: _Side, hidden: bool, redactor: Redactor | None) -> JSON:
    """What may be seen of a value; nothing, true and false are not secrets under any name."""
    (value,) = side
    if redactor is None:
        return value
    if hidden and value is not None and not isinstance(value, bool) and value != "":
        return MASK
    return redactor.redact([value])[0] if path and isinstance(path[-1], int) else redactor.redact(value)


def _redact_part(part: str | int, redactor: Redactor) -> str | int:
    return redactor.text(part) if isinstance(part, str) else part


class _RedactedPair(msgspec.Struct, frozen=True):
    """A value of the original, and what a person saw of it."""

    real: JSON
    shown: JSON

    def fields(self) -> dict[str, tuple[str, _RedactedPair]]:
        """By the name that was shown: the real name, and the place."""
        if not (isinstance(self.real, dict) and isinstance(self.shown, dict)):
            return {}
        pairs = zip(self.real.items(), self.shown.items(), strict=True)  # redacting keeps the order
        return {seen: (name, _RedactedPair(real, shown)) for (name, real), (seen, shown) in pairs}

    def items(self) -> list[_RedactedPair]:
        if not (isinstance(self.real, list) and isinstance(self.shown, list)):
            return []
        return [_RedactedPair(real, shown) for real, shown in zip(self.real, self.shown, strict=True)]


_NO_ORIGINAL = _RedactedPair(None, None)
"""Stands beside what has no place in the original."""


def unmask(edited: JSON, original: JSON, redactor: Redactor) -> JSON:
    """What a person meant who edited the redacted original: every mask left in place is the real value again.

    Serves whole inputs and merge patches alike. A mask that stands anywhere else, or in a list whose
    items were moved so that it is not certain which of them it was, is an InputError.
    """
    _refuse_deep_nesting(edited)
    lost: list[str] = []
    meant = _restore(edited, _RedactedPair(original, redactor.redact(original)), (), lost)
    if lost:
        more = len(lost) - _MAX_NAMED_PATHS if len(lost) > _MAX_NAMED_PATHS else None
        paths = tuple(lost[:_MAX_NAMED_PATHS])
        raise InputError(Reason(ReasonCode.MASK_AMBIGUOUS, paths=paths, more=more, mask=MASK))
    return meant


def _restore(edited: JSON, place: _RedactedPair, path: Path, lost: list[str]) -> JSON:
    match edited:
        case dict():
            return _restore_object(edited, place, path, lost)
        case list():
            places = _match_items(edited, place.items())
            pairs = enumerate(zip(edited, places, strict=True))
            return [_restore(one, beside, (*path, index), lost) for index, (one, beside) in pairs]
        case str() if is_masked(edited):
            if edited == place.shown:
                return place.real
            lost.append(format_path(path))
    return edited


def _restore_object(edited: dict[str, JSON], place: _RedactedPair, path: Path, lost: list[str]) -> dict[str, JSON]:
    known = place.fields()
    meant: dict[str, JSON] = {}
    for key, inner in edited.items():
        name, beside = known.get(key, (key, _NO_ORIGINAL))
        below = (*path, key)
        if name in meant or (key not in known and is_masked(key)):
            lost.append(format_path(below))
        meant[name] = _restore(inner, beside, below, lost)
    return meant


def _match_items(edited: list[JSON], places: list[_RedactedPair]) -> Sequence[_RedactedPair]:
    """For each item the place in the original that it was made from, as far as that is certain."""
    shown = [place.shown for place in places]
    added = [_NO_ORIGINAL] * (len(edited) - len(shown))
    if edited[: len(shown)] == shown:
        return places + added
    if edited[len(added) :] == shown:
        return added + places
    twins = _find_lookalikes(edited, places)
    moved = any(twin and one != seen for one, seen, twin in zip(edited, shown, twins, strict=False))
    if len(edited) == len(shown) and not moved:
        return places  # items were edited where they stood
    return [_pick_unambiguous(twin) for twin in twins]


def _find_lookalikes(edited: list[JSON], places: list[_RedactedPair]) -> list[list[_RedactedPair]]:
    """For each item with something hidden, the places that looked exactly like it."""
    by_text: dict[str, list[_RedactedPair]] = {}
    for place in places:
        by_text.setdefault(_canonical_json(place.shown), []).append(place)
    return [by_text.get(_canonical_json(one), []) if find_masked_paths(one) else [] for one in edited]


def _pick_unambiguous(twins: list[_RedactedPair]) -> _RedactedPair:
    """The place, if it makes no difference which of them it was."""
    return twins[0] if twins and all(twin.real == twins[0].real for twin in twins) else _NO_ORIGINAL


def _canonical_json(value: JSON) -> str:
    return json.dumps(value, sort_keys=True)


# -- JSON as people type it: read more strictly than programs need it, with the line of every place ------


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class ParsedJson:
    """What somebody typed, and in which line each place of it stands, by the path that errors give."""

    value: JSON
    lines: dict[str, int]


@dataclass(slots=True)
class _Frame:
    """An object or list that is being read. `part` is the name or number of what comes next."""

    path: Path
    names: dict[str, int] | None
    part: str | int | None = None

    def next(self) -> None:
        """Go on behind a comma."""
        self.part = self.part + 1 if isinstance(self.part, int) else None


def parse_typed_json(text: str, *, below: int = 0) -> ParsedJson:
    """The value; InputError says in which line something is no JSON, or is given twice.

    Lines are counted as in a file that has so many others above the text.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
    except json.JSONDecodeError as error:
        line, why = error.lineno + below, _lower_first_letter(error.msg)
        raise InputError(Reason(ReasonCode.JSON_SYNTAX, line=line, column=error.colno, why=why)) from None
    except RecursionError:
        raise InputError(Reason(ReasonCode.JSON_TOO_DEEP)) from None
    except ValueError:  # Python reads no number of more than a few thousand digits
        raise InputError(Reason(ReasonCode.JSON_NUMBER_TOO_LONG)) from None
    return ParsedJson(value, dict(_locate_values(text, below)))


def _locate_values(text: str, below: int) -> Iterator[tuple[str, int]]:
    """Every place of a text that is JSON, with its line."""
    ends = [found.start() for found in re.finditer("\n", text)]
    frames = [_Frame((), None)]
    for found in _TOKEN.finditer(text):
        token, line, frame = found[0], 1 + below + bisect_left(ends, found.start()), frames[-1]
        if token in ("}", "]"):
            frames.pop()
        elif token == ",":
            frame.next()
        elif frame.names is not None and frame.part is None:
            frame.part = _read_name(token, line, frame.names)
            yield format_path((*frame.path, frame.part)), line
        elif token != ":":
            path = frame.path if frame.part is None else (*frame.path, frame.part)
            if frame.names is None:
                yield format_path(path), line
            if token in ("{", "["):
                frames.append(_Frame(path, {}) if token == "{" else _Frame(path, None, 0))


def _read_name(token: str, line: int, names: dict[str, int]) -> str:
    name: str = json.loads(token)
    if name in names:
        first = names[name]
        raise InputError(Reason(ReasonCode.JSON_NAME_TWICE, line=line, name=token[:60], first=first))
    names[name] = line
    return name


def _parse_finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise InputError(Reason(ReasonCode.JSON_NUMBER_TOO_LARGE, number=digits[:60]))
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise InputError(Reason(ReasonCode.JSON_CONSTANT, word=word))


def _lower_first_letter(message: str) -> str:
    return message[:1].lower() + message[1:]
