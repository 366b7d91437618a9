"""How the work of a closed letter stands, and the command that leads on from there."""

from __future__ import annotations

from redrive.cli.output import clean
from redrive.core.auditing import ENGINE
from redrive.core.states import CLOSED, LetterStatus, RunStatus
from redrive.desk.shapes import DeadLetter, ReplayRecord
from redrive.frozen import dataclass

__all__ = ["Standing", "standing"]

# What the engine notes when it closes a letter, for when the replays are gone together with the run.
_NOTED = {
    "replayed": RunStatus.SUCCESS,
    "replayed in part": RunStatus.PARTIAL,
    "rolled_back": RunStatus.COMPENSATED,
    "its run was cancelled": RunStatus.CANCELLED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A sentence for the page, and a command with what it is for; no command where nothing leads on."""

    sentence: str
    aim: str = ""
    title: str = ""
    command: tuple[str, ...] = ()


def standing(letter: DeadLetter) -> Standing | None:
    """How the work stands that a closed letter is about; None while the letter is not closed."""
    if letter.status not in CLOSED:
        return None
    last = _counts(letter)
    if last is not None:
        return _replayed(letter, last.outcome, last.run_id)
    if letter.closed_by == ENGINE and letter.resolution in _NOTED:
        return _replayed(letter, _NOTED[letter.resolution], letter.run_id)
    if letter.status is LetterStatus.EXPIRED:
        return _again(letter, "Nobody decided about it in time, so it expired. Its work was not done.")
    by = f" by {letter.closed_by}" if letter.closed_by else ""
    why = f": {clean(letter.resolution)}" if letter.resolution else ""
    said = f"It was closed as {letter.status}{by}{why}. Nothing is left to do."
    return _again(letter, said, aim="run it again all the same", title="run anyway")


def _counts(letter: DeadLetter) -> ReplayRecord | None:
    """The last replay, unless the letter was closed after it: by somebody who knew how it had ended."""
    last = letter.replays[-1] if letter.replays else None
    if last is None or letter.closed_at is None or last.ended_at is None:
        return last
    return last if last.ended_at >= letter.closed_at else None


def _replayed(letter: DeadLetter, outcome: str | None, run: str) -> Standing:
    match outcome:
        case RunStatus.SUCCESS:
            return _ended(run, "It was run again since, and that went well. Nothing is left to do.")
        case RunStatus.PARTIAL:
            said = (
                "Its failed step alone was run again since. That step succeeded, and more would follow: the "
                "run is not finished."
            )
            return _again(letter, said, aim="go on with it", title="go on with it")
        case RunStatus.COMPENSATED:
            return _ended(run, "What its run had done was undone. Nothing is left to do.")
        case RunStatus.CANCELLED:
            return _ended(
                run,
                "It was run again since, and was cancelled before it ended. Its work was not done, and a "
                "cancelled run does not go on: start a new one if the work is still wanted.",
            )
        case None:
            return _ended(run, f"It was run again since, as run {run}, which tells how that stands.")
        case _:
            return _again(letter, "It was run again since, and failed again.")


def _ended(run: str, sentence: str) -> Standing:
    return Standing(
        sentence=sentence, aim="see how it ended", title="how it ended", command=("runs", "show", run)
    )


def _again(
    letter: DeadLetter, sentence: str, *, aim: str = "run it again", title: str = "run it again"
) -> Standing:
    if letter.purged:
        return Standing(sentence=f"{sentence} Its run was removed since, so it cannot run again.")
    return Standing(sentence=sentence, aim=aim, title=title, command=("runs", "retry", letter.run_id))
