"""Fixtures for the tests of the command line."""

import asyncio
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from console import Terminal
from dlq_kit import played_shop as played_shop
from dlq_kit import shop as shop
from toy_store import TOYS, Toys, play

from redrive.record_fields import replace


@pytest.fixture(autouse=True)
def called_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the program name and PATH so that commands see the `redrive` script instead of pytest."""
    script = Path(sys.executable).with_name("redrive")
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    folder = tmp_path_factory.mktemp("played")
    (folder / "toys.py").write_text(TOYS, encoding="utf-8")
    app = runpy.run_path(str(folder / "toys.py"))["app"]
    app.settings = replace(app.settings, url=f"sqlite:///{folder / 'toys.db'}")
    return asyncio.run(play(app, folder))


@pytest.fixture
def toys(played: Toys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Toys]:
    """Copy the store to the current folder and name it in the environment."""
    for file in played.folder.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_URL", "sqlite:///toys.db")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    sys.modules.pop("toys", None)
    yield replace(played, folder=tmp_path, url="sqlite:///toys.db")
    sys.modules.pop("toys", None)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Return a function that runs commands on terminals; kill the running ones at the end of a test."""
    opened: list[Terminal] = []

    def open_(*arguments: str, **environment: str) -> Terminal:
        opened.append(Terminal(tmp_path, *arguments, **environment))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()
