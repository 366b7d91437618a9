"""The `redrive` command. Exit codes: 0 done, 1 failed, 2 called wrongly.

This module and the commands' own modules import nothing but click, so that `redrive --help` answers
at once; what a command needs it imports when it is called.
"""

from __future__ import annotations

import click

from redrive.cli.demo import demo
from redrive.cli.worker import worker

__all__ = ["main"]

_EXAMPLES = """\b
Examples:
  redrive demo                    watch a small shop fail and recover
  redrive worker shop:app         run the workflows of `app` in shop.py
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLES)
@click.version_option(package_name="redrive", message="redrive %(version)s")
def main() -> None:
    """Durable workflows whose speciality is failure."""


main.add_command(worker)
main.add_command(demo)
