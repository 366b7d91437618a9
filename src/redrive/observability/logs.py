"""Logging of a process: its configuration, the formats of lines, and the fields of a run in them."""

from __future__ import annotations

import atexit
import io
import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from redrive.core.redact import Redactor, escape_controls

process_log = logging.getLogger("redrive")

RUN_FIELDS = (
    "correlation_id", "trace_id", "run_id", "job_id", "workflow", "tenant", "step", "attempt", "attempts_made",
    "decision", "error", "category", "code", "stage", "letter_id", "reason_code",
)  # fmt: skip
"""Fields of a line about a run, beside `time`, `level`, `logger`, `message` and `exception`."""

_MAX_LENGTH = 32 * 1024
"""Longest message, field or traceback: redacting a longer one would block the event loop."""


class AboutRun(logging.Filter):
    """Filter that adds the fields of the current run to each record; `about` returns them."""

    def __init__(self, about: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self._about = about

    def filter(self, record: logging.LogRecord) -> bool:
        given, about = getattr(record, "redrive", {}), self._about()
        # Fields of the current run belong only to lines about it.
        record.redrive = {**about, **given} if given.get("run_id") in (None, about.get("run_id")) else given
        return True


class JsonFormatter(logging.Formatter):
    """Formatter that writes one JSON object per line, with secrets hidden."""

    def __init__(self, redactor: Redactor | None = None) -> None:
        super().__init__()
        self._redactor = redactor or Redactor()

    def format(self, record: logging.LogRecord) -> str:
        message = self._redactor.text(_shorten(record.getMessage()))
        line = _make_line(record.created, record.levelname, record.name, message)
        # The text without its values, which is the same for all lines of one kind.
        line["event"] = self._redactor.text(_shorten(str(record.msg))) if record.args else message
        for name, value in read_run_fields(record).items():
            line[name] = self._redactor.text(_shorten(value)) if isinstance(value, str) else value
        if record.exc_info:
            line["exception"] = self._redactor.text(_shorten(self.formatException(record.exc_info)))
        return json.dumps(line, default=str)


def _make_line(created: float, level: str, logger: str, message: str) -> dict[str, Any]:
    """Return the fields that every line has."""
    at = datetime.fromtimestamp(created, UTC).isoformat(timespec="microseconds")
    return {"time": at, "level": level, "logger": logger, "message": message}


class ConsoleFormatter(logging.Formatter):
    """Formatter for terminals: one line with the run's fields at its end, and secrets hidden.

    Control characters are escaped and tracebacks are indented, so that a text from outside can neither start a
    line nor change how a terminal shows it.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        super().__init__()
        self._redactor = redactor or Redactor()

    def format(self, record: logging.LogRecord) -> str:
        message = _shorten(record.getMessage())
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {message}"
        about = " ".join(
            f"{name}={value}" for name, value in read_run_fields(record).items() if str(value) not in message
        )
        line = escape_controls(self._redactor.text(f"{line} [{_shorten(about)}]" if about else line))
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        below = self._redactor.text(_shorten("\n".join(parts)))
        # Escaping before splitting leaves line feeds as the only line ends.
        below_lines = escape_controls(below, lines=True).split("\n") if below else []
        return "\n".join([line, *(f"    {each}" for each in below_lines)])


def _shorten(text: str) -> str:
    if len(text) <= _MAX_LENGTH:
        return text
    half = _MAX_LENGTH // 2
    return f"{text[:half]} … {len(text) - _MAX_LENGTH} characters cut … {text[-half:]}"


def read_run_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the known fields about a run, in order."""
    known: Mapping[str, Any] = getattr(record, "redrive", None) or {}
    return {name: known[name] for name in RUN_FIELDS if known.get(name) is not None}


def configure_logging(
    kind: str, about: Callable[[], Mapping[str, Any]], redactor: Redactor, stream: TextIO | None = None
) -> None:
    """Write the log of this process to standard error, as `json` or as lines for people (`console`).

    With `json`, every other line of the process becomes a JSON object, too: printed lines, warnings, tracebacks.
    A second call replaces what the first one set up.
    """
    formatter = JsonFormatter(redactor) if kind == "json" else ConsoleFormatter(redactor)
    if kind == "json" and stream is None:
        sys.stdout = JsonLineStream.wrap(sys.stdout, "stdout", "INFO")
        sys.stderr = JsonLineStream.wrap(sys.stderr, "stderr", "ERROR")
        sys.excepthook = _log_unhandled_error
        threading.excepthook = _log_thread_error
        logging.captureWarnings(True)
    handler = _OwnHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(AboutRun(about))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _OwnHandler)]:
        root.removeHandler(old)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _OwnHandler(logging.StreamHandler[TextIO]):
    """The handler of `configure_logging`, which must not be taken for one of the user's."""


class JsonLineStream(io.TextIOBase):
    """A text stream that writes each line as a JSON object. A line that is one already stays as it is.

    Nothing is hidden: a printed line may be meant to show a secret, such as the first sign-in code.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, inner: TextIO, name: str, level: str) -> None:
        super().__init__()
        self._inner = inner
        self._name = name
        self._level = level
        self._lock = threading.RLock()
        self._begun = ""  # the line that has no end yet
        atexit.register(self._end_line)

    @classmethod
    def wrap(cls, stream: Any, name: str, level: str) -> JsonLineStream:
        """Return a stream that writes to `stream`, or `stream` itself if it is one."""
        return stream if isinstance(stream, cls) else cls(stream, name, level)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._inner.fileno()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                self._write_line(line)
        return len(text)

    def flush(self) -> None:
        with self._lock:
            self._inner.flush()

    def _end_line(self) -> None:
        with self._lock:
            self._write_line(self._begun)
            self._begun = ""

    def _write_line(self, line: str) -> None:
        if not line.strip():
            return
        if not _is_json_object(line):
            created = logging.makeLogRecord({}).created
            line = json.dumps(_make_line(created, self._level, self._name, line))
        self._inner.write(f"{line}\n")
        self._inner.flush()


def _is_json_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _log_unhandled_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    process_log.critical("unexpected error, the process ends", exc_info=(kind, error, trace))


def _log_thread_error(args: threading.ExceptHookArgs) -> None:
    error = args.exc_value or args.exc_type()
    if not isinstance(error, SystemExit):
        name = "" if args.thread is None else args.thread.name
        process_log.error("unexpected error in thread %r", name, exc_info=error)
