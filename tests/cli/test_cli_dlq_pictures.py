"""Terminal examples in docs/guides/triage.md, compared with the real output.

Each block that begins with `$ redrive` is typed on a terminal, in the order of the page, in a small shop
with a worker. An answer that the page shows behind a question is given. Ids, times and the widths of bars
are not compared, and `…` stands for any text.
"""

import asyncio
import contextlib
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from console import PATIENCE, Terminal, piped
from dlq_kit import Shop, play, working

PAGE = Path(__file__).parents[2] / "docs/guides/triage.md"
DOWN, WRONG = "01k9x7ha3vq4d2m8t6c5b0ne1w", "01k9x7j5rr0c9f3z7wt2e8sd4m"
SHOP = """
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from redrive import NonRetryable, Redrive, RetryPolicy

app = Redrive(lease="5s")
VAT = {"DE": Decimal("0.19"), "PL": Decimal("0.23")}


@dataclass
class ReplayOrder:
    number: int
    country: str
    card_token: str


@app.step
async def reserve(order: ReplayOrder) -> str:
    return f"R-{order.number}"


@app.step(effect="charges the card", retry=RetryPolicy(max_retries=2, base_delay="20ms", jitter=0))
async def charge(order: ReplayOrder) -> str:
    if Path("bank-is-down").exists():
        raise ConnectionError("the bank does not answer")
    return f"payment {order.number}"


@app.step(effect="writes to the books")
async def book(order: ReplayOrder) -> str:
    if order.country not in VAT:
        raise NonRetryable(f"there is no VAT rate for {order.country}")  # language: text of the guide
    return f"booked with {VAT[order.country]} VAT"


@app.workflow
async def sell(order: ReplayOrder) -> str:
    await reserve(order)
    await charge(order)
    return await book(order)
"""
EDITOR = """
import pathlib, sys
file = pathlib.Path(sys.argv[1])
text = file.read_text("utf-8")
pathlib.Path("seen").write_text(text, "utf-8")
file.write_text(text.replace('"PO"', '"PL"'), "utf-8")
"""
_VARIES = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "<time>"),
    (r"next at \d\d:\d\d:\d\d", "next at <time>"),
    (r"\d{4}-\d\d-\d\d UTC", "<day> UTC"),
    (r"\((now|(\d+ (ms|s|m) )+ago)\)|\b(now|(\d+ (ms|s|m) )+ago)\b *", "<ago>"),
    (r" [█╌ ]*[█╌][█╌ ]* +(under )?[\d.]+ m?s\b", " <bar>"),
    (r"[▁▂▃▄▅▆▇█]{24}", "<trend>"),
    (r"\bbulk action [0-9a-z]{26}", "bulk action <id>"),
]


def pictures() -> Iterator[str]:
    yield from re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def normalize_screen(text: str) -> str:
    """Return the text without values that vary; each run of whitespace becomes one space."""
    for pattern, name in _VARIES:
        text = re.sub(pattern, name, text)
    return " ".join(text.split())


def assert_shows(screen: str, picture: str) -> None:
    parts = (re.escape(part.strip()) for part in normalize_screen(picture).split("…"))
    shown = re.fullmatch(r"\s?.*?\s?".join(parts), normalize_screen(screen))
    assert shown, f"shown:\n{screen}\n\nthe page:\n{picture}"


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Create the shop of the page, with one failure at the bank and one in the data."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "editor.py").write_text(EDITOR, encoding="utf-8")
    monkeypatch.setenv("REDRIVE_URL", f"sqlite:///{tmp_path / 'shop.db'}")
    monkeypatch.setenv("EDITOR", f"{sys.executable} {tmp_path / 'editor.py'}")
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.setenv("LOGNAME", "kim")
    shop = Shop(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", "", "")
    with contextlib.chdir(tmp_path):
        return asyncio.run(play(shop.app(), tmp_path))


def test_the_terminal_examples_of_the_guide_match_the_output(
    real: Shop, terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(real.folder)
    ids = {DOWN: real.down, WRONG: real.wrong}
    shown = 0
    with working(real):
        _until_counted()
        for picture in pictures():
            if picture.startswith("# The input"):
                screen = (real.folder / "seen").read_text(encoding="utf-8")
                assert_shows(_paged(screen, ids), picture)
                continue
            command, _, wanted = picture.partition("\n")
            assert command.startswith("$ redrive "), command
            typed = terminal(*shlex.split(_real(command[2:], ids))[1:])
            for answer in re.findall(r"\[y/N\]: (\w)", picture):
                typed.wait_for("[y/N]:")
                typed.type(f"{answer}\n")
            typed.end()
            assert_shows(_paged(typed.text, ids), wanted)
            shown += 1
    assert shown >= 10


def _until_counted() -> None:
    """Wait until the worker has counted the groups, which it does with a delay."""
    limit = time.monotonic() + PATIENCE
    while len(piped("dlq", "groups", "-q").output.split()) < 2:
        assert time.monotonic() < limit


def _paged(text: str, ids: dict[str, str]) -> str:
    for on_page, id in ids.items():
        text = text.replace(id, on_page)
    return text


def _real(text: str, ids: dict[str, str]) -> str:
    for on_page, id in ids.items():
        text = text.replace(on_page, id)
    return text


def test_a_wrong_terminal_example_is_detected() -> None:
    assert_shows("run 7 ended 3 s ago\n", "run 7 ended 8 s ago")
    assert_shows("a\nb\nc\n", "a\n…\nc")
    with pytest.raises(AssertionError, match="the page"):
        assert_shows("run 7 failed\n", "run 7 ended")
