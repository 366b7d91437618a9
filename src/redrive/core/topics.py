"""What messages may be called, and which of them a sink wants.

    topic      words joined by dots        orders.paid
    pattern    a topic, or its beginning   orders.paid   orders.*   *

`orders.*` means every topic that begins with `orders.`, however many words follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass as plain_dataclass
from functools import lru_cache
from typing import Any

from redrive.errors import InputError

__all__ = ["LONGEST_KEY", "LONGEST_TOPIC", "Pattern", "check_key", "check_topic", "patterns"]

LONGEST_TOPIC = 200
LONGEST_KEY = 500

_WORD = r"[A-Za-z0-9_-]+"
_TOPIC = re.compile(rf"{_WORD}(?:\.{_WORD})*", re.ASCII)
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@plain_dataclass(frozen=True, slots=True, order=True)
class Pattern:
    """Topics that are called `topic`; if `wild`, those that begin with it."""

    topic: str
    wild: bool = False

    @classmethod
    def read(cls, text: Any) -> Pattern:
        """A pattern as people write it."""
        if text == "*":
            return cls("", wild=True)
        if isinstance(text, str) and text.endswith(".*") and _is_topic(text[:-2]):
            return cls(text[:-1], wild=True)
        if _is_topic(text):
            return cls(text)
        raise InputError(
            f"{text!r:.80} names no topics: give one such as orders.paid, all that begin alike with "
            "orders.*, or all there are with *"
        )

    def matches(self, topic: str) -> bool:
        """True if it wants messages on this topic."""
        return topic.startswith(self.topic) if self.wild else topic == self.topic

    def __str__(self) -> str:
        return f"{self.topic}*" if self.wild else self.topic


def patterns(given: str | Iterable[str]) -> tuple[Pattern, ...]:
    """The patterns that somebody gave, one or several, each once."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Iterable):
        raise InputError(f"{given!r:.80} names no topics: give a text, or a list of them")
    found = tuple(dict.fromkeys(Pattern.read(text) for text in texts))
    if not found:
        raise InputError("no topic is named; give at least one, or * for all")
    return found


def check_topic(topic: Any) -> str:
    """The topic itself, if a message may have it."""
    if not _is_topic(topic):
        raise InputError(
            f"{topic!r:.80} cannot be a topic: use words of letters, digits, _ and -, joined by dots, "
            f"{LONGEST_TOPIC} characters at most, as in orders.paid"
        )
    return str(topic)


def check_key(key: Any) -> str | None:
    """The key itself, if a message may have it. Messages with equal keys are delivered in order."""
    if key is None:
        return None
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY or _UNSAFE.search(key):
        raise InputError(
            f"{key!r:.80} cannot be the key of a message: use a text of 1 to {LONGEST_KEY} characters, none "
            "of them a control character, such as the id of what the message is about"
        )
    return key


def _is_topic(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= LONGEST_TOPIC and _reads_as_topic(text)


@lru_cache(maxsize=1024)
def _reads_as_topic(text: str) -> bool:
    """Remembered, because a program has few topics and uses them again and again."""
    return _TOPIC.fullmatch(text) is not None
