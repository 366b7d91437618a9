"""What a mail address looks like: of those who sign in, of those who are told, and of the sender."""

from __future__ import annotations

import re
from typing import TypeGuard

__all__ = ["is_mailbox"]

_PART = r"[^\s@<>,;:\"\\()\[\]\x00-\x1f\x7f]"
_MAILBOX = re.compile(f"{_PART}{{1,64}}@{_PART}{{1,190}}")


def is_mailbox(text: object) -> TypeGuard[str]:
    """True for `ann@example.org` and its like: one address alone, without a name, spaces or quotes."""
    return isinstance(text, str) and text.isprintable() and _MAILBOX.fullmatch(text) is not None
