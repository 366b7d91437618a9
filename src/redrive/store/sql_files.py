"""Reader of `.sql` files: statements and migrations.

A file of statements gives each a name and one line about its purpose:

    -- name: run_by_id
    -- The run a caller asks for by its public id.
    SELECT ... FROM runs WHERE public_id = ?;
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from redrive.errors import ConfigurationError, SchemaMismatch

_STATEMENT_HEAD = re.compile(r"^-- name: (\S+)[ ]*\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
# `redrive.tenant` is a setting, not a table: it has the same name in every schema.
_SCHEMA = re.compile(r"\bredrive(?=\.(?!tenant\b))|(?<=\bSCHEMA )redrive\b")
_MIGRATION_NAME = re.compile(r"^(\d{4})_(\w+)\.sql$")
_OLDEST_CODE = re.compile(r"^-- oldest code: (\d+)[ ]*$", re.MULTILINE)


def load_statements(package: str, file: str) -> Mapping[str, str]:
    """Return the statements of one file in a package's `statements` folder, by name."""
    return parse_statements((_find_folder(package) / "statements" / file).read_text("utf-8"), file)


def _find_folder(package: str) -> Path:
    """Return the folder of a package. `importlib.resources` would do so as well, and is slow to import."""
    return Path(import_module(package).__path__[0])


def parse_statements(text: str, source: str) -> Mapping[str, str]:
    """Split a file into its named statements. Each must have a line about its purpose."""
    parts = _STATEMENT_HEAD.split(text)
    found: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        purpose, _, statement = body.partition("\n")
        if not purpose.startswith("-- "):
            raise ConfigurationError(f"{source}: statement {name!r} needs one line about its purpose")
        if name in found:
            raise ConfigurationError(f"{source}: two statements have the name {name!r}")
        found[name] = statement.strip().removesuffix(";")
    return found


class NumberedStatement(msgspec.Struct, frozen=True, gc=False):
    """A statement as PostgreSQL takes it, with the names of its parameters in the order of their numbers."""

    text: str
    names: tuple[str, ...]

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the values in the order of the parameters."""
        return [values[name] for name in self.names]


@functools.lru_cache(maxsize=4096)
def number_parameters(text: str) -> NumberedStatement:
    """Replace each `:name` by `$1`, `$2` and so on; a name that occurs twice is one parameter."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}"

    numbered = _PARAMETER.sub(number, text)
    return NumberedStatement(numbered, tuple(names))


def load_numbered_statements(package: str, file: str) -> dict[str, NumberedStatement]:
    """Return the statements of one file with numbered parameters, by name."""
    return {name: number_parameters(text) for name, text in load_statements(package, file).items()}


@functools.lru_cache(maxsize=4096)
def replace_schema(text: str, schema: str) -> str:
    """Replace the schema `redrive` by another one in a statement."""
    return text if schema == "redrive" else _SCHEMA.sub(schema, text)


class Migration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A schema change that this code ships."""

    version: int
    name: str
    text: str
    oldest_code: int

    @property
    def checksum(self) -> str:
        """Hash of the file's text. Line ends do not matter."""
        return _checksum(self.text)


class AppliedMigration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A schema change that a store has had."""

    version: int
    checksum: str
    oldest_code: int


@functools.cache
def _checksum(text: str) -> str:
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()


def load_migrations(package: str) -> list[Migration]:
    """Return the migrations in a package's `migrations` folder, in order. They are read once."""
    return list(_read_migrations(package))


@functools.cache
def _read_migrations(package: str) -> tuple[Migration, ...]:
    found = [
        parse_migration(item.name, item.read_text("utf-8"))
        for item in (_find_folder(package) / "migrations").iterdir()
        if item.name.endswith(".sql")
    ]
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ConfigurationError(f"the migrations of {package} are not numbered 0001, 0002, ... without a gap")
    return tuple(found)


def parse_migration(file: str, text: str) -> Migration:
    """Return a migration from the name and the text of its file."""
    name, oldest = _MIGRATION_NAME.match(file), _OLDEST_CODE.search(text)
    if name is None or oldest is None:
        raise ConfigurationError(
            f"migration {file!r} must be named like 0001_words.sql and contain a line '-- oldest code: N'"
        )
    return Migration(version=int(name[1]), name=name[2], text=text, oldest_code=int(oldest[1]))


def outstanding_migrations(applied: Sequence[AppliedMigration], ours: Sequence[Migration]) -> list[Migration]:
    """Return the migrations to apply. Raise SchemaMismatch if this code cannot use the schema at all."""
    for done, migration in zip(applied, ours, strict=False):
        if done.checksum != migration.checksum:
            raise SchemaMismatch(
                f"the store was created by another build of Redrive, with another text of migration "
                f"{migration.version:04d} ({migration.name}): use that build, or create a new store"
            )
    oldest = max((done.oldest_code for done in applied), default=0)
    if oldest > len(ours):
        raise SchemaMismatch(
            f"the store has schema {len(applied)}, which needs code that knows schema {oldest} or newer; "
            f"this one knows {len(ours)}: upgrade redrive"
        )
    return list(ours[len(applied) :])
