"""Regressions of the command line, with one test for each reported fault."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from console import PATIENCE, Terminal, piped
from dlq_kit import Shop, working

from redrive.cli.dlq.edit import locate_faults
from redrive.cli.output import echo, escape_line, json_text, style_text
from redrive.reasons import Reason, ReasonCode

REDRIVE = Path(sys.executable).with_name("redrive")


def script(text: str) -> str:
    """Return the command of a program that is used as the editor."""
    file = Path("program.py").absolute()
    file.write_text(f"import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\n{text}\n", encoding="utf-8")
    return f"{sys.executable} {file}"


def kept(stderr: str) -> Path:
    """Return the file that keeps the typed text, as the message says."""
    found = re.search(r"Your text is kept in (\S+\.json)\. When it is right: redrive dlq replay", stderr)
    assert found, stderr
    return Path(found[1])


def no_traceback(result: object) -> None:
    assert "Traceback" not in str(getattr(result, "output", ""))
    assert isinstance(getattr(result, "exception", None), SystemExit | None)


# -- questions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["dlq", "replay"], ["dlq", "ignore"], ["runs", "cancel"]])
def test_one_ctrl_c_ends_a_question(shop: Shop, terminal: Callable[..., Terminal], command: list[str]) -> None:
    asking = terminal(*command, shop.down)
    press_ctrl_c(asking)
    assert asking.end() == 1
    assert "Aborted!" in asking.text
    assert shop.letter(shop.down).status == "OPEN"


def test_one_ctrl_c_ends_the_question_about_many_letters(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    asking = terminal("dlq", "ignore", "--all")
    press_ctrl_c(asking)
    assert asking.end() == 1


def press_ctrl_c(asking: Terminal) -> None:
    """Send SIGINT to the command once it waits for the answer to its question."""
    asking.wait_for("[y/N]")
    limit = time.monotonic() + PATIENCE
    while _state(asking.process.pid) != "S":  # The process sleeps while it waits for input.
        assert time.monotonic() < limit
        time.sleep(0.01)
    os.kill(asking.process.pid, signal.SIGINT)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


# -- editors -----------------------------------------------------------------------------------------------


def test_text_that_is_not_utf_8_is_reported_and_kept(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    latin = "file.write_bytes(file.read_text('utf-8').replace('PO', 'PÖ').encode('latin-1', 'replace'))"
    monkeypatch.setenv("EDITOR", script(latin))
    result = piped("dlq", "edit", shop.wrong, "--yes")
    no_traceback(result)
    assert result.exit_code == 5
    assert "line 7 is not UTF-8 text: have your editor save as UTF-8" in result.stderr
    file = kept(result.stderr)
    assert b"P\xd6" in file.read_bytes()
    file.unlink()
    assert shop.letter(shop.wrong).status == "OPEN"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("text.replace('\"PO\"', '[' * 5000 + ']' * 5000)", "nested"),
        ('text.replace(\'"number": 8,\', \'"number": 8, "number": 9,\')', 'line 3: "number" is given twice'),
        ("text.replace('\"PO\",', '\"PL\"')", "line 5, column 5: a comma or a closing bracket is missing here"),
        ('text.replace(\'"number": 8\', \'"number": "x"\')', "is not valid: line 3, order.number: "),
        ("text.replace('\"country\": \"PO\",', '')", "is not valid: line 2, order.country: "),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_the_text_is_kept(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, edit: str, said: str
) -> None:
    write = f"text = file.read_text('utf-8')\nfile.write_text({edit}, 'utf-8')"
    monkeypatch.setenv("EDITOR", script(write))
    result = piped("dlq", "edit", shop.wrong, "--yes")
    no_traceback(result)
    assert (result.exit_code, said in result.stderr) == (5, True), result.stderr
    file = kept(result.stderr)
    assert not file.read_text(encoding="utf-8").startswith("#")
    file.unlink()


def test_the_kept_text_can_be_replayed_unchanged(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    program = script("file.write_text(file.read_text('utf-8').replace('\"PO\"', '\"PL\"'), 'utf-8')")
    editing = terminal("dlq", "edit", shop.wrong, EDITOR=program, VISUAL="")
    editing.wait_for("[y/N]")
    editing.type("n\n")
    assert editing.end() == 5
    found = re.search(r"\S+redrive-\S+\.json", editing.text)
    assert found
    file = Path(found[0].lstrip("@"))
    with working(shop):
        assert piped("dlq", "replay", shop.wrong, "--input", f"@{file}", "--wait").exit_code == 0
    assert shop.run(shop.wrong).output == "booked 8"
    file.unlink()


def test_a_fault_without_a_line_gets_the_line_of_its_parent() -> None:
    lines = {"": 4, "order": 5, "order.lines": 6, "order.lines[0]": 7}
    faults = tuple(
        Reason(ReasonCode.FAULT, path=path, why=Reason(ReasonCode.TEXT, text=why))
        for path, why in (("order.lines[0].price", "missing"), ("order.id", "missing"), ("amount", "bad"))
    )
    what = Reason(ReasonCode.WORKFLOW_INPUT, workflow="x")
    mistake = Reason(ReasonCode.VALUE_INVALID, what=what, faults=faults, more=None)
    assert locate_faults(mistake, lines).endswith(
        "line 7, order.lines[0].price: missing; line 5, order.id: missing; line 4, amount: bad"
    )
    plain = Reason(ReasonCode.TEXT, text="the input must be an object")
    assert locate_faults(plain, lines) == "the input must be an object"


# -- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dlq", "replay", "ID", "--from-step", "9" * 5000], "has 5,000 digits"),
        (["dlq", "replay", "--all", "--from-step", "9" * 5000], "has 5,000 digits"),
        (["dlq", "replay", "ID", "--from-step", "99999"], "the run has no step with index 99999"),
        (["dlq", "replay", "ID", "--patch", '{"a": ' + "[" * 9000 + "]" * 9000 + "}"], "nested"),
        (["dlq", "replay", "ID", "--patch", '{"order": 1, "order": 2}'], '"order" is given twice'),
        (["dlq", "complete", "ID", "--output", '{"a": 1, "a": 2}'], '"a" is given twice'),
        (["runs", "start", "sell", "--app", "shop:app", "--input", '{"a":1,"a":2}'], '"a" is given twice'),
        (["runs", "start", "sell", "--app", "shop:app", "--many", "latin.jsonl"], "is not UTF-8 text"),
        (["runs", "start", "sell", "--app", "shop:app", "--input", "@latin.jsonl"], "is not UTF-8 text"),
    ],
)
def test_an_unusable_value_is_refused_with_an_explanation(shop: Shop, arguments: list[str], said: str) -> None:
    Path("latin.jsonl").write_bytes('{"a": "Ö"}\n'.encode("latin-1"))
    result = piped(*(shop.down if word == "ID" else word for word in arguments))
    no_traceback(result)
    assert (result.exit_code in (2, 5), said in result.stderr) == (True, True), result.output
    assert shop.letter(shop.down).status == "OPEN"


# -- pipes -------------------------------------------------------------------------------------------------


def test_a_closed_output_pipe_does_not_stop_the_command(shop: Shop) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # Writing to the pipe will fail.
    work = subprocess.run(
        [REDRIVE, "dlq", "ignore", shop.down, shop.wrong, "--yes"],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
        check=False,
    )
    os.close(writing)
    assert (work.returncode, work.stderr) == (0, b"")
    assert [shop.letter(run).status for run in (shop.down, shop.wrong)] == ["IGNORED", "IGNORED"]


def test_a_truncated_list_says_so_and_all_lists_everything(shop: Shop) -> None:
    short = piped("dlq", "list", "--limit", "1", "-q")
    assert short.stdout.splitlines() == [f"dl-{shop.wrong}"]
    assert "There are more. --all lists everything" in short.stderr
    cursor = short.stderr.split()[-1]
    assert piped("dlq", "list", "-q", "--cursor", cursor).stdout.split() == [f"dl-{shop.down}"]
    whole = piped("dlq", "list", "-q")
    assert (whole.stdout.split(), whole.stderr) == ([f"dl-{shop.wrong}", f"dl-{shop.down}"], "")


@pytest.mark.parametrize("command", [["runs", "list"], ["dlq", "list"], ["audit", "list"], ["dlq", "groups"]])
def test_all_pages_are_listed(shop: Shop, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    counted(shop)
    everything = piped(*command, "--limit", "500", "--json")
    monkeypatch.setattr("redrive.cli.target._MAX_PAGE_SIZE", 1)
    by_pages = piped(*command, "--all", "--json")
    assert json.loads(by_pages.stdout)["items"] == json.loads(everything.stdout)["items"]
    assert json.loads(by_pages.stdout)["next"] is None
    lines = piped(*command, "--all")
    assert (len(lines.stdout.splitlines()), lines.stderr) == (len(json.loads(everything.stdout)["items"]), "")


def counted(shop: Shop) -> None:
    """Let a worker count the groups."""
    limit = time.monotonic() + PATIENCE
    with working(shop):
        while not piped("dlq", "groups", "-q").stdout:
            assert time.monotonic() < limit
            time.sleep(0.05)


# -- tables ------------------------------------------------------------------------------------------------


def test_a_letter_is_listed_with_its_correlation_id(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    table = terminal("dlq", "list")
    table.end()
    assert table.text.splitlines()[0].split() == ["ID", "WORKFLOW", "STEP", "ABOUT", "FAILED", "CODE"]
    assert "order-7" in table.text
    assert piped("dlq", "list").stdout.splitlines()[0].split("\t")[9] == "order-8"


def test_columns_without_room_are_named(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    assert piped("dlq", "tag", shop.down, "a-long-tag", "another-one").exit_code == 0
    table = terminal("dlq", "list")
    table.end()
    assert "No room for CODE: a wider terminal shows more" in " ".join(table.text.split())


def test_the_newest_hours_of_a_trend_are_never_cut(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    counted(shop)
    table = terminal("dlq", "groups", NO_COLOR="1", COLUMNS="70")
    table.end()
    row = next(line for line in table.text.splitlines() if "charge" in line)
    assert set(row.rstrip()[-2:]) & set("▂▃▄▅▆▇█"), (
        row
    )  # The failure is in the current hour or at the end of the previous one.
    assert "…▁" in row


def test_terminal_control_characters_are_escaped() -> None:
    wicked = "a\x1b[2Jb\x9bc\u202egnp.exe\u2066x\ud800"
    assert escape_line(wicked) == "a\\u001b[2Jb\\u009bc\\u202egnp.exe\\u2066x\\ud800"
    assert json.loads(json_text({"a": wicked}))["a"] == wicked
    assert json_text(wicked).isascii()
    assert escape_line("one\nINFO forged\r\ttwo") == "one\\nINFO forged\\r\\ttwo"


def test_styles_in_stored_text_are_escaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A stored text could hide the rest of a line with a style, or colour a failure green."""
    monkeypatch.setattr("redrive.cli.output.use_colour", lambda: True)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    echo(f"{style_text('FAILED', fg='red')} \x1b[8mhidden\x1b[32mSUCCESS")
    assert capsys.readouterr().out == "\x1b[31mFAILED\x1b[0m \\u001b[8mhidden\\u001b[32mSUCCESS\n"


def test_all_commands_escape_control_characters(shop: Shop) -> None:
    wicked = "late\u202e\x9b2J"
    assert piped("dlq", "comment", shop.down, wicked).exit_code == 0
    assert piped("dlq", "ignore", shop.down, "--reason", wicked).exit_code == 0
    for command in (
        ["dlq", "show", shop.down],
        ["dlq", "show", shop.down, "--json"],
        ["audit", "list"],
        ["audit", "export", "--format", "json"],
        ["dlq", "replay", shop.down],
        ["dlq", "show", f"x{wicked}"],
    ):
        shown = piped(*command)
        assert not set("\u202e\x9b") & set(shown.output), command


# -- sets --------------------------------------------------------------------------------------------------


def test_sets_are_listed_found_by_prefix_and_show_how_their_runs_ended(shop: Shop) -> None:
    (shop.folder / "bank-is-down").unlink(missing_ok=True)
    with working(shop):
        begun = piped("dlq", "replay", "--all", "--by", "kim", "--reason", "the bank is back", "--wait")
    assert begun.exit_code == 0, begun.output
    listed = piped("dlq", "bulk", "list")
    id, what, status, done, refused, rate, _, by, reason = listed.stdout.rstrip("\n").split("\t")
    assert (what, status, done, refused, rate, by, reason) == (
        "run again", "DONE", "2 of 2", "", "", "kim", "the bank is back",
    )  # fmt: skip
    page = piped("dlq", "bulk", "show", id[:20])
    assert page.exit_code == 0
    assert "runs         1 succeeded, 1 failed again" in page.stdout
    assert "mode         from where it failed" in page.stdout
    assert json.loads(piped("dlq", "bulk", "show", id, "--json").stdout)["failed_again"] == 1
    missing = piped("dlq", "bulk", "show", "zzz")
    assert (missing.exit_code, "`redrive dlq bulk list` lists the newest" in missing.stderr) == (3, True)


def test_a_dry_run_of_an_earlier_decision_names_its_user(shop: Shop) -> None:
    assert piped("dlq", "replay", shop.down, "--by", "kim").exit_code == 0
    again = piped("dlq", "replay", shop.down, "--dry-run")
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith(f"dl-{shop.down} was decided before, by kim at ")
    assert again.stdout.endswith("Nothing was changed.\n")


def test_a_manually_completed_step_is_marked(shop: Shop) -> None:
    with working(shop):
        done = piped("dlq", "complete", shop.down, "--output", '"paid by telephone"', "--wait")
    assert done.exit_code == 0, done.output
    page = piped("dlq", "show", shop.down).stdout
    assert "its result was given by hand" in page
    assert '1 charge: given by hand: "paid by telephone"' in page
    assert "attempt 2, succeeded" not in page
