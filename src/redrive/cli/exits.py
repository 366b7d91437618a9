"""How a command ends: the exit codes, and errors that become a message and one of them.

0  done
1  failed                     2  called wrongly
3  there is no such thing     4  conflict: it exists already, or has moved on
5  refused: a wrong value, or somebody said no
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from redrive.errors import RedriveError

__all__ = ["CONFLICT", "FAILED", "INTERRUPTED", "NOT_FOUND", "REFUSED", "Stopped", "code_of", "explained"]

FAILED = 1
NOT_FOUND = 3
CONFLICT = 4
REFUSED = 5
INTERRUPTED = 130


class Stopped(click.ClickException):
    """Ends a command with a message on standard error and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance


def code_of(error: RedriveError) -> int:
    """The exit code that tells a script what kind of error this is."""
    from redrive.errors import Conflict, InputError, NotFound, UnknownWorkflow

    match error:
        case NotFound() | UnknownWorkflow():
            return NOT_FOUND
        case Conflict():
            return CONFLICT
        case InputError():
            return REFUSED
        case _:
            return FAILED


@contextmanager
def explained() -> Iterator[None]:
    """Turn Redrive's errors, which say what to do, into the end of the command."""
    from redrive.errors import RedriveError

    try:
        yield
    except RedriveError as error:
        raise Stopped(str(error), code_of(error)) from error
