"""Edits of an input as JSON: restore hidden values, apply a patch, list the changes, parse typed JSON.

    original ──redact──▶ shown ──user──▶ edited input, or patch
                                                  │ unmask
                                                  ▼
    diff_json(original, new input)  ◀──  new input, or patch ──merge_patch──▶ new input

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
from redrive.core.payload.faults import Path, format_path
from redrive.core.payload.plain_json import MAX_DEPTH
from redrive.core.redact import JSON, MASK, Redactor, find_masked_paths, is_masked
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode

ChangeKind: TypeAlias = Literal["added", "removed", "changed"]
_MAX_NAMED_PATHS = 5  # places that one error names


def merge_patch(original: JSON, patch: JSON) -> dict[str, JSON]:
    """Apply a merge patch (RFC 7396): null removes a field, a list is replaced as a whole."""
    if not isinstance(patch, dict):
        raise InputError(Reason(ReasonCode.PATCH_OBJECT_NEEDED))
    if not isinstance(original, dict):
        raise InputError(Reason(ReasonCode.INPUT_NOT_PATCHABLE))
    _refuse_deep_nesting(patch)
    return _merge(original, patch)


def _merge(target: JSON, patch: dict[str, JSON]) -> dict[str, JSON]:
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value) if isinstance(value, dict) else value
    return merged


def _refuse_deep_nesting(value: JSON) -> None:
    deep = find_too_deep(value)
    if deep is not None:
        why = Reason(ReasonCode.NESTED_TOO_DEEP, most=MAX_DEPTH)
        raise InputError(Reason(ReasonCode.FAULT, path=format_path(deep), why=why))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A difference at one path. An added value has no `before`, a removed one no `after`."""

    path: str
    kind: ChangeKind
    before: JSON = None
    after: JSON = None

    def to_json(self) -> dict[str, JSON]:
        """Return the change as plain JSON, without the side that does not exist."""
        missing = {"added": "before", "removed": "after"}.get(self.kind)
        written = {"path": self.path, "kind": self.kind, "before": self.before, "after": self.after}
        return {name: value for name, value in written.items() if name != missing}

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> Change:
        before, after = data.get("before"), data.get("after")
        return cls(path=data["path"], kind=data["kind"], before=before, after=after)


_Side: TypeAlias = tuple[JSON, ...]
"""A value in a tuple; an empty tuple if the path does not exist."""

_Sides: TypeAlias = tuple[_Side, _Side, _Side]
"""The value at a path before and after an edit, and as the user sent it."""


def diff_json(before: JSON, after: JSON, redactor: Redactor | None = None, *, sent: JSON = None) -> tuple[Change, ...]:
    """Return all differences in the order of `before`. Items of lists are compared by position.

    1, 1.0 and true differ, because the workflow may treat them differently. With a redactor, real values are
    compared and redacted values are returned: a new password is a change from `MASK` to `MASK`. `sent` is
    `after` with the masks that the user left in it. A hidden value that the user entered counts as changed even
    if it is equal; otherwise a user could find it out by guessing.
    """
    found: list[Change] = []
    pending: list[tuple[Path, _Sides, bool]] = [((), ((before,), (after,), () if sent is None else (sent,)), False)]
    while pending:  # an explicit stack, because input may be nested deeper than Python's stack allows
        path, (old, new, typed), hidden = pending.pop()
        if old and new and not hidden and type(old[0]) is type(new[0]) and isinstance(old[0], dict | list):
            ours, theirs, entered = _children(old[0]), _children(new[0]), _children(typed[0] if typed else None)
            secret: frozenset[str | int] = frozenset()
            if redactor is not None:
                # A part is hidden on both sides if it is hidden on one: the name beside it may have been edited.
                in_list = bool(path) and isinstance(path[-1], int)
                secret = redactor.hidden_parts(old[0], in_list=in_list) | redactor.hidden_parts(new[0], in_list=in_list)
            for part in reversed({**ours, **theirs}):
                sides = _get_side(ours, part), _get_side(theirs, part), _get_side(entered, part)
                pending.append(((*path, part), sides, part in secret))
            continue
        differs = not old or not new or type(old[0]) is not type(new[0])
        if not differs:
            nested = isinstance(old[0], dict | list)
            differs = bool(diff_json(old[0], new[0])) if nested else bool(old[0] != new[0])
        if not differs and redactor is not None and typed and not is_masked(typed[0]):
            # The user entered a value where another one is hidden.
            differs = _redact_side(path, old, hidden, redactor) != old[0]
        if differs:
            before, after = (_redact_side(path, side, hidden, redactor) if side else None for side in (old, new))
            kind: ChangeKind = "changed" if old and new else "removed" if old else "added"
            if redactor is not None:
                path = tuple(redactor.text(part) if isinstance(part, str) else part for part in path)
            found.append(Change(path=format_path(path), kind=kind, before=before, after=after))
    return tuple(found)


def _children(value: JSON) -> dict[str | int, JSON]:
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if isinstance(value, list) else {}


def _get_side(pieces: dict[str | int, JSON], part: str | int) -> _Side:
    return (pieces[part],) if part in pieces else ()


def _redact_side(path: Path, side: _Side, hidden: bool, redactor: Redactor | None) -> JSON:
    """Return the value as it may be shown. None, true, false and "" are never secrets."""
    (value,) = side
    if redactor is None:
        return value
    if hidden and value is not None and not isinstance(value, bool) and value != "":
        return MASK
    return redactor.redact([value])[0] if path and isinstance(path[-1], int) else redactor.redact(value)


class _RedactedPair(msgspec.Struct, frozen=True):
    """A value of the original, and the same value as the user saw it."""

    real: JSON
    shown: JSON

    def fields(self) -> dict[str, tuple[str, _RedactedPair]]:
        """Return the real name and the pair of each field, by the name that was shown."""
        if not (isinstance(self.real, dict) and isinstance(self.shown, dict)):
            return {}
        pairs = zip(self.real.items(), self.shown.items(), strict=True)  # redacting keeps the order
        return {seen: (name, _RedactedPair(real, shown)) for (name, real), (seen, shown) in pairs}

    def items(self) -> list[_RedactedPair]:
        if not (isinstance(self.real, list) and isinstance(self.shown, list)):
            return []
        return [_RedactedPair(real, shown) for real, shown in zip(self.real, self.shown, strict=True)]


_NO_ORIGINAL = _RedactedPair(None, None)
"""The pair of a value that the original does not have."""


def unmask(edited: JSON, original: JSON, redactor: Redactor) -> JSON:
    """Return an edited copy of the redacted original with every mask replaced by the real value.

    The edit may be a whole input or a merge patch. A mask in another place is an InputError, and so is one in a list
    whose items were moved, if it is not certain to which item it belongs.
    """
    _refuse_deep_nesting(edited)
    lost: list[str] = []
    restored = _restore(edited, _RedactedPair(original, redactor.redact(original)), (), lost)
    if lost:
        more = len(lost) - _MAX_NAMED_PATHS if len(lost) > _MAX_NAMED_PATHS else None
        paths = tuple(lost[:_MAX_NAMED_PATHS])
        raise InputError(Reason(ReasonCode.MASK_AMBIGUOUS, paths=paths, more=more, mask=MASK))
    return restored


def _restore(edited: JSON, pair: _RedactedPair, path: Path, lost: list[str]) -> JSON:
    """Replace the masks in a value by those of its pair. Paths of masks without a real value are added to `lost`."""
    match edited:
        case dict():
            known = pair.fields()
            restored: dict[str, JSON] = {}
            for key, inner in edited.items():
                name, original = known.get(key, (key, _NO_ORIGINAL))
                if name in restored or (key not in known and is_masked(key)):
                    lost.append(format_path((*path, key)))
                restored[name] = _restore(inner, original, (*path, key), lost)
            return restored
        case list():
            originals = _match_items(edited, pair.items())
            pairs = enumerate(zip(edited, originals, strict=True))
            return [_restore(one, original, (*path, index), lost) for index, (one, original) in pairs]
        case str() if is_masked(edited):
            if edited == pair.shown:
                return pair.real
            lost.append(format_path(path))
    return edited


def _match_items(edited: list[JSON], originals: list[_RedactedPair]) -> Sequence[_RedactedPair]:
    """Return, for each item, the item of the original that it was made from, if that is certain."""
    shown = [original.shown for original in originals]
    added = [_NO_ORIGINAL] * (len(edited) - len(shown))
    if edited[: len(shown)] == shown:
        return originals + added
    if edited[len(added) :] == shown:
        return added + originals
    # For each item that contains a mask, find the original items that looked exactly like it.
    by_text: dict[str, list[_RedactedPair]] = {}
    for original in originals:
        by_text.setdefault(json.dumps(original.shown, sort_keys=True), []).append(original)
    lookalikes = [by_text.get(json.dumps(one, sort_keys=True), []) if find_masked_paths(one) else [] for one in edited]
    moved = any(found and one != seen for one, seen, found in zip(edited, shown, lookalikes, strict=False))
    if len(edited) == len(shown) and not moved:
        return originals  # items were edited in place
    return [
        # Lookalikes with the same real value are interchangeable.
        found[0] if found and all(each.real == found[0].real for each in found) else _NO_ORIGINAL
        for found in lookalikes
    ]


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class ParsedJson:
    """A value that a user typed, and the line of each place in it, by its path."""

    value: JSON
    lines: dict[str, int]


@dataclass(slots=True)
class _Frame:
    """An object or list that is being read. `part` is the name or index of the next value."""

    path: Path
    names: dict[str, int] | None
    part: str | int | None = None

    def next(self) -> None:
        """Continue after a comma."""
        self.part = self.part + 1 if isinstance(self.part, int) else None


_SYNTAX_CODES = {
    "Expecting value": ReasonCode.JSON_VALUE_MISSING,
    "Expecting ',' delimiter": ReasonCode.JSON_COMMA_MISSING,
    "Expecting ':' delimiter": ReasonCode.JSON_COLON_MISSING,
    "Expecting property name enclosed in double quotes": ReasonCode.JSON_NAME_MISSING,
    "Unterminated string starting at": ReasonCode.JSON_TEXT_UNCLOSED,
    "Extra data": ReasonCode.JSON_TEXT_LEFT,
    "Illegal trailing comma before end of object": ReasonCode.JSON_COMMA_EXTRA,  # since Python 3.13
    "Illegal trailing comma before end of array": ReasonCode.JSON_COMMA_EXTRA,
}
"""The reasons for the messages of Python's parser, which has no codes for them."""


def parse_typed_json(text: str, *, below: int = 0) -> ParsedJson:
    """Parse JSON that a user typed, with the line of every place.

    Stricter than `json.loads`: names that occur twice, NaN and numbers that are too large are an InputError, which
    names the line. `below` is the number of lines above the text in its file.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
    except json.JSONDecodeError as error:
        line, why = error.lineno + below, Reason(_SYNTAX_CODES.get(error.msg, ReasonCode.JSON_UNREADABLE))
        raise InputError(Reason(ReasonCode.JSON_SYNTAX, line=line, column=error.colno, why=why)) from None
    except RecursionError:
        raise InputError(Reason(ReasonCode.JSON_TOO_DEEP)) from None
    except ValueError:  # Python refuses numbers of more than a few thousand digits
        raise InputError(Reason(ReasonCode.JSON_NUMBER_TOO_LONG)) from None
    return ParsedJson(value, dict(_locate_values(text, below)))


def _locate_values(text: str, below: int) -> Iterator[tuple[str, int]]:
    """Yield the path and the line of every place in a JSON text."""
    ends = [found.start() for found in re.finditer("\n", text)]
    frames = [_Frame((), None)]
    for found in _TOKEN.finditer(text):
        token, line, frame = found[0], 1 + below + bisect_left(ends, found.start()), frames[-1]
        if token in ("}", "]"):
            frames.pop()
        elif token == ",":
            frame.next()
        elif frame.names is not None and frame.part is None:
            frame.part = name = json.loads(token)
            if name in frame.names:
                first = frame.names[name]
                raise InputError(Reason(ReasonCode.JSON_NAME_TWICE, line=line, name=token[:60], first=first))
            frame.names[name] = line
            yield format_path((*frame.path, frame.part)), line
        elif token != ":":
            path = frame.path if frame.part is None else (*frame.path, frame.part)
            if frame.names is None:
                yield format_path(path), line
            if token in ("{", "["):
                frames.append(_Frame(path, {}) if token == "{" else _Frame(path, None, 0))


def _parse_finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise InputError(Reason(ReasonCode.JSON_NUMBER_TOO_LARGE, number=digits[:60]))
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise InputError(Reason(ReasonCode.JSON_CONSTANT, word=word))
