"""Migrations: the schema changes that this code ships, and which of them a store still needs."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence

import msgspec

from redrive.errors import ConfigurationError, SchemaMismatch
from redrive.store.sql_statements import find_package_folder

_MIGRATION_NAME = re.compile(r"^(\d{4})_(\w+)\.sql$")
_OLDEST_CODE = re.compile(r"^-- oldest code: (\d+)[ ]*$", re.MULTILINE)


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
        for item in (find_package_folder(package) / "migrations").iterdir()
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


def find_pending_migrations(applied: Sequence[AppliedMigration], ours: Sequence[Migration]) -> list[Migration]:
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
