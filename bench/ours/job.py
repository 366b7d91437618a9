"""What a measuring process was asked to do."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The store, how many runs (or rows), and how many at once."""

    url: str
    size: int
    concurrency: int
