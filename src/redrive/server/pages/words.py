"""What the pages say, in English and Polish. A text is its own key; the Polish one stands in `words/pl`.

t("{n} letter|{n} letters", n=3)     forms by number: two in English, three in Polish
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from redrive.reasons import ENGLISH
from redrive.reasons.polish import POLISH
from redrive.server.pages.values import whole

__all__ = ["LANGUAGES", "N", "Words", "best_language", "catalogue"]

LANGUAGES = {"en": "English", "pl": "Polski"}
_TRANSLATED = "pl"  # the language that has every text of ours
_FORMS = {"en": ENGLISH, "pl": POLISH}


def N(text: str) -> str:
    """Mark a text that is translated where it is shown."""
    return text


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """All texts of a language; English needs none."""
    found: dict[str, str] = {}
    for file in sorted((Path(__file__).parent / "words" / language).glob("*.json")):
        found |= json.loads(file.read_text(encoding="utf-8"))
    return found


def best_language(chosen: str | None, accepted: str) -> str:
    """What somebody chose, or else the first language of theirs that we have."""
    if chosen in LANGUAGES:
        return chosen
    wanted = [_weighed(part) for part in accepted.split(",")[:20]]
    known = [(weight, language) for weight, language in wanted if language in LANGUAGES]
    return max(known, key=lambda each: each[0], default=(0, "en"))[1]


def _weighed(part: str) -> tuple[float, str]:
    name, _, weight = part.strip().partition(";q=")
    try:
        return float(weight or 1), name[:2].lower()
    except ValueError:
        return 0.0, name[:2].lower()


class Words:
    """One reader's language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._texts = catalogue(language)

    def __call__(self, text: str, **values: Any) -> Markup:
        """The text in this language, with values put in; what they hold is no markup."""
        if text not in catalogue(_TRANSLATED):  # not ours, so it may hold anything
            return escape(text)
        said = self._texts.get(text, text)
        if "|" in said:
            said = said.split("|")[_FORMS[self.language].form(values.get("n", 0))]
        # A test sees to it that no text of ours holds markup.
        shown = {name: whole(value) if type(value) is int else value for name, value in values.items()}
        return Markup(said).format(**shown) if shown else Markup(said)  # nosec B704
