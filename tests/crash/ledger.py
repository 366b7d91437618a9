"""A ledger of what really happened, which no engine, crash or rollback can change.

Every line is one event of one execution of a step's body. The file is opened for appending, so that
lines of several processes never mix and a killed process leaves only complete lines.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Ledger", "Line"]


@dataclass(frozen=True, slots=True)
class Line:
    """Event of worker `who` in an attempt of a run's step; `what` is "begin", "end" and so on."""

    what: str
    who: str
    run: str
    step: str
    attempt: int

    @property
    def attempted(self) -> tuple[str, str, int]:
        """Key of the attempt; it appears again if the attempt was repeated."""
        return (self.run, self.step, self.attempt)


class Ledger:
    """An append-only file of lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, line: Line) -> None:
        """Write one line, with a single write that the kernel does not split."""
        text = json.dumps(asdict(line)) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)

    def lines(self, what: str | None = None, **wanted: str) -> list[Line]:
        """Return all lines, or those of one kind, in the order they were written."""
        if not self._path.exists():
            return []
        found = [Line(**json.loads(text)) for text in self._path.read_text().splitlines()]
        return [
            line
            for line in found
            if (what is None or line.what == what)
            and all(getattr(line, name) == value for name, value in wanted.items())
        ]

    def executions(self) -> dict[tuple[str, str, int], list[str]]:
        """Return the workers that began each attempt, in order."""
        begun: dict[tuple[str, str, int], list[str]] = {}
        for line in self.lines("begin"):
            begun.setdefault(line.attempted, []).append(line.who)
        return begun

    def count(self, what: str = "begin") -> Counter[str]:
        """Return how often each step was begun (or ended), over all runs."""
        return Counter(line.step for line in self.lines(what))
