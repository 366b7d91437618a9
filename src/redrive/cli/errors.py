"""Errors that end a command, their exit codes, and hints: the next command to type, the name that was meant.

A hint names the program so that the user's shell finds it, and repeats the `--app` and `--url` of the present
command. Values from the environment are not repeated: the next command reads them as well.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

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

_QUOTED_COMMAND = re.compile(r"`redrive ([^`]+)`")


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


def hint(*words: str) -> str:
    """Return `redrive WORDS` for the store and the app of this command."""
    return " ".join([program_name(), *words, *_repeat_option("app_name"), *_repeat_option("url")])


def circuit_hint(verb: str, key: str, tenant: str) -> str:
    """Return `redrive circuits VERB` for a circuit of a tenant."""
    return hint("circuits", verb, shlex.quote(key), *_tenant_arguments(tenant))


def schedule_hint(verb: str, workflow: str, name: str, tenant: str) -> str:
    """Return `redrive schedules VERB` for a schedule of a tenant."""
    return hint("schedules", verb, shlex.quote(workflow), shlex.quote(name), *_tenant_arguments(tenant))


def _tenant_arguments(tenant: str) -> list[str]:
    from redrive.core.roles import DEFAULT_TENANT

    return [] if tenant == DEFAULT_TENANT else ["--tenant", shlex.quote(tenant)]


def worker_hint(*options: str) -> str:
    """Return the command that starts a worker, with `module:app` if no app was named."""
    return " ".join([program_name(), "worker", app_name(), *_repeat_option("url"), *map(shlex.quote, options)])


def app_name() -> str:
    """Return the app of this command as `module:app`."""
    context = click.get_current_context(silent=True)
    return (context.params.get("app_name") if context else None) or "module:app"


def rewrite_hints(text: str) -> str:
    """Turn each `redrive ...` in a message of the engine into a hint for this command line."""
    return _QUOTED_COMMAND.sub(lambda found: f"`{hint(found[1])}`", text)


def _repeat_option(name: str) -> list[str]:
    """Return an option as the user typed it, without a password in a URL."""
    from click.core import ParameterSource

    context = click.get_current_context(silent=True)
    value = context.params.get(name) if context else None
    if context is None or not value or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
        return []
    if name == "app_name":
        return ["--app", value]
    from redrive.core.redact import Redactor

    return ["--url", shlex.quote(Redactor().text(value))]


def program_name() -> str:
    """Return what to type for `redrive`: the name if the shell finds it, else the path."""
    called = Path(sys.argv[0])
    if called.name.removesuffix(".exe") == "redrive":
        found = shutil.which("redrive")
        is_found = found and os.path.exists(found) and called.exists() and os.path.samefile(found, called)
        return "redrive" if is_found else sys.argv[0]
    # Called as `python -m redrive`; the script beside Python is shorter to type.
    script, here = Path(sys.executable).with_name("redrive"), Path.cwd()
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m redrive"
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def list_path_commands() -> list[str]:
    """Return the commands that make `redrive` available in a new terminal."""
    if program_name() == "redrive":
        return []
    folder = Path(sys.executable).parent
    activate = folder / "activate"
    if activate.exists():
        return [f". {shlex.quote(str(activate))}"]
    return [f'export PATH={shlex.quote(str(folder))}:"$PATH"']


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with the most similar names, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
