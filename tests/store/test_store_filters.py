"""Validation of filters: an invalid filter fails when it is created, before any query."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redrive.errors import InputError
from redrive.store.filters import AuditFilter, GroupFilter, LetterFilter, RunFilter

BAD: list[tuple[dict[str, Any], str]] = [
    ({"since": 10**30}, "since must be microseconds since 1970, in the years 1 to 9999; 10+ is out of range"),
    ({"until": -(10**30)}, "until must be microseconds"),
    ({"since": True}, "since must be a datetime or microseconds since 1970, not True"),
    ({"since": "yesterday"}, "since must be a datetime"),
    ({"since": 1.5}, "since must be a datetime"),
    ({"since": datetime(2026, 1, 1)}, "since needs a time zone"),  # noqa: DTZ001
    ({"tenant": ["a"]}, r"tenant must be text, not \['a'\]"),
    ({"tenant": 5}, "tenant must be text, not 5"),
    ({"tenant": "a\x00b"}, "tenant contains a NUL or half a character"),
    ({"tenant": "\ud800"}, "tenant contains a NUL or half a character"),
    ({"tenant": "x" * 10_001}, "text of 1 to 10,000 characters, not 10,001"),
]
OF_LISTS: list[tuple[dict[str, Any], str]] = [
    ({"status": 5}, "status must be the name of a status, not 5"),
    ({"status": [5]}, "status must be the name of a status, not 5"),
    ({"status": {"OPEN": 1}}, "status must be the name of a status"),
    ({"index": [1]}, "index must be an object"),
    ({"index": {"a": {}}}, "a search field must be a text"),
    ({"index": {"a\x00": 1}}, "index contains a NUL"),
]


@pytest.mark.parametrize("kind", [RunFilter, LetterFilter, AuditFilter])
@pytest.mark.parametrize(("given", "said"), BAD)
def test_an_invalid_value_is_refused_by_its_name(kind: type[Any], given: dict[str, Any], said: str) -> None:
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
def test_a_letter_filter_refuses_values_that_are_not_text(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be text"):
        LetterFilter(**given)


@pytest.mark.parametrize(
    ("given", "allowed"), [({"code": "time"}, "timeout"), ({"stage": "run"}, "exec"), ({"category": "dns"}, "network")]
)
def test_a_misspelt_code_is_refused_with_the_names_that_exist(given: dict[str, Any], allowed: str) -> None:
    ((field, name),) = given.items()
    with pytest.raises(InputError, match=rf"{field} must be .*\b{allowed}\b.*, not '{name}'"):
        LetterFilter(**given)
    assert getattr(LetterFilter(**{field: allowed}), field) == allowed


def test_a_group_filter_has_one_state() -> None:
    assert GroupFilter(status=None).status is None
    with pytest.raises(InputError, match="status must be the name of a status"):
        GroupFilter(status=["OPEN"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="tenant must be text"):
        GroupFilter(tenant=5)  # type: ignore[arg-type]


def test_a_time_is_exact_to_the_microsecond() -> None:
    moment = datetime(2026, 3, 1, 14, 2, 11, 333_333, tzinfo=timezone(timedelta(hours=2)))
    assert LetterFilter(since=moment).since == 1_772_366_531_333_333
    assert LetterFilter(since=datetime(1, 1, 1, tzinfo=UTC)).since == -62_135_596_800_000_000
