"""The rules for who may use which schema."""

from __future__ import annotations

import pytest

from redrive.errors import ConfigurationError, SchemaMismatch
from redrive.store.migrate import Applied, Migration, known, outstanding, read


def migration(version: int, oldest: int = 1, text: str = "") -> Migration:
    return Migration(version=version, name="x", text=text or f"{version}", oldest_code=oldest)


def applied(*migrations: Migration) -> list[Applied]:
    return [Applied(version=m.version, checksum=m.checksum, oldest_code=m.oldest_code) for m in migrations]


ONE, TWO, THREE = migration(1), migration(2), migration(3, oldest=2)


def test_an_empty_store_needs_everything() -> None:
    assert outstanding([], [ONE, TWO]) == [ONE, TWO]


def test_an_older_store_needs_the_rest() -> None:
    assert outstanding(applied(ONE), [ONE, TWO, THREE]) == [TWO, THREE]


def test_an_up_to_date_store_needs_nothing() -> None:
    assert outstanding(applied(ONE, TWO), [ONE, TWO]) == []


def test_a_newer_store_may_still_be_used_if_it_says_so() -> None:
    assert outstanding(applied(ONE, TWO, THREE), [ONE, TWO]) == []


def test_a_newer_store_that_has_moved_on_says_upgrade() -> None:
    with pytest.raises(SchemaMismatch, match="upgrade redrive"):
        outstanding(applied(ONE, TWO, THREE), [ONE])


def test_a_changed_file_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="0001"):
        outstanding(applied(migration(1, text="other")), [ONE, TWO])


def test_line_ends_do_not_change_a_checksum() -> None:
    assert migration(1, text="a\r\nb").checksum == migration(1, text="a\nb").checksum


def test_files_are_numbered_without_a_gap() -> None:
    versions = [m.version for m in known("redrive.store.sqlite")]
    assert versions == list(range(1, len(versions) + 1))
    assert len(versions) > 1


@pytest.mark.parametrize(
    ("file", "text"), [("1_x.sql", "-- oldest code: 1\n"), ("0001_x.sql", "no line"), ("0001-x.sql", "")]
)
def test_a_file_must_say_who_it_is(file: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match="oldest code"):
        read(file, text)
