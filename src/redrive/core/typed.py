"""JSON as people type it: read more strictly than programs need it, with the line of every place.

read_typed('{"order": 1,\n "order": 2}')   InputError: line 2: "order" is given twice, first in line 1
read_typed('{"order": {\n "id": 7}}').lines   {"": 1, "order": 1, "order.id": 2}
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass as plain_dataclass
from typing import NoReturn

from redrive.core.payload.explain import Path, path_text
from redrive.core.redact import JSON
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode

__all__ = ["Typed", "read_typed"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@plain_dataclass(frozen=True, slots=True)
class Typed:
    """What somebody typed, and in which line each place of it stands, by the path that errors give."""

    value: JSON
    lines: dict[str, int]


@plain_dataclass(slots=True)
class _Frame:
    """An object or list that is being read. `part` is the name or number of what comes next."""

    path: Path
    names: dict[str, int] | None
    part: str | int | None = None

    def next(self) -> None:
        """Go on behind a comma."""
        self.part = self.part + 1 if isinstance(self.part, int) else None


def read_typed(text: str, *, below: int = 0) -> Typed:
    """The value; InputError says in which line something is no JSON, or is given twice.

    Lines are counted as in a file that has so many others above the text.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        line, why = error.lineno + below, _lowered(error.msg)
        raise InputError(Reason(ReasonCode.JSON_SYNTAX, line=line, column=error.colno, why=why)) from None
    except RecursionError:
        raise InputError(Reason(ReasonCode.JSON_TOO_DEEP)) from None
    except ValueError:  # Python reads no number of more than a few thousand digits
        raise InputError(Reason(ReasonCode.JSON_NUMBER_TOO_LONG)) from None
    return Typed(value, dict(_places(text, below)))


def _places(text: str, below: int) -> Iterator[tuple[str, int]]:
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
            frame.part = _named(token, line, frame.names)
            yield path_text((*frame.path, frame.part)), line
        elif token != ":":
            path = frame.path if frame.part is None else (*frame.path, frame.part)
            if frame.names is None:
                yield path_text(path), line
            if token in ("{", "["):
                frames.append(_Frame(path, {}) if token == "{" else _Frame(path, None, 0))


def _named(token: str, line: int, names: dict[str, int]) -> str:
    name: str = json.loads(token)
    if name in names:
        first = names[name]
        raise InputError(Reason(ReasonCode.JSON_NAME_TWICE, line=line, name=token[:60], first=first))
    names[name] = line
    return name


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise InputError(Reason(ReasonCode.JSON_NUMBER_TOO_LARGE, number=digits[:60]))
    return value


def _refuse_constant(word: str) -> NoReturn:
    raise InputError(Reason(ReasonCode.JSON_CONSTANT, word=word))


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
