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
from pathlib import Path

import click

__all__ = ["circuit_hint", "hint", "program", "rewritten", "ways_to_find", "worker_hint"]

_QUOTED = re.compile(r"`redrive ([^`]+)`")
_ANY_APP = "module:app"


def hint(*words: str) -> str:
    """`redrive WORDS`, for the store and the app that this command is about."""
    return " ".join([program(), *words, *_place()])


def circuit_hint(verb: str, key: str, tenant: str) -> str:
    """`redrive circuits VERB` for this tenant's circuit and no other's."""
    return hint("circuits", verb, shlex.quote(key), *_of_tenant(tenant))


def schedule_hint(verb: str, workflow: str, name: str, tenant: str) -> str:
    """`redrive schedules VERB` for this tenant's schedule and no other's."""
    return hint("schedules", verb, shlex.quote(workflow), shlex.quote(name), *_of_tenant(tenant))


def _of_tenant(tenant: str) -> list[str]:
    from redrive.core.roles import DEFAULT_TENANT

    return [] if tenant == DEFAULT_TENANT else ["--tenant", shlex.quote(tenant)]


def worker_hint() -> str:
    """The command that starts a worker; `module:app` stands for an app that nobody has named."""
    return " ".join([program(), "worker", app_name(), *_option("url")])


def app_name() -> str:
    """The app this command is about, as `module:app`."""
    context = click.get_current_context(silent=True)
    return (context.params.get("target") if context else None) or _ANY_APP


def rewritten(text: str) -> str:
    """A message of the engine, which knows nothing of command lines, with its `redrive ...` as hints."""
    return _QUOTED.sub(lambda found: f"`{hint(found[1])}`", text)


def _place() -> list[str]:
    return [*_option("target"), *_option("url")]


def _option(name: str) -> list[str]:
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


# -- the program ---------------------------------------------------------------------------------------


def program() -> str:
    """What to type for `redrive`: its name if it was found by its name, else where it is."""
    called = Path(sys.argv[0])
    if called.name.removesuffix(".exe") == "redrive":
        found = shutil.which("redrive")
        return "redrive" if found and _same(Path(found), called) else sys.argv[0]
    script = Path(sys.executable).with_name("redrive")  # called as `python -m redrive`, which is longer
    if not script.exists():
        return f"{shlex.quote(sys.executable)} -m redrive"
    return shlex.quote(_near(script))


def ways_to_find() -> list[str]:
    """What to type first in a new terminal, wherever that is, so that `redrive` alone is enough."""
    if program() == "redrive":
        return []
    folder = Path(sys.executable).parent
    activate = folder / "activate"
    if activate.exists():
        return [f". {shlex.quote(str(activate))}"]
    return [f'export PATH={shlex.quote(str(folder))}:"$PATH"']


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and os.path.samefile(one, other)


def _near(path: Path) -> str:
    """A path as seen from the current folder, if it lies in there."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
