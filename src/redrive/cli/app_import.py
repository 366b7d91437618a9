"""The import of the user's app that `module:app` names, and the errors of a wrong name or a broken module."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import CommandFailed, UsageError, suggest_names

if TYPE_CHECKING:
    from redrive.app import Redrive


def load_app(app_name: str) -> Redrive:
    """Import the module of `module:app` and return its app. The current folder is on the path as well.

    UsageError: the name is wrong. ClickException: the name is right, but the app cannot be used.
    """
    from redrive.app import Redrive

    module_name, colon, attribute = app_name.partition(":")
    mistake = None
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        dotted = ".".join(Path(module_name).with_suffix("").parts)
        mistake = f"a module is named with dots and without .py: {dotted}:{attribute or 'app'}"
    elif not colon or not attribute:
        mistake = f"name the app inside the module as well: {module_name or 'module'}:app"
    elif not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        mistake = "write module:app, such as shop:app or company.shop:app"
    if mistake is not None:
        raise UsageError(f"{app_name!r} does not name an app: {mistake}")
    module = _import_module(module_name)
    apps = [name for name, value in vars(module).items() if isinstance(value, Redrive)]
    advice = f"; the module has the app{'s' * (len(apps) > 1)} {', '.join(map(repr, apps))}" if apps else ""
    value: Any = module
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            advice = advice or suggest_names(name, [known for known in vars(module) if known[0] != "_"])
            raise UsageError(f"module {module_name!r} has no {attribute!r}{advice}") from None
    if not isinstance(value, Redrive):
        if callable(value) and not advice:
            advice = f". If it makes one, call it in the module and name the result: app = {attribute}()"
        kind = type(value).__name__
        article = "an" if kind[0] in "aeiou" else "a"
        raise UsageError(f"{module_name}:{attribute} is {article} {kind}, not a Redrive app{advice}")
    if not value.registered_workflows:
        raise CommandFailed(
            f"{module_name}:{attribute} has no workflows to run: decorate a function with @app.workflow, and import "
            "the modules that do so in this module"
        )
    return value


def _import_module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise _import_failure(name, error) from error  # the module exists and imports one that does not
        package, _, last = missing.rpartition(".")
        folders = sys.modules[package].__path__ if package in sys.modules else [here]
        siblings: list[str] = []
        for folder in map(Path, folders):
            siblings += (path.stem for path in folder.glob("*.py") if path.stem.isidentifier())
            siblings += (path.parent.name for path in folder.glob("*/__init__.py"))
        where = package or f"the current folder ({here}) and on Python's path"
        full_name = "" if missing == name else f" (looking for {name!r})"
        advice = suggest_names(last, siblings)
        raise UsageError(f"module {missing!r} was not found in {where}{advice}{full_name}") from error
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def _import_failure(name: str, error: BaseException) -> click.ClickException:
    """Return the error of the user's module with the innermost line of the user's code."""
    import sysconfig
    import traceback

    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], str(Path(__file__).parents[1])]
    foreign = tuple(os.path.realpath(folder) + os.sep for folder in folders)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not os.path.realpath(frame.filename).startswith(foreign)
    ]
    lines = [f"module {name!r} could not be imported:"]
    if frames and not isinstance(error, SyntaxError):  # a SyntaxError names its line itself
        lines += traceback.format_list(frames[-1:])[0].rstrip().splitlines()
    lines += "".join(traceback.format_exception_only(error)).rstrip().splitlines()
    return click.ClickException("\n".join(lines))
