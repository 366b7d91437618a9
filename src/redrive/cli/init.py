"""`redrive init`: write a small project to start from."""

from __future__ import annotations

import click

from redrive.cli.errors import CONFLICT, CommandFailed
from redrive.cli.hints import list_path_commands
from redrive.cli.output import echo

PROJECT_FILES = {
    "shop.py": "shop.py.txt",
    "test_shop.py": "test_shop.py.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}
"""Files that `redrive init` writes, and the file of this package that each is copied from."""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False), default=".")
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
def init(folder: str, dry_run: bool) -> None:
    """Write a working example project into FOLDER: an app, a test, a README.

    Nothing is overwritten: if one of the files exists, none is written.

    \b
    Examples:
      redrive init shop
      redrive init shop --dry-run
    """
    import shlex
    from importlib.resources import files
    from pathlib import Path

    root = Path(folder)
    if existing := [name for name in PROJECT_FILES if (root / name).exists()]:
        raise CommandFailed(f"{root / existing[0]} exists, so nothing was written: name another folder", CONFLICT)
    source = files("redrive.cli").joinpath("project")
    for name, file in PROJECT_FILES.items():
        path = root / name
        if not dry_run:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source.joinpath(file).read_text(encoding="utf-8"), encoding="utf-8")
            except OSError as error:
                raise CommandFailed(f"{path} cannot be written ({error.strerror}): name another folder") from None
        echo(f"{'would write' if dry_run else 'wrote'} {path}")
    if not dry_run:
        enter = [] if folder == "." else [f"cd {shlex.quote(folder)}"]
        commands = [*list_path_commands(), *enter, "redrive dev shop:app"]
        echo("\n".join(["", "Next:", *(f"  {line}" for line in commands)]))
