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

from redrive.core.control_text import escape_controls
from redrive.core.redact import Redactor

__all__ = ["FIELDS", "AboutRun", "ConsoleFormatter", "JsonFormatter", "configure"]

FIELDS = (
    "correlation_id", "trace_id", "run_id", "workflow", "tenant", "step", "attempt", "attempts_made",
    "decision", "error", "category", "code", "stage", "letter_id", "reason_code",
)  # fmt: skip
"""What a line may say about a run, beside `time`, `level`, `logger`, `message` and `exception`."""


_LONGEST = 32 * 1024
"""Characters of a message, a field or a traceback that are redacted and written."""


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
            "message": self._redactor.text(_cut(record.getMessage())),
            **self._fields(record),
        }
        if record.exc_info:
            line["exception"] = self._redactor.text(_cut(self.formatException(record.exc_info)))
        return json.dumps(line, default=str)

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return {
            name: self._redactor.text(_cut(value)) if isinstance(value, str) else value
            for name, value in fields_of(record).items()
        }


class ConsoleFormatter(logging.Formatter):
    """Formats a record as a line for people, with what it is about at its end; secrets are hidden.

    Control characters are written as escapes, and the lines of a traceback are indented: no text that comes
    from outside can begin a line, or change how a terminal shows one.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        super().__init__()
        self._redactor = redactor or Redactor()

    def format(self, record: logging.LogRecord) -> str:
        message = _cut(record.getMessage())
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {message}"
        about = " ".join(
            f"{name}={value}" for name, value in fields_of(record).items() if str(value) not in message
        )
        line = escape_controls(self._redactor.text(f"{line} [{_cut(about)}]" if about else line))
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        below = self._redactor.text(_cut("\n".join(parts)))
        # Escaping before splitting leaves line feeds as the only line ends.
        below_lines = escape_controls(below, lines=True).split("\n") if below else []
        return "\n".join([line, *(f"    {each}" for each in below_lines)])


def _cut(text: str) -> str:
    """Shorten a text that would take long to redact: log lines are often written on the event loop."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]} … {len(text) - _LONGEST} characters cut … {text[-half:]}"


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
