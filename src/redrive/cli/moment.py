"""Times as people give them: moments (`2h` ago, or an ISO 8601 time) and spans (`10m`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["MOMENT", "SPAN"]


class _Moment(click.ParamType["datetime"]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from datetime import datetime

        from redrive.clock import SystemClock
        from redrive.duration import before, moment

        if isinstance(value, datetime):
            return value
        found = before(value, moment(SystemClock().now()))
        if found is None:
            self.fail(f"{value!r} is no time: give 2h (ago), 2026-03-01 or 2026-03-01T14:00:00Z", param, ctx)
        return found


class _Span(click.ParamType[str]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from redrive.duration import seconds
        from redrive.errors import ConfigurationError

        try:
            seconds(value)
        except ConfigurationError:
            self.fail(f"{value!r} is no duration: give 90 (seconds), 30s, 5m, 1h30m or 2d", param, ctx)
        return str(value)


MOMENT = _Moment()
SPAN = _Span()
