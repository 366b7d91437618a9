"""The demo as a live view of the whole terminal, made for 80 x 24 and better when larger. Needs rich."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from redrive.cli.demo.crew import Crew
from redrive.cli.demo.words import counts, lines_to_type
from redrive.cli.news import News
from redrive.core.states import RunStatus

__all__ = ["Screen"]

_MOODS = {"good": "green", "waiting": "yellow", "bad": "red"}
_STYLES = {
    RunStatus.PENDING: "white",
    RunStatus.RUNNING: "cyan",
    RunStatus.SLEEPING: "yellow",
    RunStatus.SUCCESS: "green",
    RunStatus.DLQ_PENDING: "red",
    RunStatus.TIMED_OUT: "magenta",
}
_FIXED = 8  # lines that are there whatever happens, beside those to type
_TALL = 30  # a screen with so many lines has room for every command


class Screen:
    """Draws the state of the shop over and over."""

    def __init__(self, url: str, doors: Sequence[str] = (), console: Console | None = None) -> None:
        self._url = url
        self._doors = doors
        self._console = console or Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, news: News, crew: Crew, passed: float) -> None:
        """Draw it anew."""
        self._live.update(self.picture(news, crew, passed), refresh=True)

    def picture(self, news: News, crew: Crew, passed: float) -> Group:
        """All lines of the screen, from top to bottom."""
        width, height = self._console.width, self._console.height
        few = height < _TALL
        to_type = [*self._doors[: 1 if few else None], *lines_to_type(self._url, few=few)]
        room = max(6, height - _FIXED - len(to_type))
        for_letters = max(2, room // 3)
        return Group(
            _header(crew, passed),
            _title(f"{news.runs} runs"),
            _figures(news),
            _bar(news, width),
            _title("what was decided, newest first"),
            *_padded(_events(news, width, room - for_letters), room - for_letters),
            _title(f"{news.open_letters} dead letters wait for a person"),
            *_padded(_letters(news, width, for_letters), for_letters),
            _title("look closer, in a browser or another terminal"),
            *(Text(f" {line}", style="cyan", no_wrap=True) for line in to_type),
        )


def _header(crew: Crew, passed: float) -> Text:
    minutes, seconds = divmod(int(passed), 60)
    worker = f"worker {crew.pid}" if crew.pid else "the worker is being started again"
    crashes = "" if not crew.crashes else f", crashed {crew.crashes} x"
    text = Text(" redrive demo ", style="bold reverse", no_wrap=True)
    text.append(f"  {minutes}:{seconds:02}  {worker}{crashes}  ", style="not reverse not bold")
    return text.append("Ctrl-C stops", style="not reverse not bold dim")


def _title(text: str) -> Rule:
    return Rule(Text(text, style="bold"), style="dim", align="left")


def _figures(news: News) -> Text:
    text = Text(" ", no_wrap=True)
    for status, count in counts(news):
        text.append(f"{count} {status}", style=_STYLES.get(status, "white")).append("  ")
    return text


def _bar(news: News, width: int) -> Text:
    """One block for each share of the runs, so that the eye sees what the figures say."""
    text, room = Text(" ", no_wrap=True), width - 2
    for status, count in counts(news):
        share = max(1, round(room * count / max(1, news.runs)))
        text.append("█" * min(share, room - len(text) + 1), style=_STYLES.get(status, "white"))
    return text


def _events(news: News, width: int, room: int) -> list[Text]:
    lines: list[Text] = []
    for event in reversed(news.events):
        lines += _entry(f"{event.run} {event.step:<8}", event.text, _MOODS[event.mood], width)
    return lines[:room]


def _letters(news: News, width: int, room: int) -> list[Text]:
    lines: list[Text] = [] if news.letters else [Text(" none yet", style="dim")]
    for letter in news.letters:
        lines += _entry(f"{letter.correlation_id} {letter.code}", letter.reason, "red", width)
    return lines[:room]


def _entry(head: str, text: str, style: str, width: int) -> list[Text]:
    """A bold head and a text that goes on, indented, on the lines below."""
    wrapped = textwrap.wrap(f"{head} {text}", width - 2, subsequent_indent="  ", break_long_words=True)
    lines = [Text(f" {line}", style=style, no_wrap=True) for line in wrapped]
    lines[0].stylize("bold", 1, 1 + len(head))
    return lines


def _padded(lines: list[Text], room: int) -> list[Text]:
    return lines + [Text("")] * (room - len(lines))
