"""The demo as a live view of the whole terminal, made for 80 x 24 and better when larger. Needs rich."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from redrive.app import Redrive
from redrive.cli.demo.run import Dashboard, WorkerProcess, generate_traffic
from redrive.cli.demo.shop import app
from redrive.cli.dev_feed import EventFeed
from redrive.cli.messages import list_path_commands
from redrive.cli.output import fold_text
from redrive.core.states import RunStatus
from redrive.desk.models import DeadLetter

# -- The demo in plain text: what its views share, and what it says at the end ---------------------------


def count_by_status(news: EventFeed) -> list[tuple[RunStatus, int]]:
    """How many runs stand where, in the order of a run's life."""
    return [(status, news.statuses[status]) for status in RunStatus if news.statuses[status]]


def list_commands(url: str, *, few: bool = False) -> list[str]:
    """What to type, in another terminal, to look closer and to act; a few lines for a low screen."""
    commands = [line for line, always in _COMMANDS if always or not few]
    return [*list_path_commands(), f"export REDRIVE_URL={shlex.quote(url)}", *commands]


_COMMANDS = (
    ("redrive dlq list                # what waits for a person", True),
    ("redrive dlq show ID             # what happened, and what to do about it", True),
    ("redrive dlq replay ID --dry-run # what would run again; then without --dry-run", True),
    ("redrive dlq edit ID             # correct its input and run it again", False),
    ("redrive dlq resolve ID          # settled by hand: close it without running it again", False),
    ("redrive dlq groups              # failures by their cause", False),
    ("redrive schedules list          # what the shop starts by itself, and when next", False),
    ("redrive runs list               # then: redrive runs show ID, runs why ID", True),
)


async def describe_letter(app: Redrive, letter: DeadLetter) -> list[str]:
    """One dead letter as a person reads it."""
    whole = await app.dlq.get(letter.id)
    lines = [f"{whole.id}  {whole.workflow} of {whole.correlation_id}", f"  {whole.reason}"]
    for step in whole.steps:
        lines += (f"    {step.name}: {attempt.decision}" for attempt in step.attempts)
    return lines


def summarize_demo(news: EventFeed, crew: WorkerProcess) -> list[str]:
    """What came of it all."""
    listed = ", ".join(f"{count} {status}" for status, count in count_by_status(news))
    return [f"{news.runs} runs: {listed}.", f"The worker {_describe_crashes(crew.crashes)}; no run was lost."]


def wrap_line(line: str) -> str:
    """A line that does not break within a word on a terminal; what goes on is indented deeper."""
    return fold_text(line, sys.stdout, deeper="  ")


def _describe_crashes(count: int) -> str:
    if not count:
        return "did not crash"
    return f"crashed {'once' if count == 1 else f'{count} times'} and was started again"


# -- The demo as lines of text, for pipes, logs and terminals without rich -------------------------------


_COUNTS_INTERVAL = 5.0  # seconds between two lines of figures


class PlainView:
    """Prints each event once, and the figures now and then."""

    def __init__(self, url: str, doors: Sequence[str] = ()) -> None:
        self._url = url
        self._doors = doors
        self._next = _COUNTS_INTERVAL

    def __enter__(self) -> PlainView:
        print(wrap_line("A small shop, on SQLite, with a bank that fails. In the browser:"))
        for line in self._doors:
            print(wrap_line(f"    {line}"))
        print(wrap_line("To look closer, in another terminal:"))
        for line in list_commands(self._url):
            print(f"    {line}")
        sys.stdout.flush()  # somebody may read it from a pipe and wait for the address
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, news: EventFeed, crew: WorkerProcess, passed: float) -> None:
        """Print what is new."""
        for event in news.fresh:
            print(wrap_line(f"{event.at:%H:%M:%S} {event.run} {event.step}: {event.text}"), flush=True)
        if passed >= self._next:
            self._next = passed + _COUNTS_INTERVAL
            listed = ", ".join(f"{count} {status}" for status, count in count_by_status(news))
            print(f"-- {passed:.0f} s: {listed}; the worker crashed {crew.crashes} times", flush=True)


# -- The demo from beginning to end: open the shop, let work arrive, watch, close ------------------------


_POLL_INTERVAL = 0.25
_FIRST_ORDER = 1001


class DemoView(AbstractContextManager["DemoView"], Protocol):
    """Something that shows the state of the shop."""

    def show(self, news: EventFeed, crew: WorkerProcess, passed: float) -> None:
        """Show how things stand `passed` seconds after the beginning."""


def run_demo(folder: Path, *, seconds: float | None, keep: bool, port: int | None) -> None:
    """Run the demo in a folder, for so many seconds or until a signal comes."""
    url = f"sqlite:///{folder / 'shop.db'}"
    app.settings = replace(app.settings, url=url)
    for line in asyncio.run(_open_shop(app, folder, seconds, port)):
        print(wrap_line(line))
    if keep:
        print(f"\nEverything is kept in {folder}. To look at it:")
        print("\n".join(f"  {line}" for line in list_commands(url)))
    else:
        print("\nThe store is removed; --keep keeps it.")


async def _open_shop(app: Redrive, folder: Path, seconds: float | None, port: int | None) -> list[str]:
    over = asyncio.Event()
    _stop_on_signals(over)
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, over.set)
    async with app.client():
        news = EventFeed(app)
        await news.refresh()
        async with Dashboard(app, port) as dashboard, WorkerProcess(folder, app.settings.url) as crew:
            await _watch_shop(news, crew, _make_view(app.settings.url, dashboard.lines), over)
            dashboard.check()
        await news.refresh()
        told = max(news.letters, key=lambda letter: letter.attempts, default=None)
        return [*summarize_demo(news, crew), *([] if told is None else ["", *await describe_letter(app, told)])]


async def _next_order(app: Redrive) -> int:
    """A number that no order has; in a folder of an earlier demo, the one after its last."""
    newest = (await app.runs.list(limit=1)).items
    return int((newest[0].correlation_id or "").rpartition("-")[2]) + 1 if newest else _FIRST_ORDER


async def _watch_shop(news: EventFeed, crew: WorkerProcess, view: DemoView, over: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    arriving = asyncio.create_task(generate_traffic(await _next_order(app)))
    try:
        with view:
            while not over.is_set():
                crew.check()
                if arriving.done():
                    arriving.result()
                await news.refresh()
                view.show(news, crew, loop.time() - began)
                await _wait_for_next_poll(over)
    finally:
        arriving.cancel()
        await asyncio.wait([arriving])


async def _wait_for_next_poll(over: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(over.wait(), _POLL_INTERVAL)
    except TimeoutError:
        return


def _stop_on_signals(over: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, over.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(over.set))


def _make_view(url: str, doors: Sequence[str] = ()) -> DemoView:
    """The whole terminal if there is one and rich is installed; lines otherwise."""
    if not sys.stdout.isatty():
        return PlainView(url, doors)
    try:
        from redrive.cli.demo.view import ScreenView
    except ModuleNotFoundError:
        return PlainView(url, doors)
    return ScreenView(url, doors)


# -- The demo as a live view of the whole terminal, made for 80 x 24 and better when larger. Needs r -----


_LEVEL_STYLES = {"good": "green", "waiting": "yellow", "bad": "red"}
_STATUS_STYLES = {
    RunStatus.PENDING: "white",
    RunStatus.RUNNING: "cyan",
    RunStatus.SLEEPING: "yellow",
    RunStatus.SUCCESS: "green",
    RunStatus.DLQ_PENDING: "red",
    RunStatus.TIMED_OUT: "magenta",
}
_FIXED_LINES = 8  # lines that are there whatever happens, beside those to type
_TALL_SCREEN_LINES = 30  # a screen with so many lines has room for every command


class ScreenView:
    """Draws the state of the shop over and over."""

    def __init__(self, url: str, doors: Sequence[str] = (), console: Console | None = None) -> None:
        self._url = url
        self._doors = doors
        self._console = console or Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def __enter__(self) -> ScreenView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, news: EventFeed, crew: WorkerProcess, passed: float) -> None:
        """Draw it anew."""
        self._live.update(self.picture(news, crew, passed), refresh=True)

    def picture(self, news: EventFeed, crew: WorkerProcess, passed: float) -> Group:
        """All lines of the screen, from top to bottom."""
        width, height = self._console.width, self._console.height
        few = height < _TALL_SCREEN_LINES
        to_type = [*self._doors[: 1 if few else None], *list_commands(self._url, few=few)]
        room = max(6, height - _FIXED_LINES - len(to_type))
        for_letters = max(2, room // 3)
        return Group(
            _render_header(crew, passed),
            _render_title(f"{news.runs} runs"),
            _render_counts(news),
            _render_bar(news, width),
            _render_title("what was decided, newest first"),
            *_pad_lines(_render_events(news, width, room - for_letters), room - for_letters),
            _render_title(f"{news.open_letters} dead letters wait for a person"),
            *_pad_lines(_render_letters(news, width, for_letters), for_letters),
            _render_title("look closer, in a browser or another terminal"),
            *(Text(f" {line}", style="cyan", no_wrap=True) for line in to_type),
        )


def _render_header(crew: WorkerProcess, passed: float) -> Text:
    minutes, seconds = divmod(int(passed), 60)
    worker = f"worker {crew.pid}" if crew.pid else "the worker is being started again"
    crashes = "" if not crew.crashes else f", crashed {crew.crashes} x"
    text = Text(" redrive demo ", style="bold reverse", no_wrap=True)
    text.append(f"  {minutes}:{seconds:02}  {worker}{crashes}  ", style="not reverse not bold")
    return text.append("Ctrl-C stops", style="not reverse not bold dim")


def _render_title(text: str) -> Rule:
    return Rule(Text(text, style="bold"), style="dim", align="left")


def _render_counts(news: EventFeed) -> Text:
    text = Text(" ", no_wrap=True)
    for status, count in count_by_status(news):
        text.append(f"{count} {status}", style=_STATUS_STYLES.get(status, "white")).append("  ")
    return text


def _render_bar(news: EventFeed, width: int) -> Text:
    """One block for each share of the runs, so that the eye sees what the figures say."""
    text, room = Text(" ", no_wrap=True), width - 2
    for status, count in count_by_status(news):
        share = max(1, round(room * count / max(1, news.runs)))
        text.append("█" * min(share, room - len(text) + 1), style=_STATUS_STYLES.get(status, "white"))
    return text


def _render_events(news: EventFeed, width: int, room: int) -> list[Text]:
    lines: list[Text] = []
    for event in reversed(news.events):
        lines += _render_entry(f"{event.run} {event.step:<8}", event.text, _LEVEL_STYLES[event.level], width)
    return lines[:room]


def _render_letters(news: EventFeed, width: int, room: int) -> list[Text]:
    lines: list[Text] = [] if news.letters else [Text(" none yet", style="dim")]
    for letter in news.letters:
        lines += _render_entry(f"{letter.correlation_id} {letter.code}", letter.reason, "red", width)
    return lines[:room]


def _render_entry(head: str, text: str, style: str, width: int) -> list[Text]:
    """A bold head and a text that goes on, indented, on the lines below."""
    wrapped = textwrap.wrap(f"{head} {text}", width - 2, subsequent_indent="  ", break_long_words=True)
    lines = [Text(f" {line}", style=style, no_wrap=True) for line in wrapped]
    lines[0].stylize("bold", 1, 1 + len(head))
    return lines


def _pad_lines(lines: list[Text], room: int) -> list[Text]:
    return lines + [Text("")] * (room - len(lines))
