"""`redrive demo`: a small shop whose workflows fail in every interesting way, and recover.

show      the demo from beginning to end
traffic   starts runs            crew    keeps a worker process alive (staff is that process)
dashboard serves it in a browser         people    who may sign in there
screen, plain, words    show what happens, read by redrive.cli.dev_feed
shop      the workflows          outside    the services they call, which fail
"""

from __future__ import annotations

import click

__all__ = ["demo"]


@click.command(short_help="Watch a small shop fail and recover.")
@click.option("--seconds", type=click.FloatRange(min=0), metavar="N", help="Stop by itself after N seconds.")
@click.option("--keep", is_flag=True, help="Keep the store when the demo ends, and say where it is.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Keep the store here. A folder of an earlier demo goes on where that one stopped.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="The dashboard's port; 0: a free one.  [default: 8700, or a free one where that is taken]",
)
def demo(seconds: float | None, keep: bool, folder: str | None, port: int | None) -> None:
    """Watch a small shop fail in every interesting way, and recover.

    Work keeps arriving; a worker in a process of its own executes it. Calls to the bank break off, are
    told to come back later, take too long or are refused; some kill the worker, which is started again.
    The dashboard shows it in a browser, to four people with different rights. Nothing but this machine
    is used. Ctrl-C ends it.

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
        from redrive.cli.demo.view import run_demo

        if folder is not None or keep:
            place = Path(folder or tempfile.mkdtemp(prefix="redrive-demo-")).resolve()
            place.mkdir(parents=True, exist_ok=True)
            run_demo(place, seconds=seconds, keep=True, port=port)
        else:
            with tempfile.TemporaryDirectory(prefix="redrive-demo-") as passing:
                run_demo(Path(passing).resolve(), seconds=seconds, keep=False, port=port)
    except RedriveError as error:
        raise click.ClickException(str(error)) from error
