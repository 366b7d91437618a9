"""SQL lives in `.sql` files, not in Python. This reads them.

A file holds statements like this one, each with a name and one line that says what it is for:

    -- name: run_by_id
    -- The run a caller asks for by its public id.
    SELECT ... FROM runs WHERE public_id = ?;
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

from redrive.errors import ConfigurationError

__all__ = ["load", "parse"]

_HEAD = re.compile(r"^-- name: (\S+)[ ]*\n", re.MULTILINE)


def load(package: str, file: str) -> Mapping[str, str]:
    """Read the statements of one file in a package's `statements` folder, by name."""
    return parse(files(package).joinpath("statements", file).read_text("utf-8"), file)


def parse(text: str, source: str) -> Mapping[str, str]:
    """Split a file into its named statements. A statement without a line of purpose is refused."""
    parts = _HEAD.split(text)
    found: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        purpose, _, statement = body.partition("\n")
        if not purpose.startswith("-- "):
            raise ConfigurationError(f"{source}: statement {name!r} needs one line that says what it is for")
        if name in found:
            raise ConfigurationError(f"{source}: two statements are called {name!r}")
        found[name] = statement.strip().removesuffix(";")
    return found
