"""Secret and sealed text: patterns of secrets with their scanners, and the recognition of encrypted texts.

The time that each function takes grows linearly with the text. Three rules ensure that:

- A repetition without an upper bound is possessive, so the regular expression never gives a character back.
- After such a repetition the expression either cannot fail, or the repetition excludes a character that
  every match begins with. Two attempts then never read the same characters more than a fixed number of times.
- Scanners in Python skip what they have masked, and look at a fixed number of neighbours of each group.

`tests/core/test_redact.py` checks the first rule on the parsed expressions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import accumulate

MASK = "••••••"

SEALED_TEXT = re.compile(r"enc1:[0-9a-f]{8}:[A-Za-z0-9+/]++={0,2}")
"""An encrypted text, alone or inside another text. `redrive.store.encryption.keyring` describes its form."""

_SEALED_HEAD = re.compile(r"(?:enc1|det1):([0-9a-f]{8}):")
_SEALED_PREFIXES = frozenset({"enc1:", "det1:"})
_SEALED_KEY = "sealed"
NO_KEY = "in clear"
"""The key id of a text in clear."""


def is_sealed(text: str) -> bool:
    """Return True for a text that looks encrypted. Texts in clear never do: they are JSON or words."""
    return text[:5] in _SEALED_PREFIXES and _SEALED_HEAD.match(text) is not None


def key_id_of(text: str) -> str:
    """Return the id of the key that a text is encrypted with."""
    head = _SEALED_HEAD.match(text)
    return NO_KEY if head is None else head[1]


def read_sealed_text(text: str) -> str:
    """Return the encrypted text of a JSON text such as `{"sealed": "enc1:..."}`; any other JSON text unchanged."""
    if "enc1:" not in text or text.lstrip()[:1] != "{":
        return text
    return read_sealed_value(json.loads(text)) or text


def sealed_limit(most: int) -> int:
    """Return how long the encrypted form of a text of at most this length may be."""
    # Base64, and the name of the tenant, the nonce and the tag.
    return most * 4 // 3 + 1024


def make_sealed_value(text: str) -> dict[str, str]:
    """Return the JSON value that stands for an encrypted one: `{"sealed": "enc1:..."}`."""
    return {_SEALED_KEY: str.__str__(text)}


def read_sealed_value(value: object) -> str | None:
    """Return the encrypted text of a value as `make_sealed_value` returns it; None for any other value."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return None
    text = value.get(_SEALED_KEY)
    return text if isinstance(text, str) and SEALED_TEXT.fullmatch(text) else None


# Each pattern is listed with a lower-case text that every match contains. Looking for that text first is
# about fifty times as fast as trying the pattern. "author" and "coo" stop before a letter that has
# more than one lower case.
SECRET_PATTERNS = {
    r"(?<![\w-])eyJ[\w-]{5,}+\.[\w-]{5,}+\.[\w-]*+": "eyj",  # JSON web token
    r"(?i:(?P<keep>\bbearer\s{1,3}))"
    r"(?:[\w.~+/=-]{16,}+|(?=[A-Za-z._~+/=-]{0,15}\d)[\w.~+/=-]{4,}+)": "bearer",
    r"(?i:(?P<keep>\bauthorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?"
    r"(?:(?:basic|bearer|digest|token)\s{1,3})?))[^\s'\",;]++": "author",
    r"(?i:(?P<keep>\bcookie\s{0,3}:\s{0,3}))[^\s'\"][^\r\n'\"]*+": "coo",  # the header has several values
    **{rf"\b{kind}[0-9A-Z]{{16}}\b": kind.lower() for kind in ("AKIA", "ASIA", "AROA", "AIDA")},  # AWS
    r"\bAIza[\w-]{35}": "aiza",  # Google
    r"\bgh[oprsu]_[A-Za-z0-9]{20,}+": "gh",
    r"\bgithub_pat_\w{20,}+": "github_pat_",
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}+": "xox",  # Slack
    r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{10,}+": "k_",  # Stripe
    r"\bwhsec_\w{10,}+": "whsec_",
    r"\bsk-[\w-]{20,}+": "sk-",  # OpenAI, Anthropic
    # Redrive's API keys. The id finds the row and is not secret, so it stays to name the key.
    r"(?P<keep>rdk_[0-9a-z]{26}_)[\w-]{16,}+": "rdk_",
    # Redrive's sign-in codes: five groups of five letters and digits that are not mistaken for others.
    r"(?<![\w-])[A-HJKMNP-TV-Z2-9]{5}(?:-[A-HJKMNP-TV-Z2-9]{5}){4}(?![\w-])": "-",
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]*+": "-----begin",
    # A password in a URL. It may contain "@" itself, so what follows the first "@" belongs to it up to the
    # last one; "/" ends the part of a URL where a password can stand, and every match begins with "://".
    r"(?P<keep>://[^\s/:@]*+:)[^\s/@]++(?=@)(?:@[^\s/@'\",;<>]++(?=@))*+": "://",
    r"(?P<keep>://)[0-9A-Fa-f]{16,}+(?=@)": "://",  # a key in place of a user, as Sentry has it
    r"(?P<keep>\bsshpass\s{1,3}-p\s{0,3})[^\s-]\S*+": "sshpass",
    # `-p` means a password only where no space follows it, and only for these programs.
    r"(?P<keep>\b(?:mysql|mysqldump|mysqladmin|mariadb)\s[^\n|;&]{0,200}?(?<=\s)-p)(?!ort\b)[^\s=]\S*+": "-p",
    r"(?P<keep>\bcurl\s[^\n|;&]{0,200}?(?<=\s)(?:-u|--user)[ =]?['\"]?[^\s:'\"]{0,64}+:)[^\s'\"]++": "curl",
}

_NAME_AND_SIGN = re.compile(
    r"\b(?P<name>[A-Za-z][\w-]{0,63}+)"
    r"(?:\\?['\"]\s{0,3}[:=]\s{0,3}|[ \t]{0,3}(?:=|:(?!//))[ \t]{0,3})"
)
# `"name": "password", "value": `, `name="password" value=`, `('password', `
_PAIR = re.compile(
    r"(?:(?i:\b(?:name|key|header|field|param|parameter|variable))\\?['\"]?\s{0,3}[:=]\s{0,3}"
    r"\\?['\"](?P<named>[A-Za-z][\w .:-]{0,63}+)\\?['\"][\s,;]{0,8}"
    r"\\?['\"]?(?i:val(?:ue)?)\\?['\"]?\s{0,3}[:=]\s{0,3}"
    r"|[(\[]\s{0,3}b?['\"](?P<first>[A-Za-z][\w-]{0,63}+)['\"]\s{0,3},\s{0,3}b?(?=['\"]))"
)
_OPTION = re.compile(r"(?<![\w-])--(?P<name>[A-Za-z][\w-]{0,63}+)[ \t]{1,3}")
_OPTION_VALUE = re.compile(r""""(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[^\s-]\S*+""")
_ELEMENT = re.compile(r"<(?P<name>[A-Za-z][\w.:-]{0,63}+)(?:\s[^<>]*+)?(?<!/)>")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_AUTH_SCHEMES = frozenset({"basic", "bearer", "digest", "token"})  # what follows them fits a pattern
_PROSE_WORDS = frozenset(  # words that follow `password: ` in messages, Redrive's own about fields among them
    {
        *("a", "an", "are", "cannot", "denied", "empty", "expected", "expired", "extra", "field", "found"),
        *("has", "incorrect", "input", "invalid", "is", "malformed", "missing", "must", "no", "none", "not"),
        *("null", "rejected", "required", "revoked", "should", "string", "the", "too", "unexpected"),
        *("unknown", "value", "was", "wrong"),
    }
)
_PROSE_AFTER_OPTION = _PROSE_WORDS | frozenset(  # words that follow `--password ` in messages about options
    {
        *("and", "again", "as", "before", "but", "by", "can", "does", "first", "flag", "flags", "for", "from"),
        *("if", "in", "instead", "may", "on", "only", "option", "options", "or", "requires", "sets", "so"),
        *("takes", "to", "together", "twice", "when", "which", "with", "without"),
    }
)
_ASSIGNED_VALUE = re.compile(
    r"""\\"[^"\\\n]*+\\"|"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|\[[^\[\]\n]*+\]|\\?['"]?[^\s'",;&)}\]]++"""
)
_NUMBER = re.compile(r"[+-]?\d[\d.,_]*+", re.ASCII)
_DIGITS = re.compile(r"\d(?:[ -]?\d){12,}+", re.ASCII)
_GROUP = re.compile(r"\d++", re.ASCII)
_MIN_CARD_DIGITS, _MAX_CARD_DIGITS = 13, 19
_CARD = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|35\d{14}|6\d{15,18}",
    re.ASCII,
)

SecretCheck = Callable[[str, str], bool]
"""Takes a name and a value; returns True if the value is a secret because of the name."""


def is_number(text: str) -> bool:
    """Return True for a plain number, as counts are: `512`, `4,096`, `0.5`."""
    return _NUMBER.fullmatch(text) is not None


def hide_assignments(text: str, hides: SecretCheck) -> str:
    """Hide the values of `password=...`, `"password": ...`, and of pairs of a name and a value."""
    text = _hide_matches(text, _NAME_AND_SIGN, _ASSIGNED_VALUE, hides)
    return _hide_matches(text, _PAIR, _ASSIGNED_VALUE, hides) if "'" in text or '"' in text else text


def hide_options(text: str, hides: SecretCheck) -> str:
    """Hide the values of options of a command line: `--password x`."""
    return _hide_matches(text, _OPTION, _OPTION_VALUE, hides)


def _hide_matches(text: str, signs: re.Pattern[str], values: re.Pattern[str], hides: SecretCheck) -> str:
    shown, at = [], 0
    for found in signs.finditer(text):
        name = found[found.lastindex or 0]
        if found.start() >= at and hides(name, ""):
            value = values.match(text, found.end())
            if value is not None and hides(name, value[0]) and not _is_prose(found, value):
                shown += [text[at : found.end()], MASK]
                at = value.end()
    return "".join([*shown, text[at:]]) if shown else text


def _is_prose(sign: re.Match[str], value: re.Match[str]) -> bool:
    """Return True for a word that is not a secret: `token: expired`, `Authorization: Bearer`."""
    if sign.re is _OPTION:
        return value[0].lower().rstrip(".,:;!)") in _PROSE_AFTER_OPTION
    word = value[0].lower().rstrip(".:!").strip("'\"")
    if sign.re is _PAIR:
        return MASK in word or (sign["first"] is not None and word in _PROSE_WORDS)
    if word != value[0].lower().rstrip(".:!"):
        return False
    return word in _AUTH_SCHEMES or (sign[0].endswith((": ", ":\t")) and word in _PROSE_WORDS)


def hide_xml(text: str, hides: SecretCheck) -> str:
    """Hide the text of elements: `<password>x</password>`. One that is cut off is hidden up to the end."""
    shown, at = [], 0
    for found in _ELEMENT.finditer(text):
        name, begin = found["name"], found.end()
        if found.start() < at or not hides(name, ""):
            continue
        if text.startswith(_CDATA, begin):
            end = text.find(_CDATA_END, begin)
            # Everything up to the end is masked if the section has no end, so no part is searched twice.
            end = len(text) if end < 0 else end + len(_CDATA_END)
        else:
            end = text.find("<", begin)
            end = len(text) if end < 0 else end
            cut = end == len(text) and not text[begin : begin + 1].isspace()
            if not cut and not text.startswith(f"</{name}", end):
                continue
        if (value := text[begin:end].strip()) and value != MASK and hides(name, value):
            shown += [text[at:begin], MASK]
            at = end
    return "".join([*shown, text[at:]]) if shown else text


def hide_cards(text: str) -> str:
    """Hide each run of neighbouring groups of digits that is a card number."""
    return _DIGITS.sub(_mask_cards, text)


def is_card_number(digits: str) -> bool:
    if _CARD.fullmatch(digits) is None:
        return False
    doubled = sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (doubled + sum(int(digit) for digit in digits[::-2])) % 10 == 0


def _mask_cards(found: re.Match[str]) -> str:
    """Mask the card numbers of one run of digits, each group of which has a space or a dash before it.

    The sums of all digits are computed once, so that the checksum of any stretch is one subtraction.
    Without that, each of up to 19 groups from each group on would be added up again.
    """
    text = found[0]
    groups = [group.span() for group in _GROUP.finditer(text)]
    if len(groups) == 1:
        return MASK if is_card_number(text) else text
    digits = text.replace(" ", "").replace("-", "")
    ends = list(accumulate(end - begin for begin, end in groups))
    plain = [int(digit) for digit in digits]
    crossed = [2 * digit if digit < 5 else 2 * digit - 9 for digit in plain]
    sums = []  # up to each digit, with the odd ones doubled, and with the even ones doubled
    for even in (True, False):
        mixed = [
            one if (at % 2 == 0) is even else two for at, (one, two) in enumerate(zip(plain, crossed, strict=True))
        ]
        sums.append([0, *accumulate(mixed)])
    shown, at = [], 0
    for index, (begin, _) in enumerate(groups):
        first = ends[index - 1] if index else 0
        if begin < at or digits[first] not in "23456":
            continue
        for last in range(index, min(index + _MAX_CARD_DIGITS, len(groups))):
            end = ends[last]
            if end - first > _MAX_CARD_DIGITS:
                break
            checked = sums[0] if end % 2 else sums[1]  # the last digit of a card is not doubled
            if end - first >= _MIN_CARD_DIGITS and (checked[end] - checked[first]) % 10 == 0:
                if _CARD.fullmatch(digits, first, end):
                    shown += [text[at:begin], MASK]
                    at = groups[last][1]
                    break
    return "".join([*shown, text[at:]])
