"""The demo as a live view of the whole terminal, made for 80 x 24 and better when larger. Needs rich."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from redrive.cli.demo import list_commands
from redrive.cli.demo.worker import WorkerProcess
from redrive.cli.run_feed import EventFeed, count_by_status
from redrive.core.states import RunStatus

_LEVEL_STYLES = {"good": "green", "waiting": "yellow", "bad": "red"}
_STATUS_STYLES = {
    RunStatus.PENDING: "white",
    RunStatus.RUNNING: "cyan",
    RunStatus.SLEEPING: "yellow",
    RunStatus.SUCCESS: "green",
    RunStatus.DLQ_PENDING: "red",
    RunStatus.TIMED_OUT: "magenta",
}
_FIXED_LINES = 8  # lines that are always there, beside the commands
_TALL_SCREEN_LINES = 30  # a screen with this many lines has room for every command


class ScreenView:
    """A live view, redrawn at each poll."""

    def __init__(self, url: str, dashboard_lines: Sequence[str] = (), console: Console | None = None) -> None:
        self._url = url
        self._dashboard_lines = dashboard_lines
        self._console = console or Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def __enter__(self) -> ScreenView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, feed: EventFeed, worker: WorkerProcess, elapsed: float) -> None:
        """Redraw the screen."""
        self._live.update(self.render(feed, worker, elapsed), refresh=True)

    def render(self, feed: EventFeed, worker: WorkerProcess, elapsed: float) -> Group:
        """Render all lines of the screen, from top to bottom."""
        width, height = self._console.width, self._console.height
        few = height < _TALL_SCREEN_LINES
        commands = [*self._dashboard_lines[: 1 if few else None], *list_commands(self._url, few=few)]
        room = max(6, height - _FIXED_LINES - len(commands))
        letter_room = max(2, room // 3)
        events: list[Text] = []
        for event in reversed(feed.events):
            events += _render_entry(f"{event.run} {event.step:<8}", event.text, _LEVEL_STYLES[event.level], width)
        letters = [] if feed.letters else [Text(" none yet", style="dim")]
        for letter in feed.letters:
            letters += _render_entry(f"{letter.correlation_id} {letter.code}", letter.reason, "red", width)
        minutes, seconds = divmod(int(elapsed), 60)
        state = f"worker {worker.pid}" if worker.pid else "the worker is being started again"
        crashes = f", crashed {worker.crashes} x" if worker.crashes else ""
        header = Text(" redrive demo ", style="bold reverse", no_wrap=True)
        header.append(f"  {minutes}:{seconds:02}  {state}{crashes}  ", style="not reverse not bold")
        counts, bar, bar_room = Text(" ", no_wrap=True), Text(" ", no_wrap=True), width - 2
        for status, count in count_by_status(feed):  # the numbers, and a bar with the share of each
            style = _STATUS_STYLES.get(status, "white")
            counts.append(f"{count} {status}", style=style).append("  ")
            share = max(1, round(bar_room * count / max(1, feed.runs)))
            bar.append("█" * min(share, bar_room - len(bar) + 1), style=style)
        return Group(
            header.append("Ctrl-C stops", style="not reverse not bold dim"),
            _render_title(f"{feed.runs} runs"),
            counts,
            bar,
            _render_title("decisions, newest first"),
            *_fit_lines(events, room - letter_room),
            _render_title(f"{feed.open_letters} dead letters need a decision"),
            *_fit_lines(letters, letter_room),
            _render_title("look closer, in a browser or another terminal"),
            *(Text(f" {line}", style="cyan", no_wrap=True) for line in commands),
        )


def _render_title(text: str) -> Rule:
    return Rule(Text(text, style="bold"), style="dim", align="left")


def _render_entry(head: str, text: str, style: str, width: int) -> list[Text]:
    """Render a bold head and a text, wrapped and indented."""
    wrapped = textwrap.wrap(f"{head} {text}", width - 2, subsequent_indent="  ", break_long_words=True)
    lines = [Text(f" {line}", style=style, no_wrap=True) for line in wrapped]
    lines[0].stylize("bold", 1, 1 + len(head))
    return lines


def _fit_lines(lines: list[Text], room: int) -> list[Text]:
    return lines[:room] + [Text("")] * (room - len(lines))
