"""Tracebacks: remembered frames read as Python itself would print them."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
from cases import each

from redrive.core import failure
from redrive.core.failure import capture_failure


def fails(number: int) -> float:
    return sum([number,
                number / 0])  # fmt: skip


def recurses(depth: int) -> float:
    return recurses(depth - 1) if depth else fails(1)


def misspells() -> object:
    return capturr  # noqa: F821


def notes() -> None:
    error = ValueError("two\nlines")
    error.add_note("and a note")
    raise error


def follows() -> None:
    try:
        fails(1)
    except ZeroDivisionError:
        raise KeyError("another") from None


def chains() -> None:
    try:
        fails(1)
    except ZeroDivisionError as error:
        raise KeyError("another") from error


def during() -> None:
    try:
        fails(1)
    except ZeroDivisionError:
        raise KeyError("another")  # noqa: B904


def groups() -> None:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def does_not_parse() -> None:
    compile("a b", "file", "exec")


class Own(ValueError):
    """An exception that the standard library does not have."""


def raises_its_own() -> None:
    raise Own("of this file")


def says_nothing() -> None:
    raise TimeoutError


def says_what_is_no_text() -> None:
    raise KeyError(("a", 1))


ALL: list[Callable[[], object]] = [
    lambda: fails(1), lambda: recurses(30), misspells, notes, follows, chains, during, groups, does_not_parse,
    raises_its_own, says_nothing, says_what_is_no_text,
]  # fmt: skip


def error_of(function: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


@each("function", ALL)
def test_a_stack_reads_as_python_prints_it_the_second_time_too(function: Callable[[], object]) -> None:
    for _ in range(2):
        error = error_of(function)
        assert capture_failure(error).stack == "".join(traceback.format_exception(error)).rstrip("\n")


def test_two_places_in_one_function_are_two_frames() -> None:
    def either(first: bool) -> None:
        if first:
            raise ValueError("here")
        raise ValueError("there")

    stacks = [capture_failure(error_of(lambda first=first: either(first))).stack for first in (True, False)]  # type: ignore[misc]
    assert ['raise ValueError("here")' in stack for stack in stacks] == [True, False]


def test_the_same_code_in_two_files_is_two_frames() -> None:
    errors = []
    for file in ("one.py", "two.py"):
        names: dict[str, Callable[[], object]] = {}
        exec(compile("def both():\n    raise ValueError('x')", file, "exec"), names)
        errors.append(error_of(names["both"]))
    one, two = (capture_failure(error).stack for error in errors)
    assert 'File "one.py"' in one
    assert 'File "two.py"' in two


def test_a_limited_number_of_frames_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "_MAX_CACHED_FRAMES", 3)
    monkeypatch.setattr(failure, "_frame_cache", {})
    for number in range(10):
        names: dict[str, Callable[[], object]] = {}
        exec(compile("def both():\n    raise ValueError('x')", f"{number}.py", "exec"), names)
        assert f'File "{number}.py"' in capture_failure(error_of(names["both"])).stack
        assert len(failure._frame_cache) <= 3


def test_frames_are_kept_if_all_of_them_belong_to_the_worker() -> None:
    worker: dict[str, object] = {"__name__": "redrive.worker.step_call"}
    exec("def breaks():\n    raise ValueError('its own')", worker)
    breaks = worker["breaks"]
    assert callable(breaks)
    with pytest.raises(ValueError, match="its own") as caught:
        breaks()
    assert caught.value.__traceback__ is not None
    own = caught.value.with_traceback(caught.value.__traceback__.tb_next)  # without the frame of this test
    assert "in breaks" in capture_failure(own).stack
