"""The rules for which code can use which schema."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.errors import ConfigurationError, SchemaMismatch
from redrive.store.sql_files import (
    AppliedMigration,
    Migration,
    find_pending_migrations,
    load_migrations,
    parse_migration,
)


def migration(version: int, oldest: int = 1, text: str = "") -> Migration:
    return Migration(version=version, name="x", text=text or f"{version}", oldest_code=oldest)


def applied(*migrations: Migration) -> list[AppliedMigration]:
    return [AppliedMigration(version=m.version, checksum=m.checksum, oldest_code=m.oldest_code) for m in migrations]


Ship = Callable[..., str]


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ship:
    """Create a package with these migrations; return its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(*names: str) -> str:
        folder = tmp_path / f"shipped_{tmp_path.name}" / "migrations"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        for name in names:
            (folder / name).write_text("-- oldest code: 1\n")
        return folder.parent.name

    return make


ONE, TWO, THREE = migration(1), migration(2), migration(3, oldest=2)


def test_an_empty_store_needs_all_migrations() -> None:
    assert find_pending_migrations([], [ONE, TWO]) == [ONE, TWO]


def test_an_older_store_needs_the_missing_migrations() -> None:
    assert find_pending_migrations(applied(ONE), [ONE, TWO, THREE]) == [TWO, THREE]


def test_an_up_to_date_store_needs_no_migrations() -> None:
    assert find_pending_migrations(applied(ONE, TWO), [ONE, TWO]) == []


def test_a_newer_store_can_be_used_if_it_allows_that() -> None:
    assert find_pending_migrations(applied(ONE, TWO, THREE), [ONE, TWO]) == []


def test_a_newer_store_that_is_incompatible_asks_for_an_upgrade_of_redrive() -> None:
    with pytest.raises(SchemaMismatch, match="upgrade redrive"):
        find_pending_migrations(applied(ONE, TWO, THREE), [ONE])


def test_a_changed_migration_file_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="0001"):
        find_pending_migrations(applied(migration(1, text="other")), [ONE, TWO])


def test_a_store_of_an_earlier_development_version_is_refused() -> None:
    """Such a store has more migrations than this code and a different first one: an upgrade would not help."""
    earlier = applied(*(migration(number, oldest=number, text=f"old {number}") for number in range(1, 25)))
    with pytest.raises(SchemaMismatch, match=r"another build of Redrive.*create a new store"):
        find_pending_migrations(earlier, [ONE])


def test_line_endings_do_not_change_a_checksum() -> None:
    assert migration(1, text="a\r\nb").checksum == migration(1, text="a\nb").checksum


@pytest.mark.parametrize("store", ["redrive.store.sqlite", "redrive.store.postgres"])
def test_each_store_begins_with_its_whole_schema(store: str) -> None:
    first = load_migrations(store)[0]
    assert (first.version, first.name, first.oldest_code) == (1, "schema", 1)


def test_migration_files_are_read_in_order(ship: Ship) -> None:
    package = ship("0002_two.sql", "0010_ten.sql", *(f"000{number}_x.sql" for number in (1, *range(3, 10))))
    assert [each.version for each in load_migrations(package)] == list(range(1, 11))


@pytest.mark.parametrize("files", [("0002_x.sql",), ("0001_x.sql", "0003_x.sql"), ("0001_x.sql", "0001_y.sql")])
def test_migration_files_are_numbered_without_a_gap(ship: Ship, files: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="without a gap"):
        load_migrations(ship(*files))


@pytest.mark.parametrize(
    ("file", "text"), [("1_x.sql", "-- oldest code: 1\n"), ("0001_x.sql", "no line"), ("0001-x.sql", "")]
)
def test_a_migration_file_needs_a_numbered_name_and_a_header(file: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match="oldest code"):
        parse_migration(file, text)
