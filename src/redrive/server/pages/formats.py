"""Values as pages show them: JSON, times and durations."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from redrive.server.pages.replay_form import list_form_fields
from redrive.server.pages.texts import N, Translator

MAX_SHOWN = 20_000
"""Characters of a payload that a page shows."""

_MAX_CELL_LENGTH = 200  # characters of a list that is shown in one cell
_TIME_UNITS = ((86_400, N("{n} d")), (3_600, N("{n} h")), (60, N("{n} min")), (1, N("{n} s")))


def format_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


class JsonExcerpt(msgspec.Struct, frozen=True, gc=False):
    """Indented JSON; `cut` if only its beginning is there."""

    text: str
    cut: bool


def excerpt_json(value: Any) -> JsonExcerpt:
    """Return the JSON of a payload up to `MAX_SHOWN` characters, without writing the rest of a large one."""
    parts: list[str] = []
    left = MAX_SHOWN
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=str).iterencode(value):
        parts.append(part[:left])
        left -= len(part)
        if left < 0:
            return JsonExcerpt("".join(parts), cut=True)
    return JsonExcerpt("".join(parts), cut=False)


def list_labelled_texts(value: Any) -> list[tuple[str, str]] | None:
    """Return the labels and texts of an object for a table; None if it is too large or too deep for one."""
    found = list_form_fields(value)
    if found is None or any(field.kind == "json" and len(field.text) > _MAX_CELL_LENGTH for field in found):
        return None
    return [(field.label, "null" if field.value is None else field.text) for field in found]


def format_utc(when: datetime) -> str:
    """Return a time in UTC for people."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_iso(when: datetime) -> str:
    """Return a time in UTC for programs."""
    return f"{when.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def format_span(t: Translator, seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return t("{n} ms", n=max(0, round(seconds * 1000)))
    if seconds < 10:
        return t("{n} s", n=round(float(seconds), 1))
    left, parts = round(seconds), []
    for size, text in _TIME_UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(t(text, n=count))
        elif parts:
            break
    return " ".join(parts[:2])


def format_relative_time(t: Translator, seconds: float) -> str:
    """Return roughly how many seconds ago something was; negative seconds are in the future."""
    size = abs(seconds)
    if size < 5:
        return t("now")
    amount = next(t(text, n=int(size // unit)) for unit, text in _TIME_UNITS if size >= unit)
    return t("{span} ago", span=amount) if seconds > 0 else t("in {span}", span=amount)
