"""SQL lives in `.sql` files, not in Python. This reads them.

A file holds statements like this one, each with a name and one line that says what it is for:

    -- name: run_by_id
    -- The run a caller asks for by its public id.
    SELECT ... FROM runs WHERE public_id = ?;
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

import msgspec

from redrive.errors import ConfigurationError, SchemaMismatch

_STATEMENT_HEAD = re.compile(r"^-- name: (\S+)[ ]*\n", re.MULTILINE)


def load_statements(package: str, file: str) -> Mapping[str, str]:
    """Read the statements of one file in a package's `statements` folder, by name."""
    return parse_statements(files(package).joinpath("statements", file).read_text("utf-8"), file)


def parse_statements(text: str, source: str) -> Mapping[str, str]:
    """Split a file into its named statements. A statement without a line of purpose is refused."""
    parts = _STATEMENT_HEAD.split(text)
    found: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        purpose, _, statement = body.partition("\n")
        if not purpose.startswith("-- "):
            raise ConfigurationError(f"{source}: statement {name!r} needs one line that says what it is for")
        if name in found:
            raise ConfigurationError(f"{source}: two statements are called {name!r}")
        found[name] = statement.strip().removesuffix(";")
    return found


_MIGRATION_NAME = re.compile(r"^(\d{4})_(\w+)\.sql$")
_OLDEST_CODE = re.compile(r"^-- oldest code: (\d+)[ ]*$", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One schema change, as this code ships it."""

    version: int
    name: str
    text: str
    oldest_code: int

    @property
    def checksum(self) -> str:
        """Differs whenever the file's text differs, whatever its line ends."""
        return _checksum(self.text)


class AppliedMigration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One schema change, as the store remembers it."""

    version: int
    checksum: str
    oldest_code: int


@functools.cache
def _checksum(text: str) -> str:
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()


def load_migrations(package: str) -> list[Migration]:
    """The migrations in a package's `migrations` folder, in order, without a gap. They are read once."""
    return list(_read_migrations(package))


@functools.cache
def _read_migrations(package: str) -> tuple[Migration, ...]:
    found = [
        parse_migration(item.name, item.read_text("utf-8"))
        for item in files(package).joinpath("migrations").iterdir()
        if item.name.endswith(".sql")
    ]
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ConfigurationError(f"the migrations of {package} are not numbered 0001, 0002, ... without a gap")
    return tuple(found)


def parse_migration(file: str, text: str) -> Migration:
    """Make a migration of a file's name and text."""
    name, oldest = _MIGRATION_NAME.match(file), _OLDEST_CODE.search(text)
    if name is None or oldest is None:
        raise ConfigurationError(
            f"migration {file!r} must be called like 0001_words.sql and contain a line '-- oldest code: N'"
        )
    return Migration(version=int(name[1]), name=name[2], text=text, oldest_code=int(oldest[1]))


def outstanding_migrations(applied: Sequence[AppliedMigration], ours: Sequence[Migration]) -> list[Migration]:
    """What is still to be applied. Raises SchemaMismatch if this code cannot use the schema at all."""
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
