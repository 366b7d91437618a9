"""Texts of the dashboard in English and Polish, and values formatted for it.

An English text is its own key; the Polish one stands in `words/pl`. `t("{n} run|{n} runs", n=3)` chooses a form
by number: two in English, three in Polish.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup, escape

from redrive.reasons import ENGLISH
from redrive.reasons.reason import POLISH
from redrive.server.pages.replay_form import list_form_fields

LANGUAGES = {"en": "English", "pl": "Polski"}
CATALOGUES = {"en": ENGLISH, "pl": POLISH}
MAX_SHOWN = 20_000
"""Characters of a payload that a page shows."""

_MAX_CELL_LENGTH = 200  # characters of a list that is shown in one cell


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


def format_number(number: float, language: str) -> str:
    """Return a number with the marks of a language: 5,000 and 1.5 in English, 5 000 and 1,5 in Polish."""
    return CATALOGUES[language].localize(f"{number:,}" if type(number) is int else f"{number:g}")


def N(text: str) -> str:
    """Mark a text that a template translates."""
    return text


@cache
def load_catalogue(language: str) -> Mapping[str, str]:
    """Return the translations of a language by English text; English has none."""
    found: dict[str, str] = {}
    for file in sorted((Path(__file__).parent / "words" / language).glob("*.json")):
        found |= json.loads(file.read_text(encoding="utf-8"))
    return found


def choose_language(chosen: str | None, accepted: str) -> str:
    """Return the language that the user chose, or else the best one of an Accept-Language header."""
    if chosen in LANGUAGES:
        return chosen
    best, found = 0.0, "en"
    for part in accepted.split(",")[:20]:
        name, _, weight = part.strip().partition(";q=")
        try:
            quality = float(weight or 1)
        except ValueError:
            continue
        if name[:2].lower() in LANGUAGES and quality > best:
            best, found = quality, name[:2].lower()
    return found


class Translator:
    """Translates texts into one language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._texts = load_catalogue(language)

    def __call__(self, text: str, **values: Any) -> Markup:
        """Return the text in this language, with the values escaped and filled in."""
        # Only a text of the catalogue is trusted: a test checks that none of those contains markup.
        if text not in load_catalogue("pl"):
            return escape(text)
        translated = self._texts.get(text, text)
        if "|" in translated:
            translated = translated.split("|")[CATALOGUES[self.language].form(values.get("n", 0))]
        shown = {name: self._format_value(value) for name, value in values.items()}
        return Markup(translated).format(**shown) if shown else Markup(translated)  # nosec B704

    def _format_value(self, value: Any) -> Any:
        return format_number(value, self.language) if type(value) in (int, float) else value
