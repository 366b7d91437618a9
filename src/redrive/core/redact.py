"""Redaction of secrets in everything that is shown: payloads, messages, stack traces.

A field is hidden because of its name (`apiKey`, `card-number`, `DB_PASSWORD`), because of the name beside it
(`{"name": "password", "value": "x"}`), or because of its content (card numbers, tokens, keys). Nothing is
changed in place. A hidden value reads `MASK`, and `find_masked_paths` finds it, so that a mask is never saved
over the real value. The time taken grows linearly with the size of the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import Any, TypeAlias

from redrive.core import secret_and_sealed_text
from redrive.core.secret_and_sealed_text import MASK, SEALED_TEXT, SECRET_PATTERNS
from redrive.errors import ConfigurationError

__all__ = [
    "DEFAULT_NAMES", "DEFAULT_PATTERNS", "JSON", "MASK", "Redactor", "escape_controls", "is_masked",
    "find_masked_paths",
]  # fmt: skip

JSON: TypeAlias = Any
"""A value as `json.loads` returns it."""

DEFAULT_NAMES = (
    *("access_key", "access_token", "account_number", "api_key", "auth_token", "authorization", "backup_code"),
    *("bearer", "card_number", "client_secret", "connection_string", "cookie", "credential", "credentials"),
    *("credit_card", "cvc", "cvv", "dsn", "encryption_key", "iban", "id_token", "jwt", "login_code", "otp"),
    *("passcode", "passphrase", "passwd", "password", "pin", "private_key", "pwd", "recovery_code"),
    *("refresh_token", "secret", "secret_key", "session_id", "sign_in_code", "signing_key"),
    *("social_security_number", "ssn", "token", "totp", "verification_code"),
)
DEFAULT_PATTERNS = tuple(SECRET_PATTERNS)
_SETTING_ITEM = re.compile(r"\s*/(?P<pattern>(?:[^/\\]|\\.)+)/\s*(?:,|$)|(?P<name>(?!\s*/)[^,]*)(?:,|$)", re.DOTALL)
_MAX_DEPTH = 200  # payloads nested deeper than this are hidden without being read
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\dA-Za-z_]+")
_MAX_CACHED_NAMES, _MAX_NAME_LENGTH = 1024, 100  # results are cached for this many names of at most this length
_MIN_JOINED_LENGTH = 6  # a name this long is also found at the end of one word: `pgpassword`
_NAME_KEYS = frozenset({"field", "header", "key", "name", "param", "parameter", "variable"})
_VALUE_KEYS = frozenset({"val", "value", "values"})
_MAX_KEY_LENGTH = max(map(len, _NAME_KEYS | _VALUE_KEYS))


@dataclass(frozen=True, slots=True)
class Redactor:
    """A set of names and patterns to hide.

    A name matches a key that contains its words in a row, however they are joined or capitalised:
    `api_key` matches `apiKey`, `X-Api-Key` and `stripe_api_key_id`. The plural of a name hides everything but
    numbers, because `tokens` may be secrets or a count. A pattern hides the text that it matches, except the
    part in its group `keep`.
    """

    names: tuple[str, ...] = DEFAULT_NAMES
    patterns: tuple[str, ...] = DEFAULT_PATTERNS
    _words: dict[tuple[str, ...], bool] = field(init=False, repr=False, compare=False)
    _longest: int = field(init=False, repr=False, compare=False)
    _joined: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _compiled: tuple[tuple[str, re.Pattern[str]], ...] = field(init=False, repr=False, compare=False)
    _found: Callable[[str], tuple[bool, bool]] = field(init=False, repr=False, compare=False)
    _key: Callable[[str], str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names: dict[tuple[str, ...], bool] = {}
        for name in self.names:
            words = _split_words(name)
            if not words:
                raise ConfigurationError(
                    f"{name!r} cannot be a name to redact: use a name with at least one letter or digit"
                )
            names[words] = False
        # `pins` are mostly places on a map.
        plurals = {(*words[:-1], f"{words[-1]}s"): True for words in names if words != ("pin",)}
        object.__setattr__(self, "_words", plurals | names)
        object.__setattr__(self, "_longest", max(map(len, names), default=0))
        object.__setattr__(self, "_joined", tuple(sorted({"".join(words) for words in names})))
        compiled = tuple((SECRET_PATTERNS.get(pattern, ""), _compile(pattern)) for pattern in self.patterns)
        object.__setattr__(self, "_compiled", compiled)
        # A page of letters has the same few names thousands of times. Values of fields are never cached.
        object.__setattr__(self, "_found", lru_cache(_MAX_CACHED_NAMES)(self._find_name))
        object.__setattr__(self, "_key", lru_cache(_MAX_CACHED_NAMES)(self.text))

    @classmethod
    def parse(cls, spec: str) -> Redactor:
        """Return the defaults and a setting: names and `/patterns/`, which may contain commas, with commas between."""
        names, patterns, at = list(DEFAULT_NAMES), list(DEFAULT_PATTERNS), 0
        while at < len(spec):
            found = _SETTING_ITEM.match(spec, at)
            if found is None:
                raise ConfigurationError(
                    f"the pattern that begins at {spec[at : at + 40].strip()!r} has no end. Write names and "
                    "/patterns/ with commas between them, and a slash inside a pattern as \\/."
                )
            if found["pattern"] is not None:
                patterns.append(found["pattern"].replace("\\/", "/"))
            elif found["name"].strip():
                names.append(found["name"].strip())
            at = found.end()
        return cls(names=tuple(names), patterns=tuple(patterns))

    def redact(self, value: JSON) -> JSON:
        """Return a copy with every secret hidden. None, true and false are never secrets."""
        return self._redact_value(value, 0)

    def text(self, text: str) -> str:
        """Return the text with every secret in it hidden. Encrypted texts in it stay as they are."""
        if "enc1:" in text and SEALED_TEXT.search(text):
            sealed = SEALED_TEXT.findall(text)
            others = map(self.text, SEALED_TEXT.split(text))
            return "".join(part for pair in zip_longest(others, sealed, fillvalue="") for part in pair)
        lower = text.lower()
        for sign, pattern in self._compiled:
            if sign in lower:
                text = pattern.sub(lambda found: f"{found.groupdict().get('keep') or ''}{MASK}", text)
        if ":" in lower or "=" in lower or "," in lower:
            text = secret_and_sealed_text.hide_assignments(text, self._hides_value)
        if "--" in lower:
            text = secret_and_sealed_text.hide_options(text, self._hides_value)
        if "<" in lower:
            text = secret_and_sealed_text.hide_xml(text, self._hides_value)
        return secret_and_sealed_text.hide_cards(text)

    def hides(self, name: str) -> bool:
        """Return True if a field of this name is hidden. With a plural name a number is still shown."""
        return self._match_name(name)[0]

    def hidden_parts(self, value: JSON, *, in_list: bool = False) -> frozenset[str | int]:
        """Return the keys or indexes of a value whose contents are hidden because of a name.

        `in_list` means that the value is an item of a list. Only there a list of two is a name and its value.
        """
        if isinstance(value, dict):
            hidden = {key for key, inner in value.items() if self._hides_inner(key, inner)}
            short = {key: key.lower() for key in value if len(key) <= _MAX_KEY_LENGTH}
            if not _VALUE_KEYS.isdisjoint(short.values()) and any(
                part in _NAME_KEYS and isinstance(value[key], str) and self.hides(value[key])
                for key, part in short.items()
            ):
                hidden |= {
                    key for key, part in short.items() if part in _VALUE_KEYS and not _is_never_secret(value[key])
                }
            return frozenset(hidden)
        if not isinstance(value, list | tuple):
            return frozenset()
        names = [one if isinstance(one, str) else "" for one in value[:-1]]
        options = (name[2:] if name.startswith("--") and "=" not in name else "" for name in names)
        found = {
            at
            for at, name in enumerate(options, 1)
            if name and isinstance(value[at], str) and not value[at].startswith("-")
            if self._hides_inner(name, value[at])
        }
        if in_list and len(value) == 2 and names[0] and self._hides_inner(names[0], value[1]):
            found.add(1)
        return frozenset(found)

    def _match_name(self, name: str) -> tuple[bool, bool]:
        return self._found(name) if len(name) <= _MAX_NAME_LENGTH else self._find_name(name)

    def _find_name(self, name: str) -> tuple[bool, bool]:
        """Return True if a name is hidden, and True if that is so only because of a plural."""
        words = _split_words(name)
        runs = (
            words[start:end]
            for start in range(len(words))
            for end in range(start + 1, min(start + self._longest, len(words)) + 1)
        )
        found = [self._words[run] for run in runs if run in self._words]
        if found:
            return True, all(found)
        whole = "".join(words)
        if whole in self._joined or self._ends_in_name(whole):
            return True, False
        plural = self._ends_in_name(whole.removesuffix("s"))
        return plural, plural

    def _ends_in_name(self, whole: str) -> bool:
        return any(len(one) >= _MIN_JOINED_LENGTH and whole.endswith(one) for one in self._joined)

    def _hides_value(self, name: str, text: str) -> bool:
        """Return True if a text is hidden because of its name; an empty text stands for any text."""
        hidden, plural = self._match_name(name)
        return hidden and not (plural and secret_and_sealed_text.is_number(text))

    def _hides_inner(self, name: str, value: JSON) -> bool:
        hidden, plural = self._match_name(name)
        return hidden and not _is_never_secret(value) and not (plural and isinstance(value, int | float))

    def _redact_value(self, value: JSON, depth: int, *, in_list: bool = False) -> JSON:
        if value is None or isinstance(value, bool):
            return value
        if depth > _MAX_DEPTH:
            return MASK
        match value:
            case str():
                return self.text(value)
            case int():
                return MASK if 10**12 <= value < 10**19 and secret_and_sealed_text.is_card_number(str(value)) else value
            case dict():
                shown: dict[str, JSON] = {}
                hidden = self.hidden_parts(value)
                numbers: dict[str, int] = {}  # the last number given to a masked name
                for key, inner in value.items():
                    name = self._key(key) if len(key) <= _MAX_NAME_LENGTH else self.text(key)
                    if name in shown:
                        name = _make_unique(name, shown, numbers)
                    shown[name] = MASK if key in hidden else self._redact_value(inner, depth + 1)
                return shown
            case list() | tuple():
                hidden = self.hidden_parts(value, in_list=in_list)
                return [
                    MASK if at in hidden else self._redact_value(one, depth + 1, in_list=True)
                    for at, one in enumerate(value)
                ]
            case _:
                return value


def _is_never_secret(value: JSON) -> bool:
    """Return True for a value that is never a secret, whatever its name: None, true, false, an empty text."""
    return value is None or isinstance(value, bool) or value == ""


def is_masked(value: JSON) -> bool:
    """Return True if the value is a text with a hidden part."""
    return isinstance(value, str) and MASK in value


def find_masked_paths(value: JSON) -> tuple[str, ...]:
    """Return the paths of hidden parts, such as `customer.cards[0].number`; `$` is the value itself."""
    found: list[str] = []
    pending: list[tuple[str, JSON]] = [("", value)]
    while pending:  # an explicit stack, because input may be nested deeper than Python's stack allows
        path, one = pending.pop()
        if is_masked(one):
            found.append(path or "$")
        children: list[tuple[str, JSON]] = []
        if isinstance(one, dict):
            children = [(_child_path(path, key), inner) for key, inner in one.items()]
            found += [below for key, (below, _) in zip(one, children, strict=True) if is_masked(key)]
        elif isinstance(one, list | tuple):
            children = [(f"{path}[{index}]", inner) for index, inner in enumerate(one)]
        pending.extend(reversed(children))
    return tuple(found)


def _child_path(path: str, key: str) -> str:
    # A long name is cut, because the path of every value below repeats it.
    if len(key) > _MAX_NAME_LENGTH:
        key = f"{key[:_MAX_NAME_LENGTH]}…"
    if not key.isidentifier():
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key


def _split_words(name: str) -> tuple[str, ...]:
    """Return the lower-case words of a name; they are equal for `X-Api-Key` and `xApiKey`."""
    return tuple(word.lower() for word in _WORD.findall(name))


def _make_unique(name: str, taken: dict[str, JSON], numbers: dict[str, int]) -> str:
    """Return the name with the next free number, if masking made it equal to another one."""
    number = numbers.get(name, 1)
    while (free := f"{name} ({number + 1})") in taken:
        number += 1
    numbers[name] = number + 1
    return free


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(f"/{pattern}/ is not a regular expression: {error}.") from error
    if compiled.match(""):
        raise ConfigurationError(
            f"/{pattern}/ matches the empty text, so it would hide every text. Make it more specific."
        )
    return compiled


# C0 and C1 control characters, characters that change the direction of writing or end a line, lone surrogates.
# Tab and line feed are separate, because they are harmless where a text may have several lines.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
_CONTROLS_IN_LINES = re.compile(f"[{_CONTROLS}]")
_CONTROLS_IN_ONE_LINE = re.compile(f"[\t\n{_CONTROLS}]")
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape_controls(text: str, *, lines: bool = False) -> str:
    """Write control characters as escapes, so that a terminal or log reader does not execute them.

    `lines` keeps tabs and line feeds.
    """
    controls = _CONTROLS_IN_LINES if lines else _CONTROLS_IN_ONE_LINE
    return controls.sub(lambda found: _SHORT_ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}", text)
