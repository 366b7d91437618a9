"""Moments as people give them: `2h` ago, or an ISO 8601 time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["MOMENT"]


class _Moment(click.ParamType["datetime"]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from datetime import UTC, datetime, timedelta

        from redrive.clock import MICROS, SystemClock
        from redrive.duration import seconds
        from redrive.errors import ConfigurationError

        if isinstance(value, datetime):
            return value
        try:
            passed = timedelta(seconds=seconds(value))
            return datetime.fromtimestamp(SystemClock().now() / MICROS, UTC) - passed
        except ConfigurationError:
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time: give 2h (ago), 2026-03-01 or 2026-03-01T14:00:00Z", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


MOMENT = _Moment()
