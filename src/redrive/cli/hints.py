"""Hints in output and errors: the next command to type, and the name that was meant.

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
from collections.abc import Iterable
from pathlib import Path

import click

_QUOTED_COMMAND = re.compile(r"`redrive ([^`]+)`")


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
