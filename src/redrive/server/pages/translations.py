"""Texts of the dashboard in English and Polish.

An English text is its own key; the Polish one stands in `words/pl`. `t("{n} run|{n} runs", n=3)` chooses a form
by number: two in English, three in Polish.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from redrive.reasons import ENGLISH
from redrive.reasons.reason import POLISH

LANGUAGES = {"en": "English", "pl": "Polski"}
CATALOGUES = {"en": ENGLISH, "pl": POLISH}


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
