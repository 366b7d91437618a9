"""Filters are checked where they are made: no store is asked for what it cannot have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redrive.errors import InputError
from redrive.store.filters import AuditFilter, GroupFilter, LetterFilter, RunFilter

BAD: list[tuple[dict[str, Any], str]] = [
    ({"since": 10**30}, "since takes microseconds since 1970, and 10+ is in no year there is"),
    ({"until": -(10**30)}, "until takes microseconds"),
    ({"since": True}, "since takes a datetime or microseconds since 1970, not True"),
    ({"since": "yesterday"}, "since takes a datetime"),
    ({"since": 1.5}, "since takes a datetime"),
    ({"since": datetime(2026, 1, 1)}, "since needs a time zone"),  # noqa: DTZ001
    ({"tenant": ["a"]}, r"tenant takes one text, not \['a'\]"),
    ({"tenant": 5}, "tenant takes one text, not 5"),
    ({"tenant": "a\x00b"}, "tenant contains a NUL or half a character"),
    ({"tenant": "\ud800"}, "tenant contains a NUL or half a character"),
    ({"tenant": "x" * 10_001}, "at most 10,000 characters, not 10,001"),
]
OF_LISTS: list[tuple[dict[str, Any], str]] = [
    ({"status": 5}, "status takes the name of a state, not 5"),
    ({"status": [5]}, "status takes names of states, not 5"),
    ({"status": {"OPEN": 1}}, "status takes the name of a state"),
    ({"index": [1]}, "index takes an object"),
    ({"index": {"a": {}}}, "fields to search by hold texts"),
    ({"index": {"a\x00": 1}}, "index contains a NUL"),
]


@pytest.mark.parametrize("kind", [RunFilter, LetterFilter, AuditFilter])
@pytest.mark.parametrize(("given", "said"), BAD)
def test_nonsense_is_refused_by_its_name(kind: type[Any], given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        kind(**given)


@pytest.mark.parametrize("kind", [RunFilter, LetterFilter])
@pytest.mark.parametrize(("given", "said"), OF_LISTS)
def test_states_and_fields_are_checked(kind: type[Any], given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        kind(**given)


@pytest.mark.parametrize(
    "given", [{"tag": ["vat", "late"]}, {"owner": 7}, {"step": b"x"}, {"text": 1}, {"fingerprint": {}}]
)
def test_a_letter_is_not_filtered_by_what_is_no_text(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="takes one text"):
        LetterFilter(**given)


def test_groups_have_one_state() -> None:
    assert GroupFilter(status=None).status is None
    with pytest.raises(InputError, match="status takes the name of a state"):
        GroupFilter(status=["OPEN"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tenant takes one text"):
        GroupFilter(tenant=5)  # type: ignore[arg-type]


def test_a_moment_is_exact_to_the_microsecond() -> None:
    moment = datetime(2026, 3, 1, 14, 2, 11, 333_333, tzinfo=timezone(timedelta(hours=2)))
    assert LetterFilter(since=moment).since == 1_772_366_531_333_333
    assert LetterFilter(since=datetime(1, 1, 1, tzinfo=UTC)).since == -62_135_596_800_000_000
