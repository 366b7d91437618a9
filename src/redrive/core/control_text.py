"""Control characters of foreign texts, written as escapes, so that no terminal or log reader obeys them."""

from __future__ import annotations

import re

__all__ = ["escape_controls"]

# C0 and C1 control characters, characters that change the direction of writing or end a line, halves of
# characters. Tab and line feed stand apart: they are harmless where a text may have several lines.
_CONTROLS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
)
_IN_LINES = re.compile(f"[{_CONTROLS}]")
_IN_ONE_LINE = re.compile(f"[\t\n{_CONTROLS}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape_controls(text: str, *, lines: bool = False) -> str:
    """Write every control character as Python and JSON write it; `lines` keeps tabs and line feeds."""
    return (_IN_LINES if lines else _IN_ONE_LINE).sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
