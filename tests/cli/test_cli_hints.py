"""Hints that can be copied and run: they name an available program and the selected store."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from console import Terminal, piped
from toy_store import Toys

from redrive.cli.hints import list_path_commands, program_name

BIN = Path(sys.executable).parent


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


# -- the store and the app -----------------------------------------------------------------------------


@pytest.fixture
def elsewhere(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> Toys:
    """Remove the store from the environment, so that only options name it."""
    monkeypatch.delenv("REDRIVE_URL")
    return toys


def test_hints_repeat_the_given_store_or_app(elsewhere: Toys) -> None:
    by_url = piped("runs", "show", elsewhere.wet, "--url", elsewhere.url).output
    assert last_line(by_url).endswith(f"redrive runs why {elsewhere.wet} --url {elsewhere.url}")
    by_app = piped("runs", "show", elsewhere.wet, "--app", "toys:app").output
    assert last_line(by_app).endswith(f"redrive runs why {elsewhere.wet} --app toys:app")


def test_hints_do_not_repeat_the_environment(toys: Toys) -> None:
    assert last_line(piped("runs", "show", toys.wet).output).endswith(f"redrive runs why {toys.wet}")


def test_each_hint_from_a_run_to_its_letter_can_be_executed(elsewhere: Toys) -> None:
    shown = piped("runs", "show", elsewhere.wet, "--app", "toys:app").output
    why = piped(*shlex.split(last_line(shown).partition("redrive ")[2]))
    assert why.exit_code == 0
    (line,) = [line for line in why.output.splitlines() if "Its dead letter has the details: " in line]
    letter = piped(*shlex.split(line.partition("redrive ")[2]))
    assert letter.exit_code == 0
    (line,) = [line for line in letter.output.splitlines() if "the whole run: " in line]
    run = piped(*shlex.split(line.partition("redrive ")[2]))
    assert run.exit_code == 0
    assert run.output.startswith(f"run {elsewhere.wet}  make  DLQ_PENDING\n")


def test_a_hint_to_start_a_worker_names_the_given_app(elsewhere: Toys) -> None:
    assert (
        "Start one: redrive worker toys:app\n" in piped("runs", "why", elsewhere.sleeping, "--app", "toys:app").output
    )
    by_url = piped("runs", "why", elsewhere.sleeping, "--url", elsewhere.url).output
    assert f"Start one: redrive worker module:app --url {elsewhere.url}\n" in by_url


def test_hints_of_the_doctor_and_of_errors_repeat_the_given_app(elsewhere: Toys) -> None:
    assert "    redrive dlq list --app toys:app\n" in piped("doctor", "--app", "toys:app").output
    missing = piped("runs", "show", "zzzz", "--app", "toys:app")
    assert "`redrive runs list --app toys:app` lists the newest" in missing.stderr
    unknown = piped("workflows", "pause", "mak", "--app", "toys:app")
    assert "(`redrive workflows list --app toys:app` lists all)" in unknown.stderr


def test_a_password_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    result = piped("doctor", "--url", "postgresql://kim:hush@127.0.0.1:1/none")
    assert "hush" not in result.output
    assert result.exit_code == 1


# -- the program ---------------------------------------------------------------------------------------


def test_a_program_on_the_path_is_called_by_its_name() -> None:
    assert program_name() == "redrive"
    assert list_path_commands() == []


def test_a_program_that_is_not_on_the_path_is_named_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert program_name() == str(BIN / "redrive")
    monkeypatch.setattr(sys, "argv", ["../bin/redrive"])
    assert program_name() == "../bin/redrive"


def test_a_program_called_as_a_module_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["somewhere/redrive/__main__.py"])
    monkeypatch.chdir(tmp_path)
    assert program_name() == str(BIN / "redrive")
    monkeypatch.chdir(BIN.parent)
    assert program_name() == f"{BIN.name}/redrive"
    assert list_path_commands() == [f". {BIN / 'activate'}"]


def test_hints_name_the_module_if_there_is_no_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["somewhere/redrive/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert program_name() == f"{tmp_path / 'python'} -m redrive"
    assert list_path_commands() == [f'export PATH={tmp_path}:"$PATH"']


def test_init_prints_the_next_commands(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "redrive", "init", "new"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    next_lines = [line.strip() for line in said.partition("Next:")[2].strip().splitlines()]
    assert next_lines == [f". {BIN / 'activate'}", "cd new", "redrive dev shop:app"]
    assert "Next:\n  cd new\n  redrive dev shop:app\n" in piped("init", str(tmp_path / "b")).output.replace(
        str(tmp_path / "b"), "new"
    )


# -- questions -----------------------------------------------------------------------------------------


def test_an_unknown_prefix_is_reported_without_a_question(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("runs", "cancel", "zzzz")
    assert shown.end() == 3
    assert "run 'zzzz' was not found" in shown.text
    assert "[y/N]" not in shown.text


def test_the_question_names_the_whole_id(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    asked = terminal("runs", "cancel", toys.sleeping[:25])
    asked.wait_for(f"Cancel run {toys.sleeping} (rest, SLEEPING), for good? [y/N]")
    asked.type("n\n")
    assert asked.end() == 5


@pytest.mark.parametrize("command", [["workflows", "pause", "mak"], ["policies", "delete", "--step", "none"]])
def test_unknown_objects_are_reported_without_a_question(
    toys: Toys, terminal: Callable[..., Terminal], command: list[str]
) -> None:
    shown = terminal(*command)
    assert shown.end() == 3
    assert "[y/N]" not in shown.text


# -- policies for unknown steps and workflows ----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--step", "pain"], "step 'pain' was not found in the newest 50 runs; did you mean 'paint'?"),
        (["--step", "pain", "--app", "toys:app"], "step 'pain' was not found in the app; did you mean 'paint'?"),
        (["--workflow", "mak"], "workflow 'mak' is not registered; did you mean 'make'?"),
    ],
)
def test_a_policy_for_an_unknown_step_or_workflow_needs_confirmation(
    toys: Toys, arguments: list[str], words: str
) -> None:
    refused = piped("policies", "set", *arguments, "max_retries=1")
    assert (refused.exit_code, words in refused.stderr) == (3, True), refused.stderr
    assert piped("policies", "list").output == ""
    sure = piped("policies", "set", *arguments, "max_retries=1", "--yes")
    assert (sure.exit_code, words in sure.stderr) == (0, True)
    assert piped("policies", "list").output != ""


def test_the_user_is_asked_about_an_unknown_step(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    asked = terminal("policies", "set", "--step", "pain", "max_retries=1")
    asked.wait_for("Store this policy for step 'pain' all the same? [y/N]")
    asked.type("n\n")
    assert asked.end() == 5
    assert "did you mean 'paint'?" in asked.text
    assert piped("policies", "list").output == ""


def test_a_known_step_needs_no_confirmation(toys: Toys) -> None:
    result = piped("policies", "set", "--step", "paint", "--workflow", "make", "max_retries=1")
    assert (result.exit_code, result.stderr) == (0, "")


def test_reasons_are_shown_whole_on_a_small_terminal(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("dlq", "list")
    assert shown.end() == 0
    lines = shown.text.splitlines()
    assert lines[0].split() == ["ID", "WORKFLOW", "STEP", "FAILED", "CODE"]
    assert max(map(len, lines)) <= 80
    assert "step 'paint' failed once (unknown): the error was raised as NonRetryable" in " ".join(shown.text.split())
