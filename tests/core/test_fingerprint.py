"""Fingerprints: one for each cause, independent of values that differ from run to run."""

from __future__ import annotations

import re
import time

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.classify import Category
from redrive.core.failure import Failure, compute_fingerprint, derive_fingerprint_key, normalise_message
from redrive.record_fields import replace

BASE = Failure(
    category=Category.SERVER_ERROR,
    error_type="shop.GatewayError",
    message="order 42 refused",
    frame="shop.payments.charge",
)


KEY = derive_fingerprint_key("a secret of a store", "acme")


def of(failure: Failure, workflow: str = "fulfil", step: str | None = "charge", key: bytes = KEY) -> str:
    return compute_fingerprint(failure, workflow=workflow, step=step, key=key)


def saying(message: str) -> str:
    return of(replace(BASE, message=message))


def test_a_fingerprint_is_sixteen_hexadecimal_digits_and_never_changes() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", of(BASE))
    assert of(BASE) == "a2282295ba90c610"


@each(
    "one, other",
    [
        ("order 42 refused", "order 4711 refused"),
        ("took 1.5 s", "took 22,75 s"),
        ("balance -3", "balance 12"),
        ("id 550e8400-e29b-41d4-a716-446655440000 gone", "id deadbeef-dead-beef-dead-beefdeadbeef gone"),
        ("at 0x7f3a2b gone", "at 0xdeadbeef gone"),
        ("commit deadbeefcafe", "commit 0a1b2c3d4e5f"),
        ("order ord_8sd7f6 gone", "order ord_1 gone"),
        ("no user 'ann'", "no user 'bob and co'"),
        ('no user "ann"', 'no user ""'),
        ("no user `ann`", "no user `bob`"),
        ("mail to ann@example.org failed", "mail to bob.b+x@mail.example.com failed"),
        ("GET https://a.example/x?y=1 failed", "GET http://localhost:8080/ failed"),
        ("since 2026-01-02T03:04:05.678Z", "since 2025-12-31 23:59:59"),
        ("since 2026-01-02 03:04", "since 2026-01-02T03:04:05+02:00"),
        ("cannot open /srv/a/b.txt", "cannot open /var/lib/x-1"),
        ("cannot open C:\\tmp\\a.txt", "cannot open D:\\b"),
        ("missing 1, 2, 3", "missing 4"),
        ("a  b\n c", "a b c"),
    ],
)
def test_values_that_differ_from_run_to_run_do_not_matter(one: str, other: str) -> None:
    assert normalise_message(one) == normalise_message(other)
    assert saying(one) == saying(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("card declined", "card expired"),
        ("can't pay for the order", "can't pay for the customer"),
        ("read and/or write", "read and/or delete"),
        ("cabbage", "baggage"),
    ],
)
def test_the_words_of_the_message_matter(one: str, other: str) -> None:
    assert saying(one) != saying(other)


def test_replaced_values_leave_a_readable_message() -> None:
    message = "order 42 of 'ann' at https://x.example/1 failed on 2026-01-02: /tmp/x, ann@example.org"
    assert normalise_message(message) == "order <n> of <text> at <url> failed on <time>: <path>, <email>"


@pytest.mark.parametrize(
    "change",
    [
        {"error_type": "shop.OtherError"},
        {"category": Category.TIMEOUT},
        {"frame": "shop.payments.refund"},
        {"frame": None},
        {"message": "another thing"},
    ],
)
def test_each_part_of_the_failure_matters(change: dict[str, object]) -> None:
    assert of(replace(BASE, **change)) != of(BASE)  # type: ignore[arg-type]


def test_the_place_matters() -> None:
    places = [("fulfil", "charge"), ("fulfil", "ship"), ("refund", "charge"), ("fulfil", None), ("fulfil", "")]
    assert len({of(BASE, workflow, step) for workflow, step in places}) == len(places)
    assert of(BASE, "a", "b:c") != of(BASE, "a:b", "c")


def test_stack_details_status_and_delay_do_not_matter() -> None:
    other = replace(
        BASE, stack='File "x.py", line 99', details={"a": 1}, status_code=502, retry_after=3.0, retryable=True
    )
    assert of(other) == of(BASE)


def test_fingerprints_differ_between_stores_and_tenants() -> None:
    keys = [
        KEY,
        derive_fingerprint_key("a secret of a store", "globex"),
        derive_fingerprint_key("another secret", "acme"),
        b"",
    ]
    assert len({of(BASE, key=key) for key in keys}) == len(keys)
    assert derive_fingerprint_key("a secret of a store", "acme") == KEY  # every process of a store derives the same


@pytest.mark.parametrize(
    "quoted", ["password=hunter{}", "Authorization: Bearer abcdefgh{}", "<pin>x{}</pin>", "--token hunter{}"]
)
def test_a_secret_in_a_message_does_not_matter(quoted: str) -> None:
    """No mask of `normalise` covers these words: only redaction makes the messages equal."""
    assert saying(f"refused: {quoted.format('alpha')}") == saying(f"refused: {quoted.format('omega')}")


@given(st.text(), st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_number_never_matters(text: str, one: int, other: int) -> None:
    assert saying(f"{text} {one} {text}") == saying(f"{text} {other} {text}")


@given(st.text(st.characters(exclude_categories=[])), st.text(st.characters(exclude_categories=[])))
def test_any_text_has_a_fingerprint(message: str, workflow: str) -> None:
    failure = replace(BASE, message=message)
    assert re.fullmatch(r"[0-9a-f]{16}", of(failure, workflow, workflow))


@each("unit", ["a", "1", "a1", "'", '"', "a@", "@a", "a.", "/", "/a", "://", "a:", "1:", "-", " ", "<n> ", "\\", "f-"])
def test_time_grows_with_length_only(unit: str) -> None:
    small, large = (_time(unit * (size // len(unit)) + "!") for size in (25_000, 100_000))
    assert large < 0.1 or large < 9 * small  # four times the text: 4 if linear, 16 if not


def _time(text: str) -> float:
    began = time.process_time()
    normalise_message(text)
    return time.process_time() - began
