"""Log lines for people and for machines, through the logging of the standard library.

A library leaves the application's logging alone: `configure` is for processes that are Redrive's own. An
application with a logging of its own gives its handlers `JsonFormatter` and `AboutRun`, or formats the
fields itself: they are a dictionary in the attribute `redrive` of a record.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from redrive.core.redact import Redactor

__all__ = ["FIELDS", "AboutRun", "ConsoleFormatter", "JsonFormatter", "configure"]

FIELDS = (
    "correlation_id", "trace_id", "run_id", "workflow", "tenant", "step", "attempt", "attempts_made",
    "decision", "error", "category", "code", "stage", "letter_id", "reason_code",
)  # fmt: skip
"""What a line may say about a run, beside `time`, `level`, `logger`, `message` and `exception`."""


class AboutRun(logging.Filter):
    """Adds to every line that was written inside a run what `about` says of that run."""

    def __init__(self, about: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self._about = about

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "redrive"):
            record.redrive = self._about()
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object in a line; secrets are hidden."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        super().__init__()
        self._redactor = redactor or Redactor()

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._redactor.text(record.getMessage()),
            **self._fields(record),
        }
        if record.exc_info:
            line["exception"] = self._redactor.text(self.formatException(record.exc_info))
        return json.dumps(line, default=str)

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return {
            name: self._redactor.text(value) if isinstance(value, str) else value
            for name, value in fields_of(record).items()
        }


class ConsoleFormatter(logging.Formatter):
    """A line for people, with what it is about at its end; secrets are hidden."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._redactor = redactor or Redactor()

    def format(self, record: logging.LogRecord) -> str:
        text, said = super().format(record), record.getMessage()
        about = " ".join(
            f"{name}={value}" for name, value in fields_of(record).items() if str(value) not in said
        )
        first, line, rest = text.partition("\n")
        return self._redactor.text(f"{first} [{about}]{line}{rest}" if about else text)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a line says about a run, in order, without what is not known."""
    known: Mapping[str, Any] = getattr(record, "redrive", None) or {}
    return {name: known[name] for name in FIELDS if known.get(name) is not None}


def configure(
    kind: str,
    about: Callable[[], Mapping[str, Any]],
    redactor: Redactor,
    stream: TextIO | None = None,
) -> None:
    """Have this process write its log to standard error, as `json` or for people (`console`)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(redactor) if kind == "json" else ConsoleFormatter(redactor))
    handler.addFilter(AboutRun(about))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
