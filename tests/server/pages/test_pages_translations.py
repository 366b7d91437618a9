"""Translations of the pages: each text has its Polish sentence, and no sentence contains markup."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

import redrive.server.pages as pages
from redrive.core.notification_rules import NOTIFY_EVENTS
from redrive.server.pages.audit_notifications import _TITLES, EVENT_DESCRIPTIONS
from redrive.server.pages.texts import Translator, choose_language, load_catalogue

HERE = Path(pages.__file__).parent
FIELD = re.compile(r"{(\w+)}")


def of_templates() -> Iterator[tuple[str, str]]:
    environment = Environment(autoescape=True)
    for file in sorted((HERE / "templates").glob("*.html")):
        for call in environment.parse(file.read_text(encoding="utf-8")).find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name == "t" and call.args:
                if isinstance(call.args[0], nodes.Const):
                    yield file.name, call.args[0].value


def of_code() -> Iterator[tuple[str, str]]:
    for file in sorted(HERE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in ("t", "N") and isinstance(node.args[0].value, str):
                    yield file.name, node.args[0].value


USED = sorted({*of_templates(), *of_code()})


def test_every_text_has_a_polish_translation() -> None:
    known = load_catalogue("pl")
    assert not [f"{file}: {text}" for file, text in USED if text not in known]


def test_every_event_of_notifications_has_a_text_and_a_title() -> None:
    assert {*NOTIFY_EVENTS, "message"} == set(EVENT_DESCRIPTIONS)
    assert set(NOTIFY_EVENTS) == set(_TITLES)
    assert {*EVENT_DESCRIPTIONS.values(), *_TITLES.values()} <= set(load_catalogue("pl"))


def test_no_translation_is_unused() -> None:
    assert sorted(set(load_catalogue("pl")) - {text for _, text in USED}) == []


def test_a_text_is_translated_once() -> None:
    seen: set[str] = set()
    for file in sorted((HERE / "words" / "pl").glob("*.json")):
        for text, _ in json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=list):
            assert text not in seen, f"{file.name} has {text!r} again"
            seen.add(text)


def test_translations_have_the_same_placeholders_and_no_markup() -> None:
    for text, said in load_catalogue("pl").items():
        assert set(FIELD.findall(text)) == set(FIELD.findall(said)), text
        assert not set('<>&"') & set(text + said), text
        assert (text.count("|"), said.count("|")) in ((0, 0), (1, 2)), text


def test_values_are_escaped_and_numbers_have_plural_forms() -> None:
    say = Translator("pl")
    assert [str(say("{n} character|{n} characters", n=n)) for n in (1, 3, 5, 13, 22)] == [
        "1 znak",
        "3 znaki",
        "5 znaków",
        "13 znaków",
        "22 znaki",
    ]
    assert [str(Translator(language)("{n} s", n=1.1)) for language in ("en", "pl")] == ["1.1 s", "1,1 s"]
    assert [str(Translator(language)("{n} s", n=5000)) for language in ("en", "pl")] == ["5,000 s", "5\u202f000 s"]
    assert str(Translator("en")("Copy {what}", what="<b>")) == "Copy &lt;b&gt;"
    assert str(Translator("en")("<b>{what}</b>")) == "&lt;b&gt;{what}&lt;/b&gt;"


@pytest.mark.parametrize(
    ("chosen", "accepted", "language"),
    [
        (None, "pl-PL,pl;q=0.9,en;q=0.8", "pl"),
        (None, "de,en;q=0.5,pl;q=0.4", "en"),
        ("pl", "en", "pl"),
        ("xx", "de", "en"),
        (None, "en;q=zero,pl;q=0.1", "pl"),
        (None, "", "en"),
    ],
)
def test_the_language_comes_from_the_cookie_or_the_accept_header(
    chosen: str | None, accepted: str, language: str
) -> None:
    assert choose_language(chosen, accepted) == language
