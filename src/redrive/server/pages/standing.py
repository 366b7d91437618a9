"""How the work of a closed letter stands, in a sentence, and whether its run can be retried from there."""

from __future__ import annotations

from redrive.desk.aftermath import Aftermath, aftermath
from redrive.desk.shapes import DeadLetter
from redrive.frozen import dataclass
from redrive.server.pages.words import N

__all__ = ["Standing", "standing"]

_SENTENCES = {
    Aftermath.SUCCEEDED: N("It was run again, and succeeded. Nothing is left to do."),
    Aftermath.IN_PART: N(
        "That step alone was run again, and succeeded. More would follow: the run is not finished."
    ),
    Aftermath.UNDONE: N("What its run had done was undone. Nothing is left to do."),
    Aftermath.CANCELLED: N(
        "It was run again, and cancelled before it ended. Start a new run if it is still wanted."
    ),
    Aftermath.GOES_ON: N("It is running again now."),
    Aftermath.FAILED_AGAIN: N("It was run again since, and failed again."),
    Aftermath.EXPIRED: N("Nobody decided about it in time, so it expired. Its work was not done."),
}
_RETRIED = frozenset({Aftermath.IN_PART, Aftermath.FAILED_AGAIN, Aftermath.EXPIRED, Aftermath.CLOSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """`sentence` is None where a person closed the letter and said why; `retries`: its run can be retried."""

    sentence: str | None = None
    retries: bool = False


def standing(letter: DeadLetter) -> Standing | None:
    """How the work stands that a closed letter is about; None while the letter is not closed."""
    after = aftermath(letter)
    if after is None:
        return None
    return Standing(sentence=_SENTENCES.get(after), retries=after in _RETRIED and not letter.purged)
