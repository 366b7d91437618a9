"""A shop with two dead letters, from a bank that is down and from an invalid country, and a worker for it."""

import asyncio
import contextlib
import json
import runpy
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from redrive import Redrive, RunFailed
from redrive.desk.models import DeadLetter, Run
from redrive.record_fields import replace

SHOP = """
from dataclasses import dataclass
from pathlib import Path

from redrive import NonRetryable, Redrive, RetryPolicy, step_info

app = Redrive("sqlite:///shop.db", lease="5s")


@dataclass
class ReplayOrder:
    number: int
    country: str
    card_token: str


def called(what):
    with Path("calls.txt").open("a", encoding="utf-8") as file:
        file.write(f"{what} {step_info().idempotency_key}\\n")


@app.step
async def reserve(order: ReplayOrder) -> str:
    called("reserve")
    return f"R-{order.number}"


@app.step(effect="charges the card", retry=RetryPolicy(max_retries=1, base_delay="1ms"))
async def charge(order: ReplayOrder) -> str:
    called(f"charge {order.card_token}")
    if Path("bank-is-down").exists():
        raise ConnectionError("the bank does not \\x1b[31manswer")
    return f"payment {order.number}"


@app.step(effect="writes to the books")
async def book(order: ReplayOrder) -> str:
    called("book")
    if order.country not in ("PL", "DE"):
        raise NonRetryable(f"no VAT rate for {order.country!r}")
    return f"booked {order.number}"


@app.workflow
async def sell(order: ReplayOrder) -> str:
    await reserve(order)
    await charge(order)
    return await book(order)
"""


@dataclass(frozen=True)
class Shop:
    """The folder with the store, and two runs with dead letters: `down` at the bank, `wrong` at the books."""

    folder: Path
    url: str
    down: str
    wrong: str

    def app(self) -> Redrive:
        app: Redrive = runpy.run_path(str(self.folder / "shop.py"))["app"]
        app.settings = replace(app.settings, url=self.url)
        return app

    def letter(self, run: str) -> DeadLetter:
        return asyncio.run(self._letter(f"dl-{run}"))

    async def _letter(self, id: str) -> DeadLetter:
        async with Redrive(self.url).client() as app:
            return await app.dlq.get(id)

    def run(self, id: str) -> Run:
        return asyncio.run(self._run(id))

    async def _run(self, id: str) -> Run:
        async with Redrive(self.url).client() as app:
            return await app.runs.get(id)

    def calls(self) -> list[str]:
        """Return the external calls since the last question, without their idempotency keys."""
        return [line.rpartition(" ")[0] for line in self._lines()]

    def sent_keys(self) -> list[str]:
        """Return the idempotency keys of the external calls since the last question."""
        return [line.rpartition(" ")[2] for line in self._lines()]

    def _lines(self) -> list[str]:
        file = self.folder / "calls.txt"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


async def play(app: Redrive, folder: Path) -> Shop:
    """Start two sales: the first fails because the bank is down, the second because of its country."""
    sell, order = app.find("sell"), app.find("sell").signature.decode
    async with app:
        ids = []
        for number, country in ((7, "PL"), (8, "PO")):
            bank = folder / "bank-is-down"
            bank.touch() if number == 7 else bank.unlink()
            fields = {"number": number, "country": country, "card_token": f"tok-{number}"}
            args, kwargs = order(json.dumps({"order": fields}))
            handle = await sell.start(*args, **kwargs, correlation_id=f"order-{number}")
            ids.append(handle.id)
            try:
                await handle.result(timeout=30)
            except RunFailed:
                continue
    return Shop(folder, app.settings.url, *ids)


def copied(shop: Shop, folder: Path) -> Shop:
    """Copy the shop to another folder, without its recorded calls."""
    for file in shop.folder.iterdir():
        if file.is_file() and file.name != "calls.txt":
            shutil.copy(file, folder)
    return replace(shop, folder=folder, url="sqlite:///shop.db")


@contextmanager
def working(shop: Shop) -> Iterator[None]:
    """Run a worker in a separate thread while the context is open; fail if it cannot start."""
    ready, over = threading.Event(), threading.Event()

    async def work() -> None:
        async with shop.app():
            ready.set()
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(asyncio.run, work())
        ended.add_done_callback(lambda _: ready.set())
        try:
            assert ready.wait(60)
            if ended.done():
                ended.result()
            yield
        finally:
            over.set()
        ended.result(60)


# -- fixtures, imported by conftest.py -----------------------------------------------------------------


@pytest.fixture(scope="session")
def played_shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    with contextlib.chdir(folder):
        unplayed = Shop(folder, f"sqlite:///{folder / 'shop.db'}", "", "")
        return asyncio.run(play(unplayed.app(), folder))


@pytest.fixture
def shop(played_shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Copy the shop to the current folder and name its store in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_URL", "sqlite:///shop.db")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    sys.modules.pop("shop", None)
    yield copied(played_shop, tmp_path)
    sys.modules.pop("shop", None)
