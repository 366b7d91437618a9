"""The demo from beginning to end: open the shop, let work arrive, watch, close."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from redrive.app import Redrive
from redrive.cli.demo.crew import Crew
from redrive.cli.demo.dashboard import Dashboard
from redrive.cli.demo.plain import Plain
from redrive.cli.demo.shop import app
from redrive.cli.demo.traffic import keep_arriving
from redrive.cli.demo.words import lines_to_type, story, summary, wrapped
from redrive.cli.news import News

__all__ = ["show"]

_LOOK = 0.25
_FIRST_ORDER = 1001


class View(AbstractContextManager["View"], Protocol):
    """Something that shows the state of the shop."""

    def show(self, news: News, crew: Crew, passed: float) -> None:
        """Show how things stand `passed` seconds after the beginning."""


def show(folder: Path, *, seconds: float | None, keep: bool, port: int | None) -> None:
    """Run the demo in a folder, for so many seconds or until a signal comes."""
    url = f"sqlite:///{folder / 'shop.db'}"
    app.settings = replace(app.settings, url=url)
    for line in asyncio.run(_run(app, folder, seconds, port)):
        print(wrapped(line))
    if keep:
        print(f"\nEverything is kept in {folder}. To look at it:")
        print("\n".join(f"  {line}" for line in lines_to_type(url)))
    else:
        print("\nThe store is removed; --keep keeps it.")


async def _run(app: Redrive, folder: Path, seconds: float | None, port: int | None) -> list[str]:
    over = asyncio.Event()
    _stop_on_signals(over)
    if seconds is not None:
        asyncio.get_running_loop().call_later(seconds, over.set)
    async with app.client():
        news = News(app)
        await news.refresh()
        async with Dashboard(app, port) as dashboard, Crew(folder, app.settings.url) as crew:
            await _watch(news, crew, _view(app.settings.url, dashboard.lines), over)
            dashboard.check()
        await news.refresh()
        told = max(news.letters, key=lambda letter: letter.attempts, default=None)
        return [*summary(news, crew), *([] if told is None else ["", *await story(app, told)])]


async def _next_order(app: Redrive) -> int:
    """A number that no order has; in a folder of an earlier demo, the one after its last."""
    newest = (await app.runs.list(limit=1)).items
    return int((newest[0].correlation_id or "").rpartition("-")[2]) + 1 if newest else _FIRST_ORDER


async def _watch(news: News, crew: Crew, view: View, over: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    arriving = asyncio.create_task(keep_arriving(await _next_order(app)))
    try:
        with view:
            while not over.is_set():
                crew.check()
                if arriving.done():
                    arriving.result()
                await news.refresh()
                view.show(news, crew, loop.time() - began)
                await _pause(over)
    finally:
        arriving.cancel()
        await asyncio.wait([arriving])


async def _pause(over: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(over.wait(), _LOOK)
    except TimeoutError:
        return


def _stop_on_signals(over: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, over.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(over.set))


def _view(url: str, doors: Sequence[str] = ()) -> View:
    """The whole terminal if there is one and rich is installed; lines otherwise."""
    if not sys.stdout.isatty():
        return Plain(url, doors)
    try:
        from redrive.cli.demo.screen import Screen
    except ModuleNotFoundError:
        return Plain(url, doors)
    return Screen(url, doors)
