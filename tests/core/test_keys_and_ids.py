"""Keys: different things never look alike, ordinary ones stay readable."""

from __future__ import annotations

import hashlib

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.keys_and_ids import (
    decode_key,
    encode_key,
    event_key,
    flow_key,
    job_key,
    keyed_payload_hash,
    payload_hash,
)

# Any Python text, lone surrogates included, with the dangerous characters made likely.
TEXT = st.text(st.sampled_from(":%A3\x00\ud83d\ude00é😀") | st.characters(exclude_categories=[]), max_size=12)
PARTS = st.lists(TEXT, max_size=4)


def test_ordinary_keys_are_readable() -> None:
    assert job_key("acme", "invoice", "42") == "idem_job:acme:invoice:42"
    assert event_key("acme", "orders", "e-1") == "idem_evt:acme:orders:e-1"
    assert flow_key("acme", "01HX", "0/charge#1", 0) == "idem_flow:acme:01HX:0/charge#1:0"
    assert encode_key("k", "Zürich", "東京") == "k:Zürich:東京"


def test_separators_are_escaped_inside_a_part() -> None:
    assert encode_key("k", "a:b", "c") == "k:a%3Ab:c"
    assert encode_key("k", "a", "b:c") == "k:a:b%3Ac"
    assert encode_key("k", "100%", "\x00", "\ud800") == "k:100%25:%00:%ED%A0%80"


@given(TEXT, PARTS)
def test_a_key_can_be_decoded_to_its_parts(kind: str, parts: list[str]) -> None:
    assert decode_key(encode_key(kind, *parts)) == (kind, tuple(parts))


@given(TEXT, PARTS, TEXT, PARTS)
def test_different_kinds_or_parts_never_have_the_same_key(
    kind: str, parts: list[str], other_kind: str, other: list[str]
) -> None:
    same = (kind, parts) == (other_kind, other)
    assert (encode_key(kind, *parts) == encode_key(other_kind, *other)) is same


@given(st.lists(TEXT, min_size=2, max_size=3), st.data())
def test_moving_a_boundary_between_parts_changes_the_key(parts: list[str], data: st.DataObject) -> None:
    pieces = ":".join(parts).split(":")
    cut = data.draw(st.integers(1, len(pieces) - 1))
    moved = [":".join(pieces[:cut]), ":".join(pieces[cut:])]  # equal to the parts when joined without escapes
    assert (encode_key("k", *parts) == encode_key("k", *moved)) is (parts == moved)


@given(TEXT, PARTS)
def test_a_key_is_text_any_store_can_hold(kind: str, parts: list[str]) -> None:
    key = encode_key(kind, *parts)
    key.encode("utf-8")
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in key)


def test_tenants_cannot_reach_into_each_other() -> None:
    assert job_key("a", "b:c", "d") != job_key("a:b", "c", "d")
    assert job_key("a", "b", "c") != event_key("a", "b", "c")
    assert flow_key("a", "r", "s", 1) != flow_key("a", "r", "s:1", 1)
    assert flow_key("a", "r", "s", 1) != flow_key("a", "r", "s", 11)


@each("key", ["k:%41", "k:%", "k:%zz", "k:a%3ab", "k:\x00", "k:%FF", "k:%ED%A0", "k:100%"])
def test_text_that_encode_never_writes_is_refused(key: str) -> None:
    with pytest.raises(ValueError):
        decode_key(key)


def test_the_payload_hash_is_the_sha256_of_the_text() -> None:
    assert payload_hash('{"a":1}') == hashlib.sha256(b'{"a":1}').hexdigest()
    assert payload_hash("é") == hashlib.sha256("é".encode()).hexdigest()


@given(TEXT, TEXT)
def test_any_text_can_be_hashed_and_different_texts_differ(one: str, other: str) -> None:
    assert (payload_hash(one) == payload_hash(other)) is (one == other)


@given(TEXT, TEXT)
def test_a_keyed_hash_shows_equal_texts_and_needs_its_key(one: str, other: str) -> None:
    assert (keyed_payload_hash(one, b"key") == keyed_payload_hash(other, b"key")) is (one == other)
    assert len({keyed_payload_hash(one, b"key"), keyed_payload_hash(one, b"another"), payload_hash(one)}) == 3
