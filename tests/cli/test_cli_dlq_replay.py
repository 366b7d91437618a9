"""`redrive dlq replay` and `complete`: the preview, the replayed steps and the result."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from console import Terminal, piped
from dlq_kit import Shop, working

# -- dry runs ------------------------------------------------------------------------------------------


def test_a_dry_run_describes_the_replay_and_changes_nothing(shop: Shop) -> None:
    result = piped("dlq", "replay", shop.wrong, "--dry-run", "--patch", '{"order": {"country": "PL"}}')
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"dl-{shop.wrong} would run again, from where it failed.",
        "  Changes of the input:",
        '    ~ order.country: "PO" becomes "PL"',
        "  Already done, not run again:",
        '    reserve (step 0) returned "R-8"',
        '    charge (step 1) returned "payment 8"',
        "  Runs again:",
        "    book (step 2), which writes to the books",
        f"      idempotency key idem_flow:default:{shop.wrong}:/book#0:0",
        "    and whatever follows",
        "  Check first:",
        "    finished steps used the original input and are not repeated",
        "    book keeps its old idempotency key, so the other service may repeat its old answer: "
        "set --new-operation to send a new key",
        "Nothing was changed.",
    ]
    assert shop.letter(shop.wrong).status == "OPEN"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mode", "step_only"], "and nothing else: if more steps would follow, the run ends as PARTIAL"),
        (["--mode", "FULL"], "from the beginning, as a new run."),
        (["--from-step", "charge"], "charge (step 1), which charges the card"),
        (["--from-step", "0"], "reserve (step 0)\n"),
        (["--output", '"by telephone"'], "Result given, not run:\n    book"),
        (["--new-operation"], "new idempotency keys"),
        (["--from-step", "charge"], "charge succeeded before and will call external services again"),
    ],
)
def test_each_replay_mode_is_explained(shop: Shop, options: list[str], words: str) -> None:
    result = piped("dlq", "replay", shop.wrong, "--dry-run", *options)
    assert (result.exit_code, words in result.output) == (0, True), result.output


def test_a_dry_run_as_json_prints_the_plan(shop: Shop) -> None:
    plan = json.loads(piped("dlq", "replay", shop.down, "--dry-run", "--json").output)
    assert (plan["mode"], [step["name"] for step in plan["again"]]) == ("FROM_FAILED", ["charge"])
    assert plan["again"][0]["effect"] == "charges the card"


# -- running it again ----------------------------------------------------------------------------------


def test_a_replay_continues_at_the_failed_step_with_the_same_key(shop: Shop) -> None:
    result = piped("dlq", "replay", shop.down, "--by", "kim", "--reason", "the bank is back")
    assert result.stdout == f"dl-{shop.down} runs again, from where it failed: run {shop.down}\n"
    (replay,) = shop.letter(shop.down).replays
    assert (replay.mode, replay.by, replay.reason) == ("FROM_FAILED", "kim", "the bank is back")
    with working(shop):
        again = piped("dlq", "replay", shop.down, "--wait")
    assert again.exit_code == 0, again.output
    assert f"dl-{shop.down} was decided before, by kim at " in again.stdout
    assert again.stdout.endswith(f"dl-{shop.down} succeeded\n")
    flow = f"idem_flow:default:{shop.down}"
    assert shop.sent_keys() == [f"{flow}:/charge#0:0", f"{flow}:/book#0:0"]


def test_waiting_for_a_replay_that_fails_exits_with_1(shop: Shop) -> None:
    with working(shop):
        result = piped("dlq", "replay", shop.wrong, shop.down, "--wait", "--json")
    assert result.exit_code == 1
    ended = {one["letter_id"]: one["ended"] for one in map(json.loads, result.stdout.splitlines())}
    assert ended == {f"dl-{shop.wrong}": "DLQ_PENDING", f"dl-{shop.down}": "SUCCESS"}
    assert f"To see why: redrive dlq show dl-{shop.wrong}" in result.stderr


def test_a_repeated_decision_reports_the_earlier_one(shop: Shop) -> None:
    """The command repeats the earlier decision even after the replay failed and the letter is open again."""
    repeated = ("dlq", "replay", shop.wrong, "--key", "k1", "--by", "kim")
    with working(shop):
        assert piped(*repeated, "--wait").exit_code == 1
        again = piped(*repeated)
    assert (again.exit_code, len(shop.letter(shop.wrong).replays)) == (0, 1)
    assert f"dl-{shop.wrong} was decided before, by kim at " in again.stdout


def test_a_single_step_replay_succeeds_and_the_run_can_continue(shop: Shop) -> None:
    with working(shop):
        result = piped("dlq", "replay", shop.down, "--mode", "step_only", "--wait")
        assert result.exit_code == 0, result.output
        assert result.stdout.endswith(f"dl-{shop.down} succeeded; more steps would follow\n")
        rest = piped("runs", "retry", shop.down, "--wait")
    assert (rest.exit_code, shop.calls()) == (0, ["charge tok-7", "book"]), rest.output


def test_a_full_replay_is_a_new_run(shop: Shop) -> None:
    with working(shop):
        patch = '{"order": {"country": "DE"}}'
        result = piped("dlq", "replay", shop.wrong, "--mode", "full", "--patch", patch, "--wait", "--json")
    replay = json.loads(result.stdout)
    assert (result.exit_code, replay["run_id"] != shop.wrong) == (0, True)
    assert shop.calls() == ["reserve", "charge tok-8", "book"]
    assert shop.run(replay["run_id"]).replay_of == shop.wrong


def test_a_new_operation_has_new_keys(shop: Shop) -> None:
    with working(shop):
        assert piped("dlq", "replay", shop.down, "--new-operation", "--wait").exit_code == 0
    flow = f"idem_flow:default:{shop.down}"
    assert shop.sent_keys() == [f"{flow}:/charge#0:1", f"{flow}:/book#0:1"]


def test_a_replay_can_have_another_retry_policy(shop: Shop) -> None:
    Path("bank-is-down").touch()
    with working(shop):
        fields = ["--retry", "max_retries=3", "--retry", "base_delay=1ms"]
        assert piped("dlq", "replay", shop.down, *fields, "--wait").exit_code == 1
    assert shop.calls() == ["charge tok-7"] * 4


def test_ids_come_from_standard_input(shop: Shop) -> None:
    listed = piped("dlq", "list").output
    result = piped("dlq", "replay", "-", "-q", stdin=listed)
    assert result.stdout.split() == [f"dl-{shop.wrong}", f"dl-{shop.down}"]
    assert {shop.letter(run).status for run in (shop.down, shop.wrong)} == {"REPLAYING"}


def test_an_unknown_letter_does_not_stop_the_replay_of_others(shop: Shop) -> None:
    result = piped("dlq", "replay", "dl-nonsense", shop.down)
    assert (result.exit_code, shop.letter(shop.down).status) == (3, "REPLAYING")
    assert "dead letter 'dl-nonsense' was not found: `redrive dlq list` lists the newest" in result.stderr


# -- by hand -------------------------------------------------------------------------------------------


def test_a_manual_result_is_accepted(shop: Shop) -> None:
    Path("paid.json").write_text('"by telephone"', encoding="utf-8")
    with working(shop):
        result = piped("dlq", "complete", shop.down, "--output", "@paid.json", "--wait", "--by", "kim")
    assert (result.exit_code, shop.calls()) == (0, ["book"]), result.output
    (replay,) = shop.letter(shop.down).replays
    assert (replay.mode, replay.by) == ("COMPLETE", "kim")


def test_an_invalid_manual_result_is_refused(shop: Shop) -> None:
    result = piped("dlq", "complete", shop.down, "--output", "7")
    assert (result.exit_code, shop.letter(shop.down).status) == (5, "OPEN")
    assert "the output of step 'charge' is not valid" in result.stderr


# -- refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--input", "nonsense"], 2, "--input is not valid JSON"),
        (["--patch", "[1]"], 2, "--patch must be a JSON object"),
        (["--patch", "@nowhere.json"], 2, "@nowhere.json: No such file"),
        (["--output", "hello"], 2, "needs its own quotes: '\"hello\"'"),
        (["--input", "{}", "--patch", "{}"], 2, "exclude each other"),
        (["--input", "{}", "dl-other"], 2, "use --patch for several"),
        (["--retry", "max_retrys=1"], 2, "did you mean 'max_retries'"),
        (["--retry", "five"], 2, "write --retry max_retries=5"),
        (["--from-step", "9"], 5, "the recorded steps are 0 reserve, 1 charge"),
        (["--from-step", "bake"], 5, "step 'bake' is not recorded"),
        (["--patch", '{"order": {"number": "x"}}'], 5, "order.number"),
        (["--mode", "step_only", "--patch", "{}"], 5, "STEP_ONLY keeps the input"),
        (["--mode", "SKIP"], 2, "--mode skip needs --output"),
        (["--mode", "from_step"], 2, "--mode from_step needs --from-step"),
    ],
)
def test_invalid_options_are_refused_and_change_nothing(shop: Shop, options: list[str], code: int, words: str) -> None:
    result = piped("dlq", "replay", shop.down, *options)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert shop.letter(shop.down).status == "OPEN"


def test_replaying_a_closed_letter_names_the_retry_command(shop: Shop) -> None:
    assert piped("dlq", "resolve", shop.down).exit_code == 0
    result = piped("dlq", "replay", shop.down)
    assert result.exit_code == 4
    assert f"To run it anyway: redrive runs retry {shop.down}" in result.stderr


def test_another_decision_while_one_runs_is_a_conflict(shop: Shop) -> None:
    assert piped("dlq", "replay", shop.down).exit_code == 0
    result = piped("dlq", "replay", shop.down, "--mode", "full")
    assert result.exit_code == 4
    assert f"To follow it: redrive runs watch {shop.down}" in result.stderr


def test_an_ambiguous_id_prefix_is_refused(shop: Shop) -> None:
    common = "".join(a for a, b in zip(shop.down, shop.wrong, strict=True) if a == b)[:6]
    result = piped("dlq", "replay", f"dl-{common}")
    assert (result.exit_code, "is the beginning of 2 dead letters" in result.stderr) == (5, True), result.stderr


# -- on a terminal -------------------------------------------------------------------------------------


def test_the_user_sees_the_plan_and_confirms_it(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    asking = terminal("dlq", "replay", shop.down)
    asking.wait_for("[y/N]")
    assert "charge (step 1), which charges the card" in asking.text
    assert f"Run dead letter dl-{shop.down} (sell, step charge) again?" in asking.text
    asking.type("n\n")
    assert (asking.end(), shop.letter(shop.down).status) == (5, "OPEN")
    agreed = terminal("dlq", "replay", shop.down)
    agreed.wait_for("[y/N]")
    agreed.type("y\n")
    assert (agreed.end(), shop.letter(shop.down).status) == (0, "REPLAYING")
    assert f"To follow it: redrive runs watch {shop.down}" in agreed.text
    assert "No running worker has workflow 'sell'" in agreed.text


def test_the_question_about_several_letters_names_their_number(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    asking = terminal("dlq", "replay", shop.down, shop.wrong)
    asking.wait_for("[y/N]")
    assert "Run all 2 of them" in asking.text
    asking.type("\n")
    assert asking.end() == 5


def test_an_invalid_replay_is_refused_without_a_question(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    refused = terminal("dlq", "replay", shop.down, "--from-step", "9")
    assert (refused.end(), "[y/N]" in refused.text) == (5, False)


def test_a_repeated_decision_is_answered_without_a_question(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    assert piped("dlq", "replay", shop.down, "--by", "kim").exit_code == 0
    same = terminal("dlq", "replay", shop.down)
    assert (same.end(), "[y/N]" in same.text) == (0, False)
    assert "was decided before, by kim" in same.text
    other = terminal("dlq", "replay", shop.down, "--mode", "full")
    assert (other.end(), "[y/N]" in other.text) == (4, False)


def test_ctrl_c_while_waiting_does_not_stop_the_run(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    waiting = terminal("dlq", "replay", shop.down, "--wait", "--yes")
    waiting.wait_for("No running worker has workflow 'sell'")
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.end() == 130
    assert f"The run continues. To follow it: redrive runs watch {shop.down}" in waiting.text
    assert shop.letter(shop.down).status == "REPLAYING"
