"""How a command ends: the exit codes, and errors that become a message and one of them.

0  done
1  failed                     2  called wrongly: an option, a field or its value
3  there is no such thing     4  conflict: it exists already, or has moved on
5  refused: an input that does not fit the workflow, an id that fits several things, or somebody said no
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from redrive.cli.folding import folded
from redrive.core.control_text import escape_controls

if TYPE_CHECKING:
    from redrive.errors import RedriveError

__all__ = [
    "CONFLICT",
    "FAILED",
    "INTERRUPTED",
    "NOT_FOUND",
    "REFUSED",
    "USAGE",
    "Misused",
    "Stopped",
    "code_of",
    "explained",
    "well_called",
]

FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
REFUSED = 5
INTERRUPTED = 130


class Stopped(click.ClickException):
    """Ends a command with a message on standard error and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance

    def format_message(self) -> str:
        """The message as it is shown, after the word `Error:`."""
        return _shown(self.message)


class Misused(click.UsageError):
    """Ends a command that was called wrongly, with advice."""

    def format_message(self) -> str:
        """The message as it is shown, after the word `Error:`."""
        return _shown(self.message)


def _shown(message: str) -> str:
    shown = escape_controls(message, lines=True)
    return folded(f"Error: {shown}", sys.stderr).removeprefix("Error: ")


def code_of(error: RedriveError) -> int:
    """The exit code that tells a script what kind of error this is."""
    from redrive.errors import Conflict, InputError, NotAllowed, NotFound, NotSignedIn, UnknownWorkflow

    match error:
        case NotFound() | UnknownWorkflow():
            return NOT_FOUND
        case Conflict():
            return CONFLICT
        case InputError() | NotAllowed() | NotSignedIn():
            return REFUSED
        case _:
            return FAILED


@contextmanager
def explained() -> Iterator[None]:
    """Turn Redrive's errors, which say what to do, into the end of the command."""
    from redrive.cli.hints import rewritten
    from redrive.errors import RedriveError, StoreUnavailable

    try:
        yield
    except StoreUnavailable as error:
        what, _, _ = str(error).partition("; nothing is lost")  # a worker asks again, a command does not
        raise Stopped(f"{what}: see that it runs, and that the URL is right (--url, $REDRIVE_URL)") from error
    except RedriveError as error:
        raise Stopped(rewritten(str(error)), code_of(error)) from error


@contextmanager
def well_called() -> Iterator[None]:
    """The same around values from the command line: a wrong one means that the command was called wrongly."""
    from redrive.errors import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        raise Stopped(str(error), USAGE) from error
