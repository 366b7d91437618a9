"""Commands to type next, written so that they work where they are read.

A hint names the program in a way that the reader's shell understands, and carries on the `--app` and
`--url` that the present command was given. What came from the environment is there for the next
command as well, so it is left out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redrive.cli.output import fold_text
from redrive.core.redact import escape_controls

if TYPE_CHECKING:
    from redrive.errors import RedriveError

# -- How a command ends: the exit codes, and errors that become a message and one of them ----------------


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
        """The message as it is shown, after the word `Error:`."""
        return _format_error(self.message)


class UsageError(click.UsageError):
    """Ends a command that was called wrongly, with advice."""

    def format_message(self) -> str:
        """The message as it is shown, after the word `Error:`."""
        return _format_error(self.message)


def _format_error(message: str) -> str:
    shown = escape_controls(message, lines=True)
    return fold_text(f"Error: {shown}", sys.stderr).removeprefix("Error: ")


def exit_code_for(error: RedriveError) -> int:
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
def report_errors() -> Iterator[None]:
    """Turn Redrive's errors, which say what to do, into the end of the command."""
    from redrive.cli.messages import rewrite_hints
    from redrive.errors import RedriveError, StoreUnavailable

    try:
        yield
    except StoreUnavailable as error:
        what, _, _ = str(error).partition("; nothing is lost")  # a worker asks again, a command does not
        raise CommandFailed(f"{what}: see that it runs, and that the URL is right (--url, $REDRIVE_URL)") from error
    except RedriveError as error:
        raise CommandFailed(rewrite_hints(str(error)), exit_code_for(error)) from error


@contextmanager
def report_usage_errors() -> Iterator[None]:
    """The same around values from the command line: a wrong one means that the command was called wrongly."""
    from redrive.errors import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        raise CommandFailed(str(error), USAGE) from error


# -- Commands to type next, written so that they work where they are read --------------------------------


_QUOTED_COMMAND = re.compile(r"`redrive ([^`]+)`")
_APP_PLACEHOLDER = "module:app"


def hint(*words: str) -> str:
    """`redrive WORDS`, for the store and the app that this command is about."""
    return " ".join([program_name(), *words, *_target_arguments()])


def circuit_hint(verb: str, key: str, tenant: str) -> str:
    """`redrive circuits VERB` for this tenant's circuit and no other's."""
    return hint("circuits", verb, shlex.quote(key), *_tenant_arguments(tenant))


def schedule_hint(verb: str, workflow: str, name: str, tenant: str) -> str:
    """`redrive schedules VERB` for this tenant's schedule and no other's."""
    return hint("schedules", verb, shlex.quote(workflow), shlex.quote(name), *_tenant_arguments(tenant))


def _tenant_arguments(tenant: str) -> list[str]:
    from redrive.core.roles import DEFAULT_TENANT

    return [] if tenant == DEFAULT_TENANT else ["--tenant", shlex.quote(tenant)]


def worker_hint() -> str:
    """The command that starts a worker; `module:app` stands for an app that nobody has named."""
    return " ".join([program_name(), "worker", app_name(), *_repeat_option("url")])


def app_name() -> str:
    """The app this command is about, as `module:app`."""
    context = click.get_current_context(silent=True)
    return (context.params.get("target") if context else None) or _APP_PLACEHOLDER


def rewrite_hints(text: str) -> str:
    """A message of the engine, which knows nothing of command lines, with its `redrive ...` as hints."""
    return _QUOTED_COMMAND.sub(lambda found: f"`{hint(found[1])}`", text)


def _target_arguments() -> list[str]:
    return [*_repeat_option("target"), *_repeat_option("url")]


def _repeat_option(name: str) -> list[str]:
    """An option as it was given on the command line; a password in a URL is not repeated."""
    from click.core import ParameterSource

    context = click.get_current_context(silent=True)
    value = context.params.get(name) if context else None
    if context is None or not value or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
        return []
    if name == "target":
        return ["--app", value]
    from redrive.core.redact import Redactor

    return ["--url", shlex.quote(Redactor().text(value))]


def program_name() -> str:
    """What to type for `redrive`: its name if it was found by its name, else where it is."""
    called = Path(sys.argv[0])
    if called.name.removesuffix(".exe") == "redrive":
        found = shutil.which("redrive")
        return "redrive" if found and _is_same_file(Path(found), called) else sys.argv[0]
    script = Path(sys.executable).with_name("redrive")  # called as `python -m redrive`, which is longer
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m redrive"
    return shlex.quote(_shorten_path(script))


def list_path_commands() -> list[str]:
    """What to type first in a new terminal, wherever that is, so that `redrive` alone is enough."""
    if program_name() == "redrive":
        return []
    folder = Path(sys.executable).parent
    activate = folder / "activate"
    if activate.exists():
        return [f". {shlex.quote(str(activate))}"]
    return [f'export PATH={shlex.quote(str(folder))}:"$PATH"']


def _is_same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and os.path.samefile(one, other)


def _shorten_path(path: Path) -> str:
    """A path as seen from the current folder, if it lies in there."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
