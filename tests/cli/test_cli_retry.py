"""`redrive runs retry`: retries of failed runs with open or closed dead letters."""

import json
from pathlib import Path

import pytest
from console import piped
from dlq_kit import Shop, working
from toy_store import Toys


def test_a_run_with_an_open_letter_is_replayed_through_it(shop: Shop) -> None:
    with working(shop):
        result = piped("runs", "retry", shop.down, "--wait", "--by", "kim", "--reason", "the bank is back")
    assert result.exit_code == 0, result.output
    assert shop.calls() == ["charge tok-7", "book"]
    letter = shop.letter(shop.down)
    assert (letter.status, letter.replays[0].by) == ("RESOLVED", "kim")


def test_a_run_with_a_closed_letter_is_retried(shop: Shop) -> None:
    assert piped("dlq", "ignore", shop.down).exit_code == 0
    with working(shop):
        result = piped("runs", "retry", shop.down[:20], "--wait", "--json")
    assert json.loads(result.stdout)["ended"] == "SUCCESS"
    assert shop.letter(shop.down).status == "IGNORED"


def test_a_dry_run_of_a_retry_describes_it_and_changes_nothing(shop: Shop) -> None:
    result = piped("runs", "retry", shop.down, "--dry-run", "--skip-step", 'charge="by hand"')
    assert "  Result given, not run:\n    charge\n" in result.stdout
    assert result.stdout.endswith("Nothing was changed.\n")
    assert shop.letter(shop.down).status == "OPEN"


def test_skipped_steps_are_not_called(shop: Shop) -> None:
    Path("bank-is-down").touch()
    with working(shop):
        skipped = ["--skip-step", 'charge="paid by hand"', "--skip-step", 'book="booked by hand"']
        result = piped("runs", "retry", shop.down, *skipped, "--wait")
    assert (result.exit_code, shop.calls()) == (0, []), result.output
    assert shop.run(shop.down).output == "booked by hand"


def test_the_failed_step_is_skipped_with_an_output(shop: Shop) -> None:
    with working(shop):
        result = piped("runs", "retry", shop.wrong, "--mode", "skip_failed", "--output", '"none"', "--wait")
    assert (result.exit_code, shop.run(shop.wrong).output) == (0, "none"), result.output


def test_a_full_retry_with_another_input_is_a_new_run(shop: Shop) -> None:
    whole = '{"order": {"number": 9, "country": "DE", "card_token": "••••••"}}'
    with working(shop):
        result = piped("runs", "retry", shop.wrong, "--mode", "full", "--input", whole, "--wait", "--json")
    run = shop.run(json.loads(result.stdout)["run_id"])
    assert (run.replay_of, run.output) == (shop.wrong, "booked 9")
    assert shop.calls() == ["reserve", "charge tok-8", "book"]


def test_several_runs_are_retried_with_one_patch(shop: Shop) -> None:
    with working(shop):
        patch = ["--patch", '{"order": {"country": "DE"}}', "--wait"]
        result = piped("runs", "retry", "-", *patch, stdin=f"{shop.down}\n{shop.wrong}\n")
    assert result.exit_code == 0, result.output
    assert {shop.run(id).status for id in (shop.down, shop.wrong)} == {"SUCCESS"}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--skip-step", "charge"], 2, "is not NAME=JSON"),
        (["--skip-step", "charge=hello"], 2, "needs its own quotes: '\"hello\"'"),
        (["--skip-step", "bake=1"], 3, "'bake'"),
        (["--skip-step", "charge=7"], 5, "the output of step 'charge' is not valid"),
        (["--mode", "full", "--skip-step", 'charge="x"'], 5, "skip_steps"),
        (["--input", "{}", "--patch", "{}"], 2, "exclude each other"),
        (["--input", "{}", "-"], 2, "use --patch for several"),
        (["--input", "{}"], 5, "order"),
    ],
)
def test_invalid_options_are_refused_and_change_nothing(shop: Shop, options: list[str], code: int, words: str) -> None:
    result = piped("runs", "retry", shop.down, *options)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert shop.letter(shop.down).status == "OPEN"


def test_a_repeated_retry_gets_the_first_answer(shop: Shop) -> None:
    with working(shop):
        assert piped("runs", "retry", shop.down, "--wait", "--by", "kim").exit_code == 0
    again = piped("runs", "retry", shop.down)
    assert (again.exit_code, f"{shop.down} was decided before, by kim at " in again.stdout) == (0, True)
    assert piped("runs", "retry", shop.down, "--mode", "full").exit_code == 4
    assert len(shop.letter(shop.down).replays) == 1


def test_a_successful_or_unknown_run_is_not_retried(toys: Toys) -> None:
    assert piped("runs", "retry", toys.good).exit_code == 4
    assert piped("runs", "retry", "01m7gtc6tf9mkk1pvk7wg972gw").exit_code == 3
    assert piped("runs", "retry", "zz").exit_code == 3
