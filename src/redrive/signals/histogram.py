"""Counting how long things took, in a few fixed ranges."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["DELAYS", "LATENCIES", "SIZES", "Histogram"]

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0)
"""Seconds: from one commit on a good disk to a call that somebody should look at."""

DELAYS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds between two tries."""

SIZES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 175.0, 256.0)
"""Outcomes in one commit; 256 is the most."""


class Histogram:
    """How many values fell into each range, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """How many values were at most as large as each bound, as Prometheus wants it told."""
        so_far, told = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            told.append((bound, float(so_far)))
        return told
