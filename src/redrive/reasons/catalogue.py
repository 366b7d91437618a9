"""Catalogues of the sentences for reasons, one per language.

The sentences are in `english.json` and `polish.json`, by code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Formatter

import msgspec


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The templates of one language.

    A template names parameters as `str.format` does, and has three additions:

        {delay:duration}    seconds as `1 m 30 s`; other formats are `clock`, `list`, `quoted`, `or`, `faults`
        [ of {of}]          a part that is left out if one of its parameters is None
        one|many            forms by the parameter `n`; `form` returns the index of the form for a number

    `either` is the text between alternatives.
    """

    texts: Mapping[str, str]
    form: Callable[[int], int]
    either: str


def parameter_names(template: str) -> set[str]:
    """Return the names of the parameters that a template uses."""
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def _load_texts(language: str) -> dict[str, str]:
    texts: dict[str, str] = json.loads(Path(__file__).with_name(f"{language}.json").read_text(encoding="utf-8"))
    return texts


def _polish_form(number: int) -> int:
    if number == 1:
        return 0
    few = number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14)
    return 1 if few else 2


ENGLISH = Catalogue(texts=_load_texts("english"), form=lambda number: 0 if number == 1 else 1, either=" or ")
POLISH = Catalogue(texts=_load_texts("polish"), form=_polish_form, either=" lub ")
