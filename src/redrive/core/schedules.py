"""Schedules: what a workflow is started with by itself, and which of its times are due.

                 passed                           now
    ───────────────┼──────── × ──────── × ────────┼─────▶
                          missed     the latest

Of several times that nobody was there for, the latest is started, if that is not too late; the others are
skipped. `passed` moves on to the latest in either case, so that each time is dealt with once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass as plain_dataclass
from datetime import datetime
from typing import Any, TypeAlias

from redrive.core.cron import Cron
from redrive.core.roles import DEFAULT_TENANT, one_tenant
from redrive.core.starting import name_text
from redrive.duration import MICROS, Duration, seconds
from redrive.errors import InputError, RegistrationError

__all__ = ["Due", "Inputs", "Schedule", "due"]

Inputs: TypeAlias = Mapping[str, Any] | Callable[[datetime], Mapping[str, Any]] | None
"""What a schedule starts its workflow with, or a function that tells so for a fire time."""


@plain_dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Schedule:
    """When a workflow is started by itself, for which tenant, and with what.

    `cron` has five fields: minute, hour, day of the month, month, day of the week. Its times are those of
    `timezone`. `input` goes from parameter names to values; a function gets the fire time, in that zone, and
    returns them. `name` tells several schedules of a workflow apart. `catch_up` is how late a time may still
    be started that nobody was there for; of several such times only the latest is.
    """

    cron: Cron
    input: Inputs
    tenant: str
    name: str
    catch_up: int

    def __init__(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        input: Inputs = None,
        tenant: str = DEFAULT_TENANT,
        name: str = "default",
        catch_up: Duration = "1h",
    ) -> None:
        put = object.__setattr__
        put(self, "cron", Cron.parse(cron, timezone))
        put(self, "input", _checked(input))
        put(self, "tenant", _text("tenant", tenant, one_tenant))
        put(self, "name", _name(name))
        put(self, "catch_up", int(seconds(catch_up, "catch_up of a schedule") * MICROS))

    def input_at(self, at: int) -> dict[str, Any]:
        """What it starts its workflow with at this fire time."""
        given = self.input(self.cron.local(at)) if callable(self.input) else self.input or {}
        if not isinstance(given, Mapping):
            raise InputError(f"its input is {given!r:.60}; return a dict from parameters to values")
        return dict(given)


@plain_dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Times that have come: from `first` to `latest`, which is started unless it is too late for that."""

    first: int
    latest: int
    starts: bool


def due(cron: Cron, *, passed: int, now: int, latest_by: int) -> Due | None:
    """What is due of a schedule; None if nothing is. `latest_by` is how late a time may be started."""
    first = cron.next(passed)
    if first is None or first > now:
        return None
    latest = cron.latest(passed, now) or first
    return Due(first=first, latest=latest, starts=now - latest <= latest_by)


def _checked(given: Any) -> Inputs:
    if given is None or isinstance(given, Mapping):
        return given
    if callable(given):
        inputs: Inputs = given
        return inputs
    raise RegistrationError(
        f"input of a schedule is {given!r:.60}; give a dict from parameters to values, "
        "or a function of the fire time that returns one"
    )


def _text(what: str, value: Any, allowed: Callable[[str], str] = str) -> str:
    try:
        return allowed(name_text(what, value, ""))
    except InputError as error:
        raise RegistrationError(f"of a schedule, {error}") from None


def _name(value: Any) -> str:
    """A name that can stand in an address and in one line of a log."""
    name = _text("name", value)
    if not name.isprintable() or set(name) & {"/", "#"}:
        raise RegistrationError(
            f"name of a schedule is {name!r:.60}; use what can be printed, but not / or #"
        )
    return name
