"""`redrive dev` and `redrive init`: run workflows during development, and write a first project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.messages import CONFLICT, CommandFailed, list_path_commands, report_errors
from redrive.cli.output import echo
from redrive.cli.server import HOST_OPTION, PORT_OPTION
from redrive.cli.target import load_app
from redrive.cli.worker import override_settings

if TYPE_CHECKING:
    from redrive.cli.worker_process import StopController

PROJECT_FILES = {
    "shop.py": "shop.py.txt",
    "test_shop.py": "test_shop.py.txt",
    "README.md": "README.md.txt",
    ".gitignore": "gitignore.txt",
}
"""Files that `redrive init` writes, and the file of this package that each is copied from."""


@click.command()
@click.argument("app_name", metavar="MODULE:APP")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Runs to execute at the same time.")
@click.option(
    "--url",
    metavar="URL",
    help="The store to work on.  [default: the app's own, else $REDRIVE_URL, else sqlite:///redrive.db]",
)
@HOST_OPTION
@PORT_OPTION
@click.option("--no-server", is_flag=True, help="Do not serve the dashboard and the API.")
def dev(app_name: str, concurrency: int | None, url: str | None, host: str, port: int, no_server: bool) -> None:
    """Run the workflows of APP in MODULE, and print every event of every run.

    For development: a worker as in `redrive worker`, the dashboard and the API as in `redrive server`, and a
    line for each decision about a step and each end of a run. Ctrl-C stops it.

    \b
    Examples:
      redrive dev shop:app
      redrive dev shop:app --url sqlite:///scratch.db
    """
    import asyncio
    import logging

    from redrive.cli.dev_feed import print_events
    from redrive.cli.worker_process import run_worker, serve_beside_worker

    with report_errors():
        app = load_app(app_name)
        override_settings(app, concurrency, url)
        tasks: list[asyncio.Task[None]] = []  # the event loop itself holds only weak references

        def start_others(stop: StopController) -> None:
            tasks.append(asyncio.create_task(print_events(app, stop)))
            if not no_server:
                tasks.append(asyncio.create_task(serve_beside_worker(app, host, port, stop)))

        logging.getLogger("redrive.runs").setLevel(logging.CRITICAL)  # the printer shows the same events
        run_worker(app, also=start_others)


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
