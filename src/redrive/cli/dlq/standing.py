"""How the work of a closed letter stands, and the command that leads on from there."""

from __future__ import annotations

from typing import assert_never

from redrive.cli.output import clean
from redrive.desk.aftermath import Aftermath, aftermath
from redrive.desk.shapes import DeadLetter
from redrive.frozen import dataclass

__all__ = ["Standing", "standing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A sentence for the page, and a command with what it is for; no command where nothing leads on."""

    sentence: str
    aim: str = ""
    title: str = ""
    command: tuple[str, ...] = ()


def standing(letter: DeadLetter) -> Standing | None:
    """How the work stands that a closed letter is about; None while the letter is not closed."""
    match aftermath(letter):
        case None:
            return None
        case Aftermath.SUCCEEDED:
            return _ended(letter, "It was run again since, and that went well. Nothing is left to do.")
        case Aftermath.IN_PART:
            said = (
                "Its failed step alone was run again since. That step succeeded, and more would follow: the "
                "run is not finished."
            )
            return _again(letter, said, aim="go on with it", title="go on with it")
        case Aftermath.UNDONE:
            return _ended(letter, "What its run had done was undone. Nothing is left to do.")
        case Aftermath.CANCELLED:
            said = (
                "It was run again since, and was cancelled before it ended. Its work was not done, and a "
                "cancelled run does not go on: start a new one if the work is still wanted."
            )
            return _ended(letter, said)
        case Aftermath.GOES_ON:
            run = _run(letter)
            return _ended(letter, f"It was run again since, as run {run}, which tells how that stands.")
        case Aftermath.FAILED_AGAIN:
            return _again(letter, "It was run again since, and failed again.")
        case Aftermath.EXPIRED:
            return _again(letter, "Nobody decided about it in time, so it expired. Its work was not done.")
        case Aftermath.CLOSED:
            return _again(letter, _closed(letter), aim="run it again all the same", title="run anyway")
        case _ as never:
            assert_never(never)


def _closed(letter: DeadLetter) -> str:
    by = f" by {letter.closed_by}" if letter.closed_by else ""
    why = f": {clean(letter.resolution)}" if letter.resolution else ""
    return f"It was closed as {letter.status}{by}{why}. Nothing is left to do."


def _run(letter: DeadLetter) -> str:
    """The run that tells: that of the last replay, if there was one."""
    return letter.replays[-1].run_id if letter.replays else letter.run_id


def _ended(letter: DeadLetter, sentence: str) -> Standing:
    command = ("runs", "show", _run(letter))
    return Standing(sentence=sentence, aim="see how it ended", title="how it ended", command=command)


def _again(
    letter: DeadLetter, sentence: str, *, aim: str = "run it again", title: str = "run it again"
) -> Standing:
    if letter.purged:
        return Standing(sentence=f"{sentence} Its run was removed since, so it cannot run again.")
    return Standing(sentence=sentence, aim=aim, title=title, command=("runs", "retry", letter.run_id))
