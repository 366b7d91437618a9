"""An input as a form: its plain values, each with a name of its own, however deep they stand.

{"order": {"id": 7, "tags": ["a"]}}   order, id: 7     order, tags: ["a"]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from redrive.core.payload.explain import path_text
from redrive.core.typed import read_typed
from redrive.errors import InputError
from redrive.frozen import dataclass

__all__ = ["Leaf", "filled", "leaves"]

_MOST, _DEEPEST, _LONGEST = 40, 4, 20_000


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value with its place. A list is one value, which is typed as JSON."""

    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        """The place as errors name it."""
        return path_text(self.path)

    @property
    def label(self) -> str:
        """The place for people."""
        return " \u203a ".join(self.path)

    @property
    def text(self) -> str:
        """The value as it is typed; nothing where there is none."""
        if isinstance(self.value, str):
            return self.value
        return "" if self.value is None else json.dumps(self.value, ensure_ascii=False)

    @property
    def kind(self) -> str:
        """How it is typed in."""
        match self.value:
            case bool():
                return "flag"
            case int() | float():
                return "number"
            case list() | dict():
                return "json"
        return "text"

    def is_one_line(self, text: str) -> bool:
        """True if a field of one line is the place to type this."""
        return self.kind != "json" and len(text) <= 80 and not set("\r\n") & set(text)

    def takes(self, text: str) -> bool:
        """True if a browser sends this back from its field as it is, or it is what was there before."""
        is_whole = "\0" not in text and text.encode(errors="ignore").decode() == text
        return text == self.text or (is_whole and _as_sent(text) == text)

    @property
    def is_long(self) -> bool:
        """True if a form would not do. A list with so many items need not be written down to know it."""
        crowded = isinstance(self.value, list | dict) and 2 * len(self.value) > _LONGEST
        return crowded or len(self.text) > _LONGEST

    def meant(self, text: str) -> Any:
        """What was typed in its place; what fits no kind stays the text that it is, for the check to name."""
        if isinstance(self.value, str):
            return text
        if self.value is None and not text:
            return None
        try:
            value = read_typed(text).value
        except InputError:
            return text
        return value if isinstance(value, list | dict) == (self.kind == "json") else text


def leaves(value: Any) -> list[Leaf] | None:
    """The plain values of an object; None where they are too many, too deep or too long for a form."""
    if not isinstance(value, dict) or not value:
        return None
    found: list[Leaf] = []
    for leaf in _below(value, ()):
        if len(found) == _MOST or len(leaf.path) > _DEEPEST or leaf.is_long:
            return None
        found.append(leaf)
    names = {leaf.name for leaf in found}
    return found if len(names) == len(found) else None  # a field called `a.b` beside one `b` in an `a`


def _below(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[Leaf]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner and len(path) < _DEEPEST:
            yield from _below(inner, (*path, name))
        else:
            yield Leaf((*path, name), inner)


def _as_sent(text: str) -> str:
    """A text as a browser sends it back: its lines end in one way, and a first one that is empty is lost."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")


def filled(value: Any, found: list[Leaf], texts: Mapping[str, str]) -> Any:
    """The object with what was typed in its places; a place of which nothing came stays as it is."""
    made = json.loads(json.dumps(value))
    for leaf in found:
        if leaf.name in texts and _as_sent(texts[leaf.name]) != _as_sent(leaf.text):
            inner = made
            for part in leaf.path[:-1]:
                inner = inner[part]
            inner[leaf.path[-1]] = leaf.meant(texts[leaf.name])
    return made
