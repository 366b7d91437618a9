"""`redrive dev`: a worker, and everything it decides, in one terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.messages import CONFLICT, CommandFailed, report_errors
from redrive.cli.output import echo
from redrive.cli.server import DEFAULT_HOST, DEFAULT_PORT

if TYPE_CHECKING:
    from pathlib import Path

# -- `redrive dev`: a worker, and everything it decides, in one terminal ---------------------------------


@click.command(short_help="Run workflows here, and see what happens.")
@click.argument("target", metavar="MODULE:APP")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Runs to execute at the same time.")
@click.option(
    "--url",
    metavar="URL",
    help="The store to work on.  [default: the app's own, else $REDRIVE_URL, else sqlite:///redrive.db]",
)
@click.option(
    "--host", default=DEFAULT_HOST, metavar="ADDRESS", show_default=True, help="Where the dashboard and the API listen."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    metavar="N",
    show_default=True,
    help="Its port; 0: a free one.",
)
@click.option("--no-server", is_flag=True, help="Do not serve the dashboard and the API.")
def dev(target: str, concurrency: int | None, url: str | None, host: str, port: int, no_server: bool) -> None:
    """Run the workflows of APP in MODULE here, and show what happens to every run.

    For development: a worker as `redrive worker` has it, the API as `redrive server` has it, and a line
    for each decision about a step and each ending of a run. Ctrl-C stops it in good order.

    \b
    Examples:
      redrive dev shop:app
      redrive dev shop:app --url sqlite:///scratch.db
    """
    from redrive.cli.dev_feed import EventPrinter
    from redrive.cli.target import load_app
    from redrive.cli.worker import override_settings
    from redrive.cli.worker_process import ApiBesideWorker, StopController, run_worker

    with report_errors():
        app = load_app(target)
        override_settings(app, concurrency, url)
        live, beside = EventPrinter(app), None if no_server else ApiBesideWorker(app, host, port)

        def also(stop: StopController) -> None:
            live.begin(stop)
            if beside is not None:
                beside.begin(stop)

        import logging

        logging.getLogger("redrive.runs").setLevel(logging.CRITICAL)  # what it says is shown here anyway
        run_worker(app, also=also)


# -- `redrive init`: a small project that works, to begin from -------------------------------------------


PROJECT_FILES = {
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
    if there := [name for name in PROJECT_FILES if (place / name).exists()]:
        raise CommandFailed(f"{place / there[0]} exists already, so nothing was written: name another folder", CONFLICT)
    source = files("redrive.cli").joinpath("project")
    for name, file in PROJECT_FILES.items():
        if not dry_run:
            _write_file(place / name, source.joinpath(file).read_text(encoding="utf-8"))
        echo(f"{'would write' if dry_run else 'wrote'} {place / name}")
    if not dry_run:
        echo("\n".join(["", "Next:", *(f"  {line}" for line in _list_next_commands(folder))]))


def _write_file(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written ({error.strerror}): name another folder") from None


def _list_next_commands(folder: str) -> list[str]:
    import shlex

    from redrive.cli.messages import list_path_commands

    enter = [] if folder == "." else [f"cd {shlex.quote(folder)}"]
    return [*list_path_commands(), *enter, "redrive dev shop:app"]
