"""SQL from `.sql` files: statements, translated for each database, and migrations, which change the schema.

A file gives each statement a name and one line about its purpose:

    -- name: run_by_id
    -- The run a caller asks for by its public id.
    SELECT ... FROM runs WHERE public_id = ?;

A statement lives in one of three places, tried in this order: `sqlite/statements` or `postgres/statements`
if the databases need different SQL, else `store/statements` for both. A shared statement is written for
PostgreSQL with named parameters (`:name`) and tables in schema `redrive`. SQLite gets it with these changes:

    redrive.runs                         runs
    = ANY (CAST(:ids AS text[]))         IN (SELECT value FROM json_each(:ids))
    <> ALL (CAST(:ids AS text[]))        NOT IN (SELECT value FROM json_each(:ids))
    = ANY (ARRAY(SELECT ...))            IN (SELECT * FROM (SELECT ...))
    unnest(CAST(:a AS text[]), CAST(:b AS bigint[])) AS w (a, b)
                                         a subquery over json_each(:a) with the same columns
    json_agg(...)                        json_group_array(...)
    FOR UPDATE SKIP LOCKED               (nothing: the writer holds the file's lock)
    OFFSET 0                             (nothing: it only keeps PostgreSQL's planner from joining a subquery)
    COLLATE "C"                          (nothing: SQLite compares bytes anyway)
    /* INDEXED BY runs_due */            INDEXED BY runs_due
    /* CROSS */ JOIN                     CROSS JOIN, which keeps the order of the tables
    IS NOT DISTINCT FROM                 =  (values in conditions are never NULL)
    IS DISTINCT FROM                     IS NOT
    ILIKE                                LIKE

In a shared statement `:now` is the time of the store. Sessions fill it in unless the caller does. A statement
that compares an indexed column with a time the caller has takes it as `:at`: a plain parameter plans better.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from redrive.errors import ConfigurationError, SchemaMismatch

Dialect: TypeAlias = Literal["sqlite", "postgres"]

_STATEMENT_HEAD = re.compile(r"^-- name: (\S+)[ ]*\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
# `redrive.tenant` is a setting, not a table: it has the same name in every schema.
_SCHEMA = re.compile(r"\bredrive(?=\.(?!tenant\b))|(?<=\bSCHEMA )redrive\b")
_SCHEMA_PREFIX = re.compile(r"\bredrive\.")
_ANY = re.compile(r"= ANY \(CAST\(:(\w+) AS \w+\[\]\)\)")
_NOT_ANY = re.compile(r"<> ALL \(CAST\(:(\w+) AS \w+\[\]\)\)")
_UNNEST = re.compile(r"unnest\(((?:CAST\(:\w+ AS \w+\[\]\)(?:, )?)+)\) AS (\w+) \(([\w, ]+)\)")
_ARRAY = re.compile(r"CAST\(:(\w+) AS \w+\[\]\)")
_LOCK = re.compile(r"\s+FOR (?:NO KEY UPDATE|UPDATE|SHARE)(?: OF \w+)?(?: SKIP LOCKED)?")
_OFFSET = re.compile(r"\s+OFFSET 0(?=\s*\))")
_BYTES = re.compile(r' COLLATE "C"')
_HINT = re.compile(r"/\* (INDEXED BY \w+|CROSS) \*/")
_NOW = re.compile(r"(?<![:\w]):now\b")
_MIGRATION_NAME = re.compile(r"^(\d{4})_(\w+)\.sql$")
_OLDEST_CODE = re.compile(r"^-- oldest code: (\d+)[ ]*$", re.MULTILINE)
_SERVER_TIME = "COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()))"


def load_statements(package: str, file: str) -> Mapping[str, str]:
    """Return the statements of one file in a package's `statements` folder, by name."""
    return parse_statements((find_package_folder(package) / "statements" / file).read_text("utf-8"), file)


def find_package_folder(package: str) -> Path:
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

    def list_arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the values in the order of the parameters."""
        return [values[name] for name in self.names]


@lru_cache(maxsize=4096)
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


@lru_cache(maxsize=4096)
def replace_schema(text: str, schema: str) -> str:
    """Replace the schema `redrive` by another one in a statement."""
    return text if schema == "redrive" else _SCHEMA.sub(schema, text)


class Statement:
    """A named statement. Its text is read when a session first runs it."""

    __slots__ = ("_file", "_name")

    def __init__(self, file: str, name: str) -> None:
        self._file = file
        self._name = name

    def text(self, dialect: Dialect) -> str:
        """Return the SQL for one of the databases, with named parameters."""
        return _load_texts(dialect, self._file)[self._name]


class Statements:
    """The statements of one file name, over the three folders."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __getitem__(self, name: str) -> Statement:
        return Statement(self._file, name)

    def texts(self, dialect: Dialect) -> Mapping[str, str]:
        """Return the SQL of all statements for one of the databases, by name."""
        return _load_texts(dialect, self._file)


@cache
def _load_texts(dialect: Dialect, file: str) -> dict[str, str]:
    """Return all statements of a file name by their names, as one of the databases takes them."""
    folders = Path(__file__).parent
    adapt = translate_to_sqlite if dialect == "sqlite" else translate_to_postgres
    shared, own = folders / "statements" / file, folders / dialect / "statements" / file
    found: dict[str, str] = {}
    if shared.is_file():
        parsed = parse_statements(shared.read_text("utf-8"), file)
        found.update({name: adapt(text) for name, text in parsed.items()})
    if own.is_file():
        found.update(parse_statements(own.read_text("utf-8"), file))
    return found


def translate_to_sqlite(text: str) -> str:
    """Return a shared statement as SQLite takes it."""
    text = _ANY.sub(r"IN (SELECT value FROM json_each(:\1))", text)
    text = _NOT_ANY.sub(r"NOT IN (SELECT value FROM json_each(:\1))", text)
    text = _UNNEST.sub(_zip_arrays, _OFFSET.sub("", text)).replace("= ANY (ARRAY(", "IN (SELECT * FROM (")
    text = (
        text.replace("IS NOT DISTINCT FROM", "=")
        .replace("IS DISTINCT FROM", "IS NOT")
        .replace("ILIKE", "LIKE")
        .replace("json_agg(", "json_group_array(")
    )
    text = _HINT.sub(r"\1", _BYTES.sub("", text))
    return _SCHEMA_PREFIX.sub("", _LOCK.sub("", text))


def _zip_arrays(found: re.Match[str]) -> str:
    """Return a subquery that gives the elements of several arrays side by side, from their JSON."""
    first, *others = _ARRAY.findall(found[1])
    alias, columns = found[2], found[3].split(", ")
    values = ["element.value", *(f"json_extract(:{name}, '$[' || element.key || ']')" for name in others)]
    named = ", ".join(f"{value} AS {column}" for value, column in zip(values, columns, strict=True))
    return f"(SELECT {named} FROM json_each(:{first}) AS element) AS {alias}"  # nosec B608 - from our own .sql files


def translate_to_postgres(text: str) -> str:
    """Return a shared statement with the server's own time for `:now`, unless a session gives another."""
    return _NOW.sub(_SERVER_TIME, text)


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


@cache
def _checksum(text: str) -> str:
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()


def load_migrations(package: str) -> list[Migration]:
    """Return the migrations in a package's `migrations` folder, in order. They are read once."""
    return list(_read_migrations(package))


@cache
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
