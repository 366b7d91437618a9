"""`redrive demo`: a sample shop with typical failures, and how it recovers.

run         opens the store, and starts all of these together with the dashboard
shop        the workflows           services     the services they call, which fail
worker      the process that executes the runs
plain_view  lines of text           screen_view  a live view of the whole terminal; both show redrive.cli.run_feed
"""

from __future__ import annotations

import shlex

import click

from redrive.cli.hints import list_path_commands

__all__ = ["demo", "list_commands"]

_COMMANDS = (  # with True if a small screen shows it as well
    ("redrive dlq list                # failures that need a decision", True),
    ("redrive dlq show ID             # what happened, and the next commands", True),
    ("redrive dlq replay ID --dry-run # what would run again; then without --dry-run", True),
    ("redrive dlq edit ID             # correct the input and run it again", False),
    ("redrive dlq resolve ID          # close it without running it again", False),
    ("redrive dlq groups              # failures by their cause", False),
    ("redrive schedules list          # scheduled runs, and when the next one starts", False),
    ("redrive runs list               # then: redrive runs show ID, runs why ID", True),
)


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0), metavar="N", help="Stop after N seconds.")
@click.option("--keep", is_flag=True, help="Keep the store when the demo ends, and print its path.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Keep the store here. The folder of an earlier demo is continued.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="The dashboard's port; 0: a free one.  [default: 8700, or a free one if that is taken]",
)
def demo(seconds: float | None, keep: bool, folder: str | None, port: int | None) -> None:
    """Watch a sample shop with typical failures, and how it recovers.

    New orders keep arriving, and a worker process executes them. Calls to the bank lose their connection,
    are rate limited, time out or are refused. Some kill the worker, which is started again. The dashboard
    shows it in a browser, to four users with different roles. The demo uses nothing outside this machine.
    Ctrl-C ends it.

    \b
    Examples:
      redrive demo
      redrive demo --seconds 30 --keep
      redrive demo --dir shop | tee shop.log
    """
    import tempfile
    from pathlib import Path

    from redrive.errors import RedriveError

    try:
        from redrive.cli.demo.run import run_demo

        if folder is not None or keep:
            path = Path(folder or tempfile.mkdtemp(prefix="redrive-demo-")).resolve()
            path.mkdir(parents=True, exist_ok=True)
            run_demo(path, seconds=seconds, keep=True, port=port)
        else:
            with tempfile.TemporaryDirectory(prefix="redrive-demo-") as name:
                run_demo(Path(name).resolve(), seconds=seconds, keep=False, port=port)
    except RedriveError as error:
        raise click.ClickException(str(error)) from error


def list_commands(url: str, *, few: bool = False) -> list[str]:
    """List commands to type in another terminal; `few` of them for a small screen."""
    commands = [line for line, always in _COMMANDS if always or not few]
    return [*list_path_commands(), f"export REDRIVE_URL={shlex.quote(url)}", *commands]
