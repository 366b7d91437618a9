"""`redrive dlq groups`, decisions on all letters that match a filter, and `redrive dlq bulk`."""

import json
import re
import signal
import time
from collections.abc import Callable

import pytest
from console import PATIENCE, Terminal, piped
from dlq_kit import Shop, working


def counted() -> list[dict[str, object]]:
    """Return the groups after a worker has counted both letters."""
    limit = time.monotonic() + PATIENCE
    while len(items := json.loads(piped("dlq", "groups", "--json").output)["items"]) < 2:
        assert time.monotonic() < limit, items
    return items


def until(ready: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < limit


# -- groups --------------------------------------------------------------------------------------------


def test_failures_are_grouped_by_cause(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    with working(shop):
        wrong, down = counted()
    assert (wrong["steps"], wrong["open"], wrong["sample_id"]) == (["book"], 1, f"dl-{shop.wrong}")
    lines = [line.split("\t") for line in piped("dlq", "groups").output.splitlines()]
    assert [line[:4] for line in lines] == [
        [wrong["fingerprint"], "1", "sell", "book"],
        [down["fingerprint"], "1", "sell", "charge"],
    ]
    assert re.fullmatch("(0,){22}(0,1|1,0)", lines[0][5])  # The hour may have ended meanwhile.
    assert piped("dlq", "groups", "-q").output.split() == [wrong["fingerprint"], down["fingerprint"]]
    assert piped("dlq", "groups", "--tenant", "acme").output == ""
    letters = piped("dlq", "list", "-q", "--fingerprint", str(down["fingerprint"])).output
    assert letters == f"dl-{shop.down}\n"
    table = terminal("dlq", "groups")
    assert (table.end(), "Counted up to" in table.text) == (0, True)
    assert f"redrive dlq replay --all --fingerprint {wrong['fingerprint']}" in table.text
    assert max(map(len, table.text.splitlines())) <= 80


def test_a_group_shows_its_error_message(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    with working(shop):
        wrong, _ = counted()
    table = terminal("dlq", "groups", COLUMNS="100")
    assert table.end() == 0
    assert f"    no VAT rate for 'PO' ({wrong['message']})" in " ".join(table.text.split("\n"))
    assert max(map(len, table.text.splitlines())) <= 100
    line = piped("dlq", "groups").output.splitlines()[0].split("\t")
    assert (line[6], line[-1]) == (wrong["message"], "no VAT rate for 'PO'")


def test_a_group_without_open_letters_is_shown_on_demand(shop: Shop) -> None:
    with working(shop):
        counted()
        assert piped("dlq", "ignore", shop.down).exit_code == 0
        until(lambda: len(piped("dlq", "groups", "-q").output.split()) == 1)
    assert len(piped("dlq", "groups", "-q", "--closed").output.split()) == 2


def test_a_cause_is_shown_assigned_commented_on_and_muted(shop: Shop) -> None:
    with working(shop):
        wrong, _ = counted()
    cause = str(wrong["fingerprint"])
    assert piped("dlq", "groups", "assign", cause, "--to", "kim", "--by", "ann").output.strip() == (
        f"done: assign {cause} to kim"
    )
    assert piped("dlq", "groups", "comment", cause, "asked the bank", "--by", "ann").exit_code == 0
    assert piped("dlq", "groups", "mute", cause, "--dry-run").output.startswith(f"would mute {cause} until it grows")
    assert piped("dlq", "groups", "mute", cause, "--until", "2h", "--by", "ann").exit_code == 0
    assert piped("dlq", "groups", "--muted", "-q").output.split() == [cause]
    shown = piped("dlq", "groups", "show", cause).output
    assert "no VAT rate for 'PO'" in shown
    assert "Assigned to kim." in shown
    assert "Muted by ann until 2" in shown
    assert "asked the bank" in shown
    assert piped("dlq", "groups", "unmute", cause, "--by", "ann").exit_code == 0
    assert piped("dlq", "groups", "--muted", "-q").output == ""
    late = piped("dlq", "groups", "mute", cause, "--until", "2020-01-01")
    assert (late.exit_code, "until must be in the future" in late.stderr) == (5, True)
    assert piped("dlq", "groups", "show", "none").exit_code == 3


# -- all that match ------------------------------------------------------------------------------------


def test_all_letters_of_a_filter_are_replayed(shop: Shop) -> None:
    with working(shop):
        patch = ["--patch", '{"order": {"country": "DE"}}', "--by", "kim", "--reason", "the bank is back"]
        result = piped("dlq", "replay", "--all", "--workflow", "sell", *patch, "--wait", "--json")
        done = json.loads(result.stdout)
        assert (result.exit_code, done["total"], done["done"], done["by"]) == (0, 2, 2, "kim")
        until(lambda: piped("runs", "list", "-q", "--status", "SUCCESS").output.count("\n") == 2)
    assert sorted(shop.calls()) == ["book", "book", "charge tok-7"]
    assert shop.letter(shop.down).replays[0].reason == "the bank is back"


def test_a_bulk_dry_run_counts_letters_and_shows_an_example(shop: Shop) -> None:
    result = piped("dlq", "replay", "--all", "--dry-run", "--mode", "from_step", "--from-step", "2")
    lines = result.stdout.splitlines()
    assert lines[:2] == ["would run again 1 of 2 dead letters", "1 would be refused:"]
    assert lines[2].startswith(f"  dl-{shop.down}: the run has no step with index 2")
    assert f"dl-{shop.wrong} would run again, from a chosen step." in lines[4]
    assert {shop.letter(run).status for run in (shop.down, shop.wrong)} == {"OPEN"}


def test_a_bulk_dry_run_without_replayable_letters_reports_zero(shop: Shop) -> None:
    result = piped("dlq", "replay", "--all", "--step", "charge", "--from-step", "2", "--dry-run")
    lines = result.stdout.splitlines()
    assert lines[:2] == ["would run again 0 of 1 dead letter", "1 would be refused:"]
    assert lines[3:] == ["Nothing was changed."]


def test_a_bulk_dry_run_reports_the_number_of_checked_letters(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.desk.bulk.PREVIEW_LIMIT", 1)
    result = piped("dlq", "replay", "--all", "--dry-run")
    first = result.stdout.splitlines()[0]
    assert first == "would run again 1 of the first 1 of 2 dead letters; the others were not checked"


def test_the_help_explains_wait_for_one_letter_and_for_all(shop: Shop) -> None:
    told = " ".join(piped("dlq", "replay", "--help").stdout.split())
    assert "Wait for the end of the runs; exit code 1 if one fails." in told
    assert "With --all: wait until every letter is processed, but not for the runs" in told


@pytest.mark.parametrize(("verb", "status"), [("resolve", "RESOLVED"), ("ignore", "IGNORED")])
def test_all_letters_of_a_filter_are_closed(shop: Shop, verb: str, status: str) -> None:
    dry = piped("dlq", verb, "--all", "--step", "charge", "--dry-run")
    assert dry.stdout == f"would {verb} 1 dead letter\n"
    with working(shop):
        done = piped("dlq", verb, "--all", "--step", "charge", "--reason", "a test", "--wait")
    assert done.exit_code == 0, done.output
    assert [shop.letter(run).status for run in (shop.down, shop.wrong)] == [status, "OPEN"]
    assert shop.letter(shop.down).resolution == "a test"


def test_refused_letters_are_listed_and_the_others_are_replayed(shop: Shop) -> None:
    with working(shop):
        begun = json.loads(piped("dlq", "replay", "--all", "--from-step", "2", "--json").stdout)
        followed = piped("dlq", "bulk", "show", begun["id"], "--wait")
    assert followed.exit_code == 1
    assert f"bulk action {begun['id']} runs again 1 of 2 letters, 1 refused: DONE" in followed.stdout
    assert f"    dl-{shop.down}: the run has no step with index 2" in followed.stdout
    refused = piped("dlq", "bulk", "show", begun["id"], "--refused")
    assert refused.stdout.startswith(f"dl-{shop.down}\t")
    assert shop.letter(shop.down).status == "OPEN"


def test_a_filter_without_matches_changes_nothing(shop: Shop) -> None:
    result = piped("dlq", "replay", "--all", "--code", "parse_error")
    assert (result.exit_code, result.stdout) == (0, "no open letter matches, so nothing was done\n")
    assert piped("audit", "list", "--event", "dlq.bulk_started").stdout == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no dead letters selected: give ids"),
        (["--code", "timeout"], "or --all and a filter"),
        (["dl-1", "--all"], "but not both"),
        (["dl-1", "--code", "timeout"], "but not both"),
        (["--all", "--input", "{}"], "use --patch for several"),
        (["--all", "--from-step", "charge"], "takes a number: a name can mean"),
        (["--all", "--key", "k"], "--key is for letters named by id"),
        (["--all", "--rate", "fast"], "such as 50/s"),
        (["dl-1", "--rate", "5/s"], "--rate is for many letters"),
    ],
)
def test_an_ambiguous_selection_is_refused(shop: Shop, options: list[str], words: str) -> None:
    result = piped("dlq", "replay", *options)
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr


# -- sets ----------------------------------------------------------------------------------------------


def test_a_set_is_shown_and_stopped(shop: Shop) -> None:
    begun = piped("dlq", "replay", "--all", "-q", "--by", "kim")  # No worker is running to process the set.
    id = begun.stdout.strip()
    assert "No worker is running" in begun.stderr
    page = piped("dlq", "bulk", "show", id).stdout
    assert page.startswith(f"bulk action {id} runs again ")
    assert ", by kim\n" in page
    assert "remaining    not counted yet" in page, "no worker has listed its letters yet"
    assert json.loads(piped("dlq", "bulk", "show", id, "--json").stdout)["status"] == "RUNNING"
    for verb, status in (("pause", "PAUSED"), ("resume", "RUNNING")):
        assert piped("dlq", "bulk", verb, id, "--by", "lee", "--dry-run").stdout.startswith(f"would {verb} ")
        turned = piped("dlq", "bulk", verb, id, "--by", "lee").stdout
        assert turned == f"{verb}d bulk action {id} after 0 letters\n", "no worker has counted the letters yet"
        assert json.loads(piped("dlq", "bulk", "show", id, "--json").stdout)["status"] == status
    assert piped("dlq", "bulk", "rate", id, "10 per second").exit_code == 0
    assert "at most 10/s: RUNNING" in piped("dlq", "bulk", "show", id).stdout
    assert piped("dlq", "bulk", "rate", id, "none").exit_code == 0
    assert piped("dlq", "bulk", "rate", id, "fast").exit_code == 2
    assert piped("dlq", "bulk", "stop", id, "--dry-run").stdout.startswith(f"would stop bulk action {id}")
    assert piped("dlq", "bulk", "stop", id, "--by", "lee").exit_code == 0
    stopped = json.loads(piped("dlq", "bulk", "show", id, "--json").stdout)
    assert (stopped["status"], stopped["stopped_by"], stopped["done"]) == ("STOPPED", "lee", 0)
    assert piped("dlq", "bulk", "show", id, "--wait").exit_code == 1
    with working(shop):
        pass
    assert shop.letter(shop.down).status == "OPEN"


def test_an_unknown_set_names_the_list_command(shop: Shop) -> None:
    for command in (["show"], ["stop"], ["show", "--wait"]):
        result = piped("dlq", "bulk", *command, "01m7gtc6tf9mkk1pvk7wg972gw")
        assert result.exit_code == 3
        assert "`redrive dlq bulk list` shows them" in result.stderr


def test_the_user_is_asked_with_the_number_of_letters(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    asking = terminal("dlq", "replay", "--all")
    asking.wait_for("Run again 2 dead letters? [y/N]")
    asking.type("n\n")
    assert asking.end() == 5
    assert piped("audit", "list", "--event", "dlq.bulk_started").stdout == ""


def test_a_large_bulk_action_is_confirmed_by_typing_its_number_in_the_terminal(
    shop: Shop, terminal: Callable[..., Terminal]
) -> None:
    lines = "".join(f'{{"order": {{"number": {n}, "country": "XX", "card_token": "t"}}}}\n' for n in range(100))
    assert piped("runs", "start", "sell", "--many", "-", "-q", "--app", "shop:app", stdin=lines).exit_code == 0
    with working(shop):
        until(lambda: not piped("runs", "list", "-q", "--status", "PENDING", "--status", "RUNNING").output)
    unasked = piped("dlq", "ignore", "--all")
    assert unasked.exit_code == 5
    assert "give --yes to ignore 102 dead letters without a question" in unasked.stderr
    assert piped("dlq", "ignore", "--all", "--dry-run").exit_code == 0
    assert piped("dlq", "bulk", "list", "-q").stdout == ""
    asking = terminal("dlq", "ignore", "--all")
    asking.wait_for("Type 102 to continue")
    asking.type("y\n")
    assert asking.end() == 5
    agreed = terminal("dlq", "ignore", "--all")
    agreed.wait_for("Type 102 to continue")
    agreed.type("102\n")
    assert agreed.end() == 0
    assert "To follow it: redrive dlq bulk show " in agreed.text


def test_ctrl_c_does_not_stop_the_bulk_action(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    waiting = terminal("dlq", "ignore", "--all", "--yes", "--wait")
    waiting.wait_for("processed")
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.end() == 130
    assert "The bulk action continues." in waiting.text
