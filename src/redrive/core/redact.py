"""Hides secrets in what is shown: payloads, messages, stacks.

A field is hidden for its name (`apiKey`, `card-number`, `DB_PASSWORD`) or for what it contains (card
numbers, tokens, keys). Nothing is changed in place; what was hidden reads `MASK`, and `masked_paths`
finds it again, so that a masked field is never saved over the real one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import field
from functools import lru_cache
from typing import Any, TypeAlias

from redrive.errors import ConfigurationError
from redrive.frozen import dataclass

__all__ = ["DEFAULT_NAMES", "DEFAULT_PATTERNS", "JSON", "MASK", "Redactor", "is_masked", "masked_paths"]

MASK = "••••••"

JSON: TypeAlias = Any
"""What `json.loads` returns."""

DEFAULT_NAMES = (
    "access_key",
    "access_token",
    "account_number",
    "api_key",
    "auth_token",
    "authorization",
    "bearer",
    "card_number",
    "client_secret",
    "cookie",
    "credential",
    "credentials",
    "credit_card",
    "cvc",
    "cvv",
    "encryption_key",
    "iban",
    "id_token",
    "passphrase",
    "passwd",
    "password",
    "pin",
    "private_key",
    "pwd",
    "refresh_token",
    "secret",
    "secret_key",
    "session_id",
    "signing_key",
    "social_security_number",
    "ssn",
    "token",
)

# Every repetition is bounded, or is over characters that what follows it cannot begin with, or
# cannot fail once begun: the time taken grows with the length of the text only. Each stands beside what
# every text has, in lower case, that it can be found in: to look for that is fifty times as fast.
_SIGNS = {
    r"(?<![\w-])eyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*": "eyj",  # JSON web token
    r"(?i:(?P<keep>\bbearer\s{1,3}))(?:[\w.~+/=-]{16,}|(?=[A-Za-z._~+/=-]{0,15}\d)[\w.~+/=-]{4,})": "bearer",
    r"(?i:(?P<keep>\bauthorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?"
    r"(?:(?:basic|bearer|digest|token)\s{1,3})?))[^\s'\",;]+": "author",
    r"(?i:(?P<keep>\bcookie\s{0,3}:\s{0,3}))[^\s'\"][^\r\n'\"]*": "coo",  # the header has several values
    **{rf"\b{kind}[0-9A-Z]{{16}}\b": kind.lower() for kind in ("AKIA", "ASIA", "AROA", "AIDA")},  # AWS
    r"\bAIza[\w-]{35}": "aiza",  # Google
    r"\bgh[oprsu]_[A-Za-z0-9]{20,}": "gh",
    r"\bgithub_pat_\w{20,}": "github_pat_",
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}": "xox",  # Slack
    r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{10,}": "k_",  # Stripe
    r"\bwhsec_\w{10,}": "whsec_",
    r"\bsk-[\w-]{20,}": "sk-",  # OpenAI, Anthropic
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]*": "-----begin",
    r"(?P<keep>://[^\s/:@]{0,64}:)[^\s/@]{1,256}(?=@)": "://",  # a password in a URL
}
# "author" and "coo" stop where a letter comes that has more than one lower case.
DEFAULT_PATTERNS = tuple(_SIGNS)

_ITEM = re.compile(r"\s*/(?P<pattern>(?:[^/\\]|\\.)+)/\s*(?:,|$)|(?P<name>(?!\s*/)[^,]*)(?:,|$)", re.DOTALL)
_DEEPEST = 200  # nested deeper than any honest payload: hidden rather than looked through
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\dA-Za-z_]+")
_NAMES_KEPT, _NAME_LENGTH = 1024, 100  # how many names, and how long ones, are not looked at again
_JOINED_NAME = 6  # a name this long is also found at the end of one word: `pgpassword`
_NAME_AND_SIGN = re.compile(
    r"\b(?P<name>[A-Za-z][\w-]{0,63}+)"
    r"(?:\\?['\"]\s{0,3}[:=]\s{0,3}|[ \t]{0,3}(?:=|:(?!//))[ \t]{0,3})"
)
_KEPT = frozenset({"basic", "bearer", "digest", "token"})  # what follows them fits a pattern
_PROSE = frozenset(  # how messages go on behind `password: `, our own about fields among them
    {
        *("a", "an", "are", "cannot", "denied", "empty", "expected", "expired", "extra", "field", "found"),
        *("has", "incorrect", "input", "invalid", "is", "malformed", "missing", "must", "no", "none", "not"),
        *("null", "rejected", "required", "revoked", "should", "string", "the", "too", "unexpected"),
        *("unknown", "value", "was", "wrong"),
    }
)
_ASSIGNED_VALUE = re.compile(
    r"""\\"[^"\\\n]*\\"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\\?['"]?[^\s'",;&)}\]]+"""
)
_DIGITS = re.compile(r"\d(?:[ -]?\d){12,}", re.ASCII)
_GROUP = re.compile(r"\d+", re.ASCII)
_CARD_DIGITS = 19  # at most
_CARD = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|35\d{14}|6\d{15,18}",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Knows which names and contents to hide.

    A name matches a key that contains its words in a row, however they are joined or capitalised:
    `api_key` matches `apiKey`, `X-Api-Key` and `stripe_api_key_id`. A pattern hides what it matches,
    except what its group `keep` matched.
    """

    names: tuple[str, ...] = DEFAULT_NAMES
    patterns: tuple[str, ...] = DEFAULT_PATTERNS
    _words: frozenset[tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _longest: int = field(init=False, repr=False, compare=False)
    _joined: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _compiled: tuple[tuple[str, re.Pattern[str]], ...] = field(init=False, repr=False, compare=False)
    _hides: Callable[[str], bool] = field(init=False, repr=False, compare=False)
    _key: Callable[[str], str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = {_name_words(name) for name in self.names}
        joined = {"".join(one) for one in words}
        object.__setattr__(self, "_words", frozenset(words))
        object.__setattr__(self, "_longest", max(map(len, words), default=0))
        object.__setattr__(self, "_joined", tuple(sorted(joined)))
        compiled = tuple((_SIGNS.get(pattern, ""), _compile(pattern)) for pattern in self.patterns)
        object.__setattr__(self, "_compiled", compiled)
        # A page of letters has the same few names thousands of times. Of what fields hold nothing is kept.
        object.__setattr__(self, "_hides", lru_cache(_NAMES_KEPT)(self._is_hidden))
        object.__setattr__(self, "_key", lru_cache(_NAMES_KEPT)(self.text))

    @classmethod
    def parse(cls, spec: str) -> Redactor:
        """The defaults and what a setting adds: comma-separated names and `/patterns/`."""
        items = list(_items(spec))
        names = tuple(text for kind, text in items if kind == "name")
        patterns = tuple(text for kind, text in items if kind == "pattern")
        return cls(names=DEFAULT_NAMES + names, patterns=DEFAULT_PATTERNS + patterns)

    def redact(self, value: JSON) -> JSON:
        """A copy with every secret hidden; nothing, true and false are no secrets."""
        return self._value(value, 0)

    def text(self, text: str) -> str:
        """The text with every secret in it hidden."""
        lower = text.lower()
        for sign, pattern in self._compiled:
            if sign in lower:
                text = pattern.sub(_mask, text)
        if ":" in lower or "=" in lower:
            text = self._assignments(text)
        return _DIGITS.sub(_mask_cards, text)

    def hides(self, name: str) -> bool:
        """True if a field of this name is hidden whatever it contains."""
        return self._hides(name) if len(name) <= _NAME_LENGTH else self._is_hidden(name)

    def _is_hidden(self, name: str) -> bool:
        words = _split(name)
        if any(run in self._words for run in _runs(words, self._longest)):
            return True
        whole = "".join(words)
        return any(whole == one or (len(one) >= _JOINED_NAME and whole.endswith(one)) for one in self._joined)

    def _value(self, value: JSON, depth: int) -> JSON:
        if value is None or isinstance(value, bool):
            return value
        if depth > _DEEPEST:
            return MASK
        match value:
            case str():
                return self.text(value)
            case int():
                return MASK if 10**12 <= value < 10**19 and _is_card(str(value)) else value
            case dict():
                return self._object(value, depth)
            case list() | tuple():
                return [self._value(one, depth + 1) for one in value]
            case _:
                return value

    def _object(self, value: dict[str, JSON], depth: int) -> dict[str, JSON]:
        shown: dict[str, JSON] = {}
        for key, inner in value.items():
            name = _unused(self._key(key) if len(key) <= _NAME_LENGTH else self.text(key), shown)
            hidden = self.hides(key) and not (inner is None or isinstance(inner, bool) or inner == "")
            shown[name] = MASK if hidden else self._value(inner, depth + 1)
        return shown

    def _assignments(self, text: str) -> str:
        """Hide the values of `password=...`, `password: ...` and `"password": ...` inside a text."""
        shown, at = [], 0
        for found in _NAME_AND_SIGN.finditer(text):
            if found.start() >= at and self.hides(found["name"]):
                value = _ASSIGNED_VALUE.match(text, found.end())
                if value is not None and not _is_prose(found, value):
                    shown += [text[at : found.end()], MASK]
                    at = value.end()
        return "".join([*shown, text[at:]])


def _is_prose(sign: re.Match[str], value: re.Match[str]) -> bool:
    """True for a word that is no secret: `token: expired`, `Authorization: Bearer`."""
    word = value[0].lower().rstrip(".:!")
    return word in _KEPT or (sign[0].endswith((": ", ":\t")) and word in _PROSE)


def is_masked(value: JSON) -> bool:
    """True if the value is text of which something was hidden."""
    return isinstance(value, str) and MASK in value


def masked_paths(value: JSON) -> tuple[str, ...]:
    """Where something is hidden (`customer.cards[0].number`); `$` is the value itself."""
    found: list[str] = []
    pending: list[tuple[str, JSON]] = [("", value)]
    while pending:  # a stack of its own: what people send may be nested deeper than Python's
        path, one = pending.pop()
        if is_masked(one):
            found.append(path or "$")
        pending.extend(reversed(list(_children(path, one, found))))
    return tuple(found)


def _children(path: str, value: JSON, found: list[str]) -> Iterator[tuple[str, JSON]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            below = _below(path, key)
            if is_masked(key):
                found.append(below)
            yield below, inner
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{index}]", inner) for index, inner in enumerate(value))


def _below(path: str, key: str) -> str:
    if not key.isidentifier():
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key


# -- names ---------------------------------------------------------------------------------------------


def _split(name: str) -> tuple[str, ...]:
    """The words of a name, lower case: `X-Api-Key` and `xApiKey` give the same."""
    return tuple(word.lower() for word in _WORDS.findall(name))


def _name_words(name: str) -> tuple[str, ...]:
    words = _split(name)
    if not words:
        raise ConfigurationError(f"{name!r} cannot be a name to redact: it has no letter and no digit.")
    return words


def _runs(words: tuple[str, ...], longest: int) -> Iterator[tuple[str, ...]]:
    """Every run of up to `longest` neighbouring words."""
    for start in range(len(words)):
        for end in range(start + 1, min(start + longest, len(words)) + 1):
            yield words[start:end]


def _unused(name: str, taken: dict[str, JSON]) -> str:
    """The name, numbered if masking made it equal to another one."""
    if name not in taken:
        return name
    numbers = itertools.count(2)
    free = name
    while free in taken:
        free = f"{name} ({next(numbers)})"
    return free


# -- contents ------------------------------------------------------------------------------------------


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"/{pattern}/ is not a regular expression: {error}.") from error
    if compiled.match(""):
        raise ConfigurationError(f"/{pattern}/ matches nothing at all; it would hide every text. Narrow it.")
    return compiled


def _mask(found: re.Match[str]) -> str:
    return f"{found.groupdict().get('keep') or ''}{MASK}"


def _mask_cards(found: re.Match[str]) -> str:
    """Hide each run of neighbouring groups of digits that is a card number."""
    text = found[0]
    groups = list(_GROUP.finditer(text))
    shown, at = [], 0
    for start, group in enumerate(groups):
        end = _card_end(text, groups[start : start + _CARD_DIGITS]) if group.start() >= at else None
        if end is not None:
            shown += [text[at : group.start()], MASK]
            at = end
    return "".join([*shown, text[at:]])


def _card_end(text: str, groups: list[re.Match[str]]) -> int | None:
    """Where the card number ends that begins with the first of these groups, if one does."""
    digits = ""
    for group in groups:
        digits += group[0]
        if _is_card(digits):
            return group.end()
        if len(digits) > _CARD_DIGITS:
            break
    return None


def _is_card(digits: str) -> bool:
    return _CARD.fullmatch(digits) is not None and _passes_luhn(digits)


def _passes_luhn(digits: str) -> bool:
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(doubled) + sum(int(digit) for digit in digits[::-2])) % 10 == 0


# -- the setting ---------------------------------------------------------------------------------------


def _items(spec: str) -> Iterator[tuple[str, str]]:
    """The items of a setting, each a name or a pattern; a pattern may contain commas."""
    at = 0
    while at < len(spec):
        found = _ITEM.match(spec, at)
        if found is None:
            raise ConfigurationError(
                f"the pattern that begins at {spec[at : at + 40].strip()!r} has no end. Write names and "
                "/patterns/ with commas between them, and a slash inside a pattern as \\/."
            )
        if found["pattern"] is not None:
            yield "pattern", found["pattern"].replace("\\/", "/")
        elif found["name"].strip():
            yield "name", found["name"].strip()
        at = found.end()
