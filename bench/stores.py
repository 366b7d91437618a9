"""A fresh store for each measurement."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FOLDER", "fresh_file"]

FOLDER = Path(__file__).parent.parent / ".bench"


@contextmanager
def fresh_file() -> Iterator[Path]:
    """The path of a database file that does not exist yet, on the disk the project lies on."""
    prepare()
    folder = Path(tempfile.mkdtemp(prefix="store-", dir=FOLDER))
    try:
        yield folder / "bench.db"
    finally:
        shutil.rmtree(folder)


def prepare() -> None:
    """Make the folder for stores and peers, which git is told to ignore."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n", encoding="utf-8")
