"""A fresh store for each measurement."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.plan import SQLITE
from bench.server import Server

__all__ = ["FOLDER", "Stores", "fresh_file", "prepare"]

FOLDER = Path(__file__).parent.parent / ".bench"


@dataclass(frozen=True, slots=True)
class Stores:
    """Sources of stores: files for SQLite, a server for PostgreSQL."""

    server: Server | None = None

    @contextmanager
    def fresh(self, kind: str) -> Iterator[str]:
        """Yield the URL of an empty store, and remove the store afterwards."""
        if kind == SQLITE:
            with fresh_file() as path:
                yield f"sqlite:///{path}"
        else:
            assert self.server is not None
            with self.server.database() as url:
                yield url

    def process(self, kind: str) -> int | None:
        """Return the first process of the server, if there is one and it is known."""
        return None if kind == SQLITE or self.server is None else self.server.process


@contextmanager
def fresh_file() -> Iterator[Path]:
    """Yield the path of a database file that does not exist yet, on the disk of the project."""
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
