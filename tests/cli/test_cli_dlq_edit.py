"""`redrive dlq edit`: the editor, mistakes, the difference, and hidden values."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from console import Terminal, piped
from dlq_kit import Shop, working


def editor(*edits: str) -> str:
    """Return the command of an editor that replaces text. Each call applies the next of the edits."""
    script = Path("editor.py").absolute()
    script.write_text(
        "import pathlib, sys\n"
        "number = len(list(pathlib.Path().glob('seen-*')))\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "pathlib.Path(f'seen-{number}').write_bytes(file.read_bytes())\n"
        f"old, new = {[edit.split('->') for edit in edits]!r}[number]\n"
        "file.write_text(file.read_text('utf-8').replace(old, new), 'utf-8')\n",
        encoding="utf-8",
    )
    return f"{sys.executable} {script}"


def seen(number: int) -> str:
    return Path(f"seen-{number}").read_text(encoding="utf-8")


def test_an_edit_is_validated_and_replayed_with_hidden_values_unchanged(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", editor('"PO"->"PL"'))
    with working(shop):
        result = piped("dlq", "edit", shop.wrong, "--yes", "--wait", "--mode", "full", "--by", "kim")
    assert result.exit_code == 0, result.output
    assert shop.calls() == ["reserve", "charge tok-8", "book"]
    assert "tok-8" not in seen(0)
    assert '"card_token": "••••••"' in seen(0)
    (replay,) = shop.letter(shop.wrong).replays
    assert [(change.path, change.after) for change in replay.changes] == [("order.country", "PL")]
    assert replay.by == "kim"


def test_a_hidden_value_can_be_replaced(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", editor('"••••••"->"tok-new"'))
    with working(shop):
        assert piped("dlq", "edit", shop.down, "--yes", "--wait").exit_code == 0
    assert shop.calls() == ["charge tok-new", "book"]


def test_an_unchanged_input_is_not_replayed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for unchanged in ("true", editor("\n  ->\n      ")):  # The first does not save; the second saves an equal input.
        monkeypatch.setenv("EDITOR", unchanged)
        result = piped("dlq", "edit", shop.wrong, "--yes")
        assert (result.exit_code, "so nothing was done" in result.stderr) == (0, True), result.output
    assert shop.letter(shop.wrong).status == "OPEN"


def test_a_dry_run_of_an_edit_shows_the_difference_and_changes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", editor('"PO"->"PL"'))
    result = piped("dlq", "edit", shop.wrong, "--dry-run")
    assert '    ~ order.country: "PO" becomes "PL"' in result.stdout.splitlines()
    assert shop.letter(shop.wrong).status == "OPEN"


@pytest.mark.parametrize(
    ("edit", "words"),
    [("8->x", "not usable JSON"), ('"number": 8->"number": "x"', "order.number"), ("country->land", "order.country")],
)
def test_an_invalid_edit_in_a_script_ends_the_command(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, edit: str, words: str
) -> None:
    monkeypatch.setenv("EDITOR", editor(edit))
    result = piped("dlq", "edit", shop.wrong, "--yes")
    assert (result.exit_code, words in result.stderr) == (5, True), result.stderr
    assert shop.letter(shop.wrong).status == "OPEN"


@pytest.mark.parametrize(("program", "words"), [("false", "Editing failed"), ("no-such-editor", "No such file")])
def test_an_editor_that_fails_changes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.setenv("EDITOR", program)
    result = piped("dlq", "edit", shop.wrong, "--yes")
    assert (result.exit_code, words in result.stderr) == (1, True), result.stderr
    assert f"`redrive dlq replay dl-{shop.wrong} --patch JSON`" in result.stderr
    assert shop.letter(shop.wrong).status == "OPEN"


def test_an_editor_that_leaves_no_file_changes_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "rm")
    result = piped("dlq", "edit", shop.wrong, "--yes")
    assert (result.exit_code, "the editor left no file to read" in result.stderr) == (5, True), result.output
    assert shop.letter(shop.wrong).status == "OPEN"


def test_edit_without_a_terminal_names_the_alternative(shop: Shop) -> None:
    result = piped("dlq", "edit", shop.wrong)
    assert result.exit_code == 2
    assert "edit needs a terminal" in result.stderr


def test_a_letter_that_cannot_be_replayed_opens_no_editor(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", editor('"PO"->"PL"'))
    assert piped("dlq", "edit", shop.wrong, "--yes", "--from-step", "9").exit_code == 5
    assert piped("dlq", "ignore", shop.wrong).exit_code == 0
    assert piped("dlq", "edit", shop.wrong, "--yes").exit_code == 4
    assert not Path("seen-0").exists()


def test_a_mistake_opens_the_editor_again_with_the_message(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    program = editor('"country": "PO",->', '"number": 8,->"number": 8, "country": "PL",')
    editing = terminal("dlq", "edit", shop.wrong, EDITOR=program, VISUAL="")
    editing.wait_for("[y/N]")
    assert seen(1).startswith("# MISTAKE: the input of workflow 'sell' is not valid: line 6, order.country")
    assert '"country": "PO"' not in seen(1)
    assert '~ order.country: "PO" becomes "PL"' in editing.text
    editing.type("y\n")
    assert (editing.end(), shop.letter(shop.wrong).status) == (0, "REPLAYING")


def test_saving_the_same_mistake_again_ends_the_edit(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    editing = terminal("dlq", "edit", shop.wrong, EDITOR=editor("country->land", "nothing->"), VISUAL="")
    assert editing.end() == 5
    assert "nothing was changed, as the input is still invalid" in " ".join(editing.text.split())
    assert shop.letter(shop.wrong).status == "OPEN"


def test_the_edited_file_is_private_and_removed_afterwards(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Path("looks.py").absolute()
    looks.write_text(
        "import os, sys\nopen('mode', 'w').write(f'{os.stat(sys.argv[1]).st_mode & 0o777:o} {sys.argv[1]}')",
        encoding="utf-8",
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {looks}")
    assert piped("dlq", "edit", shop.wrong, "--yes").exit_code == 0
    mode, name = Path("mode").read_text(encoding="utf-8").split()
    assert (mode, os.path.exists(name)) == ("600", False)
