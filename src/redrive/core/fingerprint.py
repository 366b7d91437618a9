"""Which failures have one cause: a short text that is equal for them and for no others.

It is made of what failed (workflow, step), how (category, exception type), where (the function of
the user's code) and the message without what differs from run to run. Line numbers, ids, amounts,
times and paths do not matter; the order of the masks below does, since each sees what the ones
before it left.
"""

from __future__ import annotations

import hashlib
import re

from redrive.core.failure import Failure
from redrive.core.keys import encode

__all__ = ["fingerprint", "normalise"]

# Numbers and ids share one mask, since an id may happen to be all digits.
# Every pattern has bounded or unambiguous repetition: messages are foreign text, and time spent on
# them must grow with their length only.
_MASKS = (
    (re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s'\"<>]+"), "<url>"),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"), "<email>"),
    (re.compile(r"(?<!\w)(?:\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`)(?!\w)"), "<text>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<n>"),
    (
        re.compile(
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?"
        ),
        "<time>",
    ),
    (re.compile(r"(?<![\w/\\.])(?:[a-zA-Z]:)?(?:\.{0,2}[/\\][\w.@~+-]+)+[/\\]?"), "<path>"),
    (re.compile(r"\b[0-9a-fA-F]{8,}\b"), "<n>"),
    (re.compile(r"[-+]?\b\d+(?:[.,:]\d+)*\b"), "<n>"),
    (re.compile(r"\b[^\W\d]*\d\w*"), "<n>"),
    (re.compile(r"(<[a-z]+>)(?:[\s,;]+\1)+"), r"\1"),
    (re.compile(r"\s+"), " "),
)


def fingerprint(failure: Failure, *, workflow: str, step: str | None) -> str:
    """16 hexadecimal digits, the same for failures that look like one cause."""
    where = () if step is None else (step,)
    what = (failure.category, failure.error_type, normalise(failure.message), failure.frame or "")
    text = encode("fingerprint", *what, workflow, *where)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def normalise(message: str) -> str:
    """The message with placeholders for what differs between two occurrences of one failure."""
    for pattern, placeholder in _MASKS:
        message = pattern.sub(placeholder, message)
    return message.strip()
