"""The text of identifiers: 26 letters and digits that sort by time."""

from __future__ import annotations

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no letter looks like a digit
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_PAIR_SHIFTS = tuple(range(120, -1, -10))


def format_id(milliseconds: int, entropy: int) -> str:
    """Write 48 bits of time and 80 other bits as 26 letters and digits that sort by time."""
    value = (milliseconds << 80) | entropy
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in _PAIR_SHIFTS])
