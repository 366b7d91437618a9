"""Line wrapping: a terminal gets lines that end between words, commands stay whole, pipes get plain text."""

import io
from collections.abc import Callable

import pytest
from console import Terminal
from toy_store import Toys

from redrive.cli.output import fold_text


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


def test_a_pipe_gets_the_text_as_it_is() -> None:
    text = "one two three four five six seven eight nine ten"
    assert fold_text(text, io.StringIO()) == text


def test_a_terminal_gets_lines_that_end_between_words() -> None:
    text = "one two three four five six seven eight nine ten"
    assert fold_text(text, Screen()) == "one two three four five six seven eight\nnine ten"
    assert fold_text(f"  {text}", Screen(), deeper="  ").splitlines()[1] == "    eight nine ten"


@pytest.mark.parametrize(
    "command", ["redrive runs why 01k9x7 --app company.shop:app", ".venv/bin/redrive dlq show dl-01k9x7 --app a:b"]
)
def test_a_command_is_never_wrapped(command: str) -> None:
    assert fold_text(f"To understand it, type this: {command}", Screen()).splitlines()[-1] == command
    assert f"`{command}`" in fold_text(f"run 'zzz' does not exist; `{command}` shows the newest", Screen())


def test_words_longer_than_the_screen_are_not_split() -> None:
    assert fold_text("a\n  b", Screen()) == "a\n  b"
    assert fold_text("x" * 50, Screen()) == "x" * 50


def test_commands_fit_an_ordinary_terminal(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    for command in (["runs", "why", toys.wet], ["runs", "show", toys.wet], ["doctor"], ["runs", "show", "zzzz"]):
        shown = terminal(*command)
        shown.end()
        too_long = [line for line in shown.text.splitlines() if len(line) > 80 and "redrive" not in line]
        assert too_long == []
