"""Finding the app that `module:app` names, or saying what is wrong with it."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import CommandFailed, UsageError

if TYPE_CHECKING:
    from redrive.app import Redrive


def load_app(target: str) -> Redrive:
    """Import the module and return its app. Modules in the current folder are found, too.

    UsageError: the name is wrong. ClickException: the name is right, but the app cannot be used.
    """
    module_name, attribute = _parse_app_name(target)
    module = _import_module(module_name)
    value = _get_attribute(module, attribute)
    return _require_app(module, attribute, value)


def _parse_app_name(target: str) -> tuple[str, str]:
    module, colon, attribute = target.partition(":")
    if module.endswith(".py") or "/" in module or "\\" in module:
        dotted = ".".join(Path(module).with_suffix("").parts)
        raise _app_name_error(target, f"a module is named with dots and without .py: {dotted}:{attribute or 'app'}")
    if not colon or not attribute:
        raise _app_name_error(target, f"name the app inside the module as well: {module or 'module'}:app")
    parts = [*module.split("."), *attribute.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise _app_name_error(target, "write module:app, such as shop:app or company.shop:app")
    return module, attribute


def _app_name_error(target: str, advice: str) -> UsageError:
    return UsageError(f"{target!r} does not name an app: {advice}")


# -- the module ----------------------------------------------------------------------------------------


def _import_module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failure(name, error) from error
        raise UsageError(_describe_missing_module(error.name, name)) from error
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def _describe_missing_module(missing: str, name: str) -> str:
    parent, _, last = missing.rpartition(".")
    where = parent or f"the current folder ({os.getcwd()}) and on Python's path"
    return f"there is no module {missing!r} in {where}{_suggest_names(last, _list_sibling_modules(parent))}" + (
        "" if missing == name else f" (looking for {name!r})"
    )


def _list_sibling_modules(package: str) -> list[str]:
    """The modules beside the one that was not found."""
    folders = sys.modules[package].__path__ if package in sys.modules else [os.getcwd()]
    found: list[str] = []
    for folder in map(Path, folders):
        found += (path.stem for path in folder.glob("*.py") if path.stem.isidentifier())
        found += (path.parent.name for path in folder.glob("*/__init__.py"))
    return found


def _import_failure(name: str, error: BaseException) -> click.ClickException:
    """The app's own error, at the last place in its own code."""
    lines = [f"module {name!r} could not be imported:"]
    frame = _find_app_frame(error)
    if frame is not None and not isinstance(error, SyntaxError):
        lines += traceback.format_list([frame])[0].rstrip().splitlines()
    lines += "".join(traceback.format_exception_only(error)).rstrip().splitlines()
    return click.ClickException("\n".join(lines))


def _find_app_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame that belongs neither to Python, to an installed package, nor to Redrive."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame for frame in reversed(frames) if _is_app_file(frame.filename)), None)


def _is_app_file(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    paths = sysconfig.get_paths()
    foreign = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]]
    foreign.append(str(Path(__file__).parents[1]))
    return not os.path.realpath(filename).startswith(tuple(os.path.realpath(path) + os.sep for path in foreign))


# -- the app in it -------------------------------------------------------------------------------------


def _get_attribute(module: ModuleType, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            hint = _suggest_apps(module) or _suggest_names(name, [known for known in vars(module) if known[0] != "_"])
            raise UsageError(f"module {module.__name__!r} has no {path!r}{hint}") from None
    return value


def _require_app(module: ModuleType, attribute: str, value: Any) -> Redrive:
    from redrive.app import Redrive

    name = f"{module.__name__}:{attribute}"
    if not isinstance(value, Redrive):
        hint = _suggest_apps(module)
        if callable(value) and not hint:
            hint = f". If it makes one, call it in the module and name the result: app = {attribute}()"
        raise UsageError(f"{name} is no Redrive, but {_describe_type(value)}{hint}")
    if not value.registered_workflows:
        raise CommandFailed(
            f"{name} has no workflows, so there is nothing to run: decorate a function with @app.workflow, "
            "and see to it that this module imports the modules that do"
        )
    return value


def _describe_type(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _suggest_apps(module: ModuleType) -> str:
    from redrive.app import Redrive

    names = [name for name, value in vars(module).items() if isinstance(value, Redrive)]
    if not names:
        return ""
    return f"; the module has the app{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def _suggest_names(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
