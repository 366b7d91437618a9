"""The rate of a bulk action: how users write it, and the batches that keep to it."""

from __future__ import annotations

import re

import msgspec

from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode, quote
from redrive.time_values import MICROS

MAX_RATE = 100_000
"""The highest rate of a bulk action, in letters per unit."""

_UNIT_MICROS = {"s": MICROS, "m": 60 * MICROS, "h": 3600 * MICROS}
_BATCH_INTERVAL = MICROS // 5  # a batch has as many letters as the rate allows in this time
_COUNT_PATTERN = r"[1-9]\d{0,2}(?:,\d{3}){1,4}|\d{1,16}"  # a comma in another position may mean a fraction
_RATE_PATTERN = re.compile(
    rf"({_COUNT_PATTERN}) ?(?:/|per) ?(s|sec|second|m|min|minute|h|hour)", re.ASCII | re.IGNORECASE
)


class RateBatch(msgspec.Struct, frozen=True, gc=False):
    """The number of letters of a batch, and the microseconds until the next batch."""

    count: int
    gap: int


class Rate(msgspec.Struct, frozen=True, gc=False):
    """At most `count` letters per unit, which is `s`, `m` or `h`."""

    count: int
    unit: str

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}"

    @property
    def unit_micros(self) -> int:
        """The length of the unit in microseconds."""
        return _UNIT_MICROS[self.unit]

    @property
    def gap(self) -> int:
        """The microseconds between two batches of the usual size."""
        return self.portion(self.count).gap

    def portion(self, most: int) -> RateBatch:
        """Return the size of the next batch, at most `most`, and the wait after it."""
        count = min(max(1, self.count * _BATCH_INTERVAL // self.unit_micros), most)
        return RateBatch(count, -(-self.unit_micros // (self.count // count)))

    def estimate_seconds(self, letters: int) -> float:
        """Return the minimum time for a number of letters."""
        return letters * self.unit_micros / self.count / MICROS


def parse_rate(text: object) -> Rate:
    """Parse a rate such as `50/s`, `600/min` or `100 per hour`."""
    found = _RATE_PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise InputError(Reason(ReasonCode.RATE_INVALID, given=quote(text)))
    count = int(found[1].replace(",", ""))
    if not 1 <= count <= MAX_RATE:
        raise InputError(Reason(ReasonCode.RATE_OUT_OF_RANGE, most=MAX_RATE, given=count))
    return Rate(count, found[2][0].lower())
