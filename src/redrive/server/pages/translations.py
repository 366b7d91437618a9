"""What the pages say, in English and Polish. A text is its own key; the Polish one stands in `words/pl`.

t("{n} letter|{n} letters", n=3)     forms by number: two in English, three in Polish
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
from redrive.reasons.polish import POLISH
from redrive.server.pages.replay_form import list_form_fields

# -- Values as they are written on a page ----------------------------------------------------------------


LabelledText = tuple[str, str]
MAX_SHOWN = 20_000
"""Characters of a payload that a page shows."""

_MAX_CELL_LENGTH = 200  # of a list that stands in one cell


def format_json(value: Any) -> str:
    """JSON for people to read."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


class JsonExcerpt(msgspec.Struct, frozen=True, gc=False):
    """JSON for people to read, or its beginning where `cut`."""

    text: str
    cut: bool


def excerpt_json(value: Any) -> JsonExcerpt:
    """A payload as a page shows it. Of a large one no more is written than is shown."""
    parts: list[str] = []
    left = MAX_SHOWN
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=str).iterencode(value):
        parts.append(part[:left])
        left -= len(part)
        if left < 0:
            return JsonExcerpt("".join(parts), cut=True)
    return JsonExcerpt("".join(parts), cut=False)


def list_labelled_texts(value: Any) -> list[LabelledText] | None:
    """The plain values of an object, for a table; None where a table would not do."""
    found = list_form_fields(value)
    if found is None or any(leaf.kind == "json" and len(leaf.text) > _MAX_CELL_LENGTH for leaf in found):
        return None
    return [(leaf.label, "null" if leaf.value is None else leaf.text) for leaf in found]


def format_utc(when: datetime) -> str:
    """A moment, exactly."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_iso(when: datetime) -> str:
    """A moment for programs."""
    return f"{when.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def format_number(number: int) -> str:
    """A number with its thousands apart, by a space that does not break."""
    return f"{number:,}".replace(",", "\u202f")


# -- What the pages say, in English and Polish. A text is its own key; the Polish one stands in `wor -----


LANGUAGES = {"en": "English", "pl": "Polski"}
_TRANSLATED = "pl"  # the language that has every text of ours
_LANGUAGE_RULES = {"en": ENGLISH, "pl": POLISH}


def N(text: str) -> str:
    """Mark a text that is translated where it is shown."""
    return text


@cache
def load_catalogue(language: str) -> Mapping[str, str]:
    """All texts of a language; English needs none."""
    found: dict[str, str] = {}
    for file in sorted((Path(__file__).parent / "words" / language).glob("*.json")):
        found |= json.loads(file.read_text(encoding="utf-8"))
    return found


def choose_language(chosen: str | None, accepted: str) -> str:
    """What somebody chose, or else the first language of theirs that we have."""
    if chosen in LANGUAGES:
        return chosen
    wanted = [_parse_language(part) for part in accepted.split(",")[:20]]
    known = [(weight, language) for weight, language in wanted if language in LANGUAGES]
    return max(known, key=lambda each: each[0], default=(0, "en"))[1]


def _parse_language(part: str) -> tuple[float, str]:
    name, _, weight = part.strip().partition(";q=")
    try:
        return float(weight or 1), name[:2].lower()
    except ValueError:
        return 0.0, name[:2].lower()


class Translator:
    """One reader's language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._texts = load_catalogue(language)

    def __call__(self, text: str, **values: Any) -> Markup:
        """The text in this language, with values put in; what they hold is no markup."""
        if text not in load_catalogue(_TRANSLATED):  # not ours, so it may hold anything
            return escape(text)
        said = self._texts.get(text, text)
        if "|" in said:
            said = said.split("|")[_LANGUAGE_RULES[self.language].form(values.get("n", 0))]
        # A test sees to it that no text of ours holds markup.
        shown = {name: format_number(value) if type(value) is int else value for name, value in values.items()}
        return Markup(said).format(**shown) if shown else Markup(said)  # nosec B704
