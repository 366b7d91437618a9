"""How it is said that a value does not fit, and how that is read again: the only place that knows the words.

What is said goes through logs, answers and dry runs as one text; editors and forms put each part of it beside
the place that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from redrive.frozen import dataclass

__all__ = ["Misfit", "misfit_in", "said"]

_SAYS, _BETWEEN = " does not fit: ", "; "
_PLACE = re.compile(r"^([^:\s]{1,200}): (.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Misfit:
    """What does not fit (`the input of workflow 'fulfil'`), and each thing that is wrong with it, in order.

    A place, such as `order.lines[2].price`, is empty where something belongs to none.
    """

    what: str
    faults: tuple[tuple[str, str], ...]


def said(what: str, faults: Iterable[object]) -> str:
    """The text for what does not fit; a fault is `place: words`, or words."""
    return f"{what}{_SAYS}{_BETWEEN.join(map(str, faults))}"


def misfit_in(text: str) -> Misfit | None:
    """What a text says that does not fit; None if it is about something else."""
    what, says, listed = text.partition(_SAYS)
    if not says:
        return None
    return Misfit(what, tuple(map(_fault, listed.split(_BETWEEN))))


def _fault(text: str) -> tuple[str, str]:
    placed = _PLACE.match(text)
    return ("", text) if placed is None else (placed[1], placed[2])
