"""`redrive dlq resolve`, `ignore`, `assign`, `comment` and `tag`."""

import json
from collections.abc import Callable

import pytest
from console import Terminal, piped
from dlq_kit import Shop


@pytest.mark.parametrize(("verb", "status"), [("resolve", "RESOLVED"), ("ignore", "IGNORED")])
def test_letters_are_closed_with_a_reason(shop: Shop, verb: str, status: str) -> None:
    result = piped("dlq", verb, shop.down, f"dl-{shop.wrong}", "--by", "kim", "--reason", "a test order")
    assert result.stdout == f"{verb}d dl-{shop.down}\n{verb}d dl-{shop.wrong}\n"
    letter = shop.letter(shop.down)
    assert (letter.status, letter.closed_by, letter.resolution) == (status, "kim", "a test order")
    assert shop.run(shop.down).status == "FAILED"
    assert shop.letter(shop.wrong).status == status


@pytest.mark.parametrize("verb", ["resolve", "ignore"])
def test_a_dry_run_of_closing_closes_nothing(shop: Shop, verb: str) -> None:
    result = piped("dlq", verb, shop.down, "--dry-run")
    assert result.stdout == f"would {verb} dl-{shop.down}\n"
    assert shop.letter(shop.down).status == "OPEN"
    assert piped("dlq", verb, shop.down).exit_code == 0
    assert piped("dlq", verb, shop.down, "--dry-run").exit_code == 4


def test_closed_letters_are_reopened_with_a_reason(shop: Shop) -> None:
    assert piped("dlq", "resolve", shop.down).exit_code == 0
    assert piped("dlq", "reopen", shop.down, "--dry-run").stdout == f"would reopen dl-{shop.down}\n"
    result = piped("dlq", "reopen", shop.down, "--by", "kim", "--reason", "a slip")
    assert result.stdout == f"reopened dl-{shop.down}\n"
    letter = shop.letter(shop.down)
    assert (letter.status, letter.history[-1].event, letter.history[-1].reason) == ("OPEN", "dlq.reopened", "a slip")
    assert shop.run(shop.down).status == "DLQ_PENDING"


def test_closing_a_letter_with_another_status_is_a_conflict(shop: Shop) -> None:
    assert piped("dlq", "ignore", shop.down).exit_code == 0
    result = piped("dlq", "resolve", shop.down)
    assert (result.exit_code, shop.letter(shop.down).status) == (4, "IGNORED")
    assert f"redrive runs retry {shop.down}" in result.stderr


def test_an_unknown_letter_does_not_stop_the_closing_of_others(shop: Shop) -> None:
    result = piped("dlq", "resolve", "dl-nonsense", "-", stdin=f"dl-{shop.down}\tsell\n")
    assert (result.exit_code, shop.letter(shop.down).status) == (3, "RESOLVED")


def test_the_user_is_asked_before_a_letter_is_closed(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    asking = terminal("dlq", "resolve", shop.down)
    asking.wait_for("[y/N]")
    assert f"Resolve dead letter dl-{shop.down} (sell, step charge) without running it again?" in " ".join(
        asking.text.split()
    )
    asking.type("n\n")
    assert (asking.end(), shop.letter(shop.down).status) == (5, "OPEN")


def test_a_closed_letter_is_refused_without_a_question(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    assert piped("dlq", "ignore", shop.down).exit_code == 0
    refused = terminal("dlq", "resolve", shop.down)
    assert (refused.end(), "[y/N]" in refused.text) == (4, False)


def test_a_letter_is_assigned_to_the_caller_by_default(shop: Shop) -> None:
    assert piped("dlq", "assign", shop.down, "--by", "kim").stdout == f"assigned dl-{shop.down} to kim\n"
    assert shop.letter(shop.down).owner == "kim"
    assert piped("dlq", "assign", shop.down, "--to", "lee", "--dry-run").exit_code == 0
    assert shop.letter(shop.down).owner == "kim"
    assert json.loads(piped("dlq", "assign", shop.down, "--to", "lee", "--json").stdout)["owner"] == "lee"
    assert piped("dlq", "assign", shop.down, "--unassign").stdout == f"unassigned dl-{shop.down}\n"
    assert shop.letter(shop.down).owner is None
    assert piped("dlq", "assign", shop.down, "--unassign", "--to", "kim").exit_code == 2
    assert piped("dlq", "assign", shop.down, "--nobody").exit_code == 0  # language: former option name


def test_comments_are_stored(shop: Shop) -> None:
    assert piped("dlq", "comment", shop.down, "asked the bank", "--by", "kim").exit_code == 0
    assert piped("dlq", "comment", shop.down, "not this", "--dry-run").exit_code == 0
    (said,) = shop.letter(shop.down).comments
    assert (said.by, said.after) == ("kim", "asked the bank")
    assert piped("dlq", "comment", shop.down, "  ").exit_code == 5


def test_new_tags_replace_the_old_ones(shop: Shop) -> None:
    assert piped("dlq", "tag", shop.down, "vat", "urgent").exit_code == 0
    assert piped("dlq", "tag", "-", "bank", stdin=f"{shop.down}\n{shop.wrong}\n").exit_code == 0
    assert (shop.letter(shop.down).tags, shop.letter(shop.wrong).tags) == (("bank",), ("bank",))
    assert piped("dlq", "tag", shop.down, "--none").exit_code == 0
    assert shop.letter(shop.down).tags == ()
    assert piped("dlq", "tag", shop.down).exit_code == 2
    assert piped("dlq", "tag", shop.down, "x", "--none").exit_code == 2


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["dlq", "assign", "LETTER", "--to", ""], "--to"),
        (["dlq", "groups", "assign", "daf56cff46003d07", "--to", ""], "--to"),
        (["tasks", "assign", "tk-01k9x7qk3v8d2m5n6p7r8s9t0a-3", "--to", " "], "--to"),
        (["dlq", "assign", "LETTER", "--to", " "], "--to"),
        (["dlq", "assign", "LETTER", "--by", ""], "--by"),
        (["dlq", "replay", "LETTER", "--by", ""], "--by"),
        (["dlq", "show", "LETTER", "--reveal", "--by", ""], "--by"),
        (["notifications", "list", "--reader", ""], "--reader"),
        (["notifications", "show", "ntf-1", "--reader", ""], "--reader"),
        (["notifications", "read", "--reader", ""], "--reader"),
    ],
)
def test_an_empty_name_is_refused(shop: Shop, command: list[str], option: str) -> None:
    result = piped(*(shop.down if word == "LETTER" else word for word in command))
    assert (result.exit_code, f"{option} is empty: give a name" in result.stderr) == (2, True), result.output
    letter = shop.letter(shop.down)
    assert (letter.owner, letter.status, len(letter.history)) == (None, "OPEN", 1)
