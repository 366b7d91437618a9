"""Rates: how many letters a set may decide on in a second, a minute or an hour.

A rate is kept by portions: some letters at once, then none for a while. In any stretch as long as the rate's
unit there are at most as many portions as fit into it, so that never more than the rate says is let go; time
that was lost is not made up for. A portion is about a fifth of a second's worth, because whoever recovers
from an outage bears a trickle better than a gush.
"""

from __future__ import annotations

import re

from redrive.errors import InputError
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode, quote

__all__ = ["MOST", "Portion", "Rate", "rate_of"]

MOST = 100_000
"""The highest rate, in letters per unit."""

_SECOND = 1_000_000
_UNITS = {"s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND}
_BREATH = _SECOND // 5  # a portion is what may be let go in this time
_COUNT = r"[1-9]\d{0,2}(?:,\d{3}){1,4}|\d{1,16}"  # any other comma may mean a fraction
_FORM = re.compile(rf"({_COUNT}) ?(?:/|per) ?(s|sec|second|m|min|minute|h|hour)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Portion:
    """So many letters at once, and how long, in microseconds, until the next ones."""

    count: int
    gap: int


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` letters per unit, which is `s`, `m` or `h`."""

    count: int
    unit: str

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}"

    @property
    def per(self) -> int:
        """The unit in microseconds."""
        return _UNITS[self.unit]

    @property
    def gap(self) -> int:
        """How long, in microseconds, the usual portion keeps the next one waiting."""
        return self.portion(self.count).gap

    def portion(self, most: int) -> Portion:
        """How many to let go at once, never more than `most`, and how long to wait after them."""
        count = min(max(1, self.count * _BREATH // self.per), most)
        return Portion(count, -(-self.per // (self.count // count)))

    def seconds_for(self, letters: int) -> float:
        """How long so many letters take at the least."""
        return letters * self.per / self.count / _SECOND


def rate_of(text: object) -> Rate:
    """Read a rate as people write it: `50/s`, `600/min`, `100 per hour`."""
    found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise InputError(Reason(ReasonCode.RATE_INVALID, given=quote(text)))
    count = int(found[1].replace(",", ""))
    if not 1 <= count <= MOST:
        raise InputError(Reason(ReasonCode.RATE_OUT_OF_RANGE, most=MOST, given=count))
    return Rate(count, found[2][0].lower())
