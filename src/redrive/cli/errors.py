"""Errors that end a command, and their exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from redrive.cli.hints import rewrite_hints
from redrive.cli.output import fold_text
from redrive.core.redact import escape_controls

if TYPE_CHECKING:
    from redrive.errors import RedriveError

FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4
REFUSED = 5
INTERRUPTED = 130


class CommandFailed(click.ClickException):
    """Ends a command with a message on standard error and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance

    def format_message(self) -> str:
        """Return the message that click prints after `Error:`."""
        return _format_error(self.message)


class UsageError(click.UsageError):
    """Ends a command that was called wrongly, with exit code 2."""

    def format_message(self) -> str:
        """Return the message that click prints after `Error:`."""
        return _format_error(self.message)


def _format_error(message: str) -> str:
    shown = escape_controls(message, lines=True)
    # Fold with the prefix that click adds, so that the first line has the right width.
    return fold_text(f"Error: {shown}", sys.stderr).removeprefix("Error: ")


def exit_code_for(error: RedriveError) -> int:
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
def report_errors() -> Iterator[None]:
    """End the command with a message and an exit code if Redrive raises one of its errors."""
    from redrive.errors import RedriveError, StoreUnavailable

    try:
        yield
    except StoreUnavailable as error:
        # The end of the message is about workers, which try again. A command does not.
        advice = "check that it runs and that the URL is right (--url, $REDRIVE_URL)"
        raise CommandFailed(f"{error.problem}: {advice}") from error
    except RedriveError as error:
        raise CommandFailed(rewrite_hints(str(error)), exit_code_for(error)) from error


@contextmanager
def report_usage_errors() -> Iterator[None]:
    """End the command with exit code 2 if a value from the command line is invalid."""
    from redrive.errors import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        raise CommandFailed(str(error), USAGE) from error
