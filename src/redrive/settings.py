"""Settings: each has an environment variable, a constructor argument of `Redrive`, and a default."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from redrive.duration import Duration, seconds
from redrive.errors import ConfigurationError

__all__ = ["VARIABLES", "Settings"]

VARIABLES = {
    "url": "REDRIVE_URL",
    "concurrency": "WORKER_CONCURRENCY",
    "lease": "REDRIVE_LEASE",
    "grace": "REDRIVE_GRACE",
    "hold": "REDRIVE_HOLD",
    "code_wait": "REDRIVE_CODE_WAIT",
    "chores": "REDRIVE_CHORES",
    "version": "REDRIVE_VERSION",
    "retention": "REDRIVE_RETENTION",
    "dlq_retention": "REDRIVE_DLQ_RETENTION",
    "max_payload": "REDRIVE_MAX_PAYLOAD",
    "redact": "REDRIVE_REDACT",
}
"""The environment variable behind each setting."""

_DURATIONS = frozenset({"lease", "grace", "hold", "code_wait", "chores", "retention", "dlq_retention"})
_SIZES = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "KIB": 1 << 10, "MIB": 1 << 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings in force. Times are seconds, sizes are bytes."""

    url: str = "sqlite:///redrive.db"
    concurrency: int = 100
    lease: float = 30.0
    grace: float = 30.0
    hold: float = 5.0
    code_wait: float = 600.0
    chores: float = 1.0
    version: str = ""
    retention: float = 7 * 86_400.0
    dlq_retention: float = 30 * 86_400.0
    max_payload: int = 1 << 20
    redact: str = ""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigurationError(f"{_name('concurrency')} must be at least 1, not {self.concurrency}")
        if self.lease < 0.5:
            raise ConfigurationError(
                f"{_name('lease')} must be at least 0.5 s, or a moment's pause would cost a worker its "
                f"runs; it is {self.lease:g} s"
            )
        if self.chores <= 0:
            raise ConfigurationError(f"{_name('chores')} must be more than 0 s")
        if self.max_payload < 1:
            raise ConfigurationError(f"{_name('max_payload')} must be at least 1 byte")

    @classmethod
    def load(cls, given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
        """What was given as an argument, else what the environment says, else the default."""
        environment = os.environ if environment is None else environment
        values: dict[str, Any] = {}
        for field in fields(cls):
            value: Any = given.get(field.name)
            if value is None:
                value = environment.get(VARIABLES[field.name]) or None
            if value is not None:
                values[field.name] = _read(field.name, value)
        return cls(**values)


def _name(field: str) -> str:
    return f"{field} ({VARIABLES[field]})"


def _read(field: str, value: Any) -> Any:
    if field in _DURATIONS:
        return seconds(_plain_number(value), _name(field))
    reader = _READERS.get(field)
    return value if reader is None else reader(value)


def _plain_number(value: Duration) -> Duration:
    """The environment holds text; "30" there means 30 seconds."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{_name('concurrency')} must be a whole number, not {value!r}") from None


def _size(value: Any) -> int:
    if isinstance(value, int):
        return value
    text = str(value).strip().upper().replace(" ", "")
    digits = text.rstrip("KMIB")
    if digits.isdigit() and text[len(digits) :] in _SIZES:
        return int(digits) * _SIZES[text[len(digits) :]]
    raise ConfigurationError(f"{_name('max_payload')} must be a size such as 1048576 or 1MiB, not {value!r}")


_READERS: dict[str, Callable[[Any], Any]] = {"concurrency": _whole, "max_payload": _size}
