"""Where people can go: one table, in the order in which it is shown."""

from __future__ import annotations

from collections.abc import Callable

from redrive.core.roles import Permission
from redrive.frozen import dataclass
from redrive.server.pages.words import N

__all__ = ["PLACES", "Place", "places"]


@dataclass(frozen=True, slots=True)
class Place:
    """A page of the navigation, and what it takes to go there."""

    path: str
    label: str
    icon: str
    group: str
    needs: Permission = Permission.LOOK


_WATCH, _SET_UP = N("Watch"), N("Set up")

PLACES = (
    Place("/", N("Overview"), "pulse", _WATCH),
    Place("/admin/dlq", N("Dead letters"), "letter", _WATCH),
    Place("/runs", N("Runs"), "run", _WATCH),
    Place("/circuits", N("Circuits"), "circuit", _WATCH),
    Place("/workers", N("Workers"), "worker", _WATCH),
    Place("/notifications", N("Notifications"), "bell", _WATCH),
    Place("/workflows", N("Workflows"), "flow", _SET_UP),
    Place("/policies", N("Policies"), "policy", _SET_UP),
    Place("/members", N("Members"), "people", _SET_UP, Permission.MANAGE_PEOPLE),
    Place("/audit", N("Audit"), "log", _SET_UP),
    Place("/health", N("Health"), "health", _SET_UP),
)


def places(may: Callable[[Permission], bool]) -> list[tuple[str, list[Place]]]:
    """The places that somebody may go to, by group."""
    groups: dict[str, list[Place]] = {}
    for place in PLACES:
        if may(place.needs):
            groups.setdefault(place.group, []).append(place)
    return list(groups.items())
