"""Numbered, append-only schema changes, and the rules for who may use which schema.

Each file `NNNN_words.sql` raises the schema by one version, in one transaction. The store's schema
table remembers, per version, when it was applied, a checksum of the file, and the oldest code that
may run on it. "Code" is counted in schema versions too: the newest one it knows. So a process

* with older code than the schema goes on working as long as the schema says so;
* with newer code brings the schema up to date, if nobody else is at work on it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

import msgspec

from redrive.errors import ConfigurationError, SchemaMismatch

__all__ = ["Applied", "Migration", "known", "outstanding"]

_NAME = re.compile(r"^(\d{4})_(\w+)\.sql$")
_OLDEST = re.compile(r"^-- oldest code: (\d+)[ ]*$", re.MULTILINE)


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


class Applied(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One schema change, as the store remembers it."""

    version: int
    checksum: str
    oldest_code: int


@functools.cache
def _checksum(text: str) -> str:
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()


def known(package: str) -> list[Migration]:
    """The migrations in a package's `migrations` folder, in order, without a gap. They are read once."""
    return list(_known(package))


@functools.cache
def _known(package: str) -> tuple[Migration, ...]:
    found = [
        read(item.name, item.read_text("utf-8"))
        for item in files(package).joinpath("migrations").iterdir()
        if item.name.endswith(".sql")
    ]
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ConfigurationError(
            f"the migrations of {package} are not numbered 0001, 0002, ... without a gap"
        )
    return tuple(found)


def read(file: str, text: str) -> Migration:
    """Make a migration of a file's name and text."""
    name, oldest = _NAME.match(file), _OLDEST.search(text)
    if name is None or oldest is None:
        raise ConfigurationError(
            f"migration {file!r} must be called like 0001_words.sql and contain a line '-- oldest code: N'"
        )
    return Migration(version=int(name[1]), name=name[2], text=text, oldest_code=int(oldest[1]))


def outstanding(applied: Sequence[Applied], ours: Sequence[Migration]) -> list[Migration]:
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
