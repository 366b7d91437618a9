"""`redrive init`: a small project that works, to begin from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.exits import CONFLICT, Stopped
from redrive.cli.output import echo

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["init"]

FILES = {
    "shop.py": "shop.py.txt",
    "test_shop.py": "test_shop.py.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}
"""What is written, and the file of the package that it is copied from."""


@click.command(short_help="Write a small project to begin from.")
@click.argument("folder", type=click.Path(file_okay=False), default=".")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
def init(folder: str, dry_run: bool) -> None:
    """Write a working example project into FOLDER: an app, a test, a README.

    Nothing is overwritten: if one of the files is there already, none is written.

    \b
    Examples:
      redrive init shop
      redrive init shop --dry-run
    """
    from importlib.resources import files
    from pathlib import Path

    place = Path(folder)
    if there := [name for name in FILES if (place / name).exists()]:
        raise Stopped(
            f"{place / there[0]} exists already, so nothing was written: name another folder", CONFLICT
        )
    source = files("redrive.cli").joinpath("project")
    for name, file in FILES.items():
        if not dry_run:
            _write(place / name, source.joinpath(file).read_text(encoding="utf-8"))
        echo(f"{'would write' if dry_run else 'wrote'} {place / name}")
    if not dry_run:
        echo("\n".join(["", "Next:", *(f"  {line}" for line in _next(folder))]))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Stopped(f"{path} cannot be written ({error.strerror}): name another folder") from None


def _next(folder: str) -> list[str]:
    import shlex

    from redrive.cli.hints import ways_to_find

    enter = [] if folder == "." else [f"cd {shlex.quote(folder)}"]
    return [*ways_to_find(), *enter, "redrive dev shop:app"]
