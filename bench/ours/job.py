"""The job of a measuring process."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The store, how many runs (or rows), how many at once, and in how many worker processes.

    `server` is the first process of the store's server, if there is one on this machine.
    """

    url: str
    size: int
    concurrency: int
    workers: int = 1
    server: int | None = None
