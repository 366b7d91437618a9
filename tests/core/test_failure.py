"""Failures: every exception becomes a record that can be stored and read back."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.classify import Category, Rule
from redrive.core.failure import MESSAGE_LIMIT, STACK_LIMIT, Failure, capture_failure, clean_text
from redrive.errors import ConfigurationError, NonRetryable, RetryAfter, StepFailed
from redrive.time_values import parse_duration

TEXT = st.text(st.sampled_from("\x00\ud800\udfff\\a") | st.characters(exclude_categories=[]))


class CardDeclined(LookupError):
    def __init__(self, message: str, details: Any = None) -> None:
        super().__init__(message)
        self.details = details


def raised(error: BaseException) -> BaseException:
    """Return the exception after it was raised and caught."""
    try:
        raise error
    except BaseException as caught:
        return caught


def storable(failure: Failure) -> bool:
    text = json.dumps(failure.to_json(), ensure_ascii=False, allow_nan=False)
    return "\\u0000" not in text and text.encode("utf-8") is not None


# -- stored fields -------------------------------------------------------------------------------------


def test_a_failure_records_error_place_and_category() -> None:
    failure = capture_failure(raised(CardDeclined("no funds", {"code": 51})))
    assert failure.category is Category.INTERNAL
    assert failure.error_type == f"{__name__}.CardDeclined"
    assert failure.short_type == "CardDeclined"
    assert failure.bases == (
        f"{__name__}.CardDeclined",
        *("builtins.LookupError", "builtins.Exception", "builtins.BaseException"),
    )
    assert failure.message == "no funds"
    assert failure.stack.startswith("Traceback (most recent call last):")
    assert failure.stack.endswith("CardDeclined: no funds")
    assert failure.frame == f"{__name__}.raised"
    assert failure.details == {"code": 51}
    assert (failure.status_code, failure.retry_after, failure.retryable) == (None, None, None)


def test_step_failed_recognises_the_class_and_its_bases() -> None:
    failure = capture_failure(CardDeclined("x"))
    error = StepFailed(step="s", category="x", error_type=failure.error_type, message="m", bases=failure.bases)
    assert error.is_a(CardDeclined)
    assert error.is_a(LookupError)
    assert error.is_a("builtins.LookupError")
    assert not error.is_a(KeyError)


def test_status_and_retry_after_are_kept() -> None:
    error = RuntimeError("x")
    error.status_code = 503  # type: ignore[attr-defined]
    error.headers = {"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}  # type: ignore[attr-defined]
    failure = capture_failure(error, now=40.0)
    assert (failure.category, failure.status_code, failure.retry_after) == (Category.SERVER_ERROR, 503, 60.0)


def test_only_some_exceptions_decide_for_themselves_whether_they_are_retried() -> None:
    assert capture_failure(NonRetryable("x")).retryable is False
    assert capture_failure(RetryAfter("30s")).retryable is True
    assert capture_failure(ValueError("x")).retryable is None
    assert capture_failure(ExceptionGroup("g", [RetryAfter(1), KeyError()])).retryable is True
    assert capture_failure(ExceptionGroup("g", [KeyError(), RetryAfter(1)])).retryable is None


def test_one_non_retryable_in_a_group_ends_it() -> None:
    group = ExceptionGroup("g", [RetryAfter(1), ExceptionGroup("h", [NonRetryable("x")])])
    assert capture_failure(group).retryable is False


@each("category", Category)
def test_a_timeout_or_a_broken_connection_is_uncertain(category: Category) -> None:
    uncertain = Failure.of(category, "x").uncertain
    assert uncertain is (category in {Category.TIMEOUT, Category.NETWORK})


def test_a_failure_without_an_exception() -> None:
    failure = Failure.of(Category.TIMEOUT, "no answer\x00 in 30 s", "redrive.errors.StepTimeout")
    assert (failure.message, failure.short_type) == ("no answer\\x00 in 30 s", "StepTimeout")
    assert failure.bases == ("redrive.errors.StepTimeout",)
    assert (failure.stack, failure.frame, failure.details) == ("", None, {})
    assert Failure.of(Category.UNKNOWN, "x").error_type == "redrive.errors.RedriveError"


def test_rules_apply_and_a_broken_one_is_named_in_the_stack() -> None:
    def broken(error: BaseException) -> bool:
        raise KeyError

    failure = capture_failure(
        raised(CardDeclined("x")), [Rule(broken, Category.NETWORK), Rule(CardDeclined, Category.VALIDATION)]
    )
    assert failure.category is Category.VALIDATION
    assert "CardDeclined: x\nthe rule " in failure.stack
    assert failure.stack.endswith("broken (network) raised KeyError")


# -- the stack and the frame ---------------------------------------------------------------------------


def test_causes_and_contexts_are_in_the_stack() -> None:
    def chained() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise RuntimeError("second") from error

    with pytest.raises(RuntimeError) as caught:
        chained()
    stack = capture_failure(caught.value).stack
    assert stack.index("KeyError: 'first'") < stack.index("direct cause") < stack.index("RuntimeError: second")


def test_a_group_names_its_first_leaf_and_shows_all_in_the_stack() -> None:
    failure = capture_failure(raised(ExceptionGroup("2 tasks", [raised(KeyError("a")), raised(TypeError("b"))])))
    assert failure.message == "2 tasks (2 sub-exceptions): KeyError: 'a'"
    assert failure.error_type == "builtins.ExceptionGroup"
    assert "KeyError: 'a'" in failure.stack
    assert "TypeError: b" in failure.stack
    assert failure.frame == f"{__name__}.raised"


def test_the_frame_of_a_group_whose_leaf_was_never_raised_is_its_own() -> None:
    assert capture_failure(raised(ExceptionGroup("g", [KeyError()]))).frame == f"{__name__}.raised"


def test_an_exception_that_was_never_raised_has_no_frame() -> None:
    assert capture_failure(ValueError("x")).frame is None


def call(module: str, path: str = "/app/x.py", inner: Any = None) -> Any:
    """Return a function of the named module that calls `inner`, or fails."""
    space = {"__name__": module, "inner": inner}
    body = "1 / 0" if inner is None else "inner()"
    exec(compile(f"def function():\n    {body}", path, "exec"), space)
    return space["function"]


def frame_of(function: Any) -> str | None:
    with pytest.raises(ZeroDivisionError) as caught:
        function()
    return capture_failure(caught.value).frame


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("redrive.worker.execute", "/app/redrive/worker/execute.py"),
        ("json.decoder", "/usr/lib/python3.11/json/decoder.py"),
        ("httpx._client", "/venv/lib/python3.11/site-packages/httpx/_client.py"),
        ("apt.cache", "/usr/lib/python3/dist-packages/apt/cache.py"),
        ("httpx._client", "C:\\venv\\Lib\\site-packages\\httpx\\_client.py"),
    ],
)
def test_the_frame_is_the_innermost_of_the_users_own_code(module: str, path: str) -> None:
    users = call("shop.payments", inner=call(module, path))
    assert frame_of(users) == "shop.payments.function"
    assert frame_of(call("redrive.worker.worker", inner=users)) == "shop.payments.function"


def test_a_package_that_only_begins_like_ours_is_the_users() -> None:
    assert frame_of(call("redrive_shop.payments")) == "redrive_shop.payments.function"


def test_without_any_code_of_the_user_the_frame_is_the_innermost() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_duration("x")
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
    assert capture_failure(error).frame == "redrive.time_values.parse_duration"


def test_a_frame_without_a_module_name_is_still_named() -> None:
    assert frame_of(call(None)) == "?.function"  # type: ignore[arg-type]


def test_the_frame_does_not_depend_on_line_numbers() -> None:
    frames = []
    for blank in ("", "\n\n\n"):
        space: dict[str, Any] = {"__name__": "shop"}
        exec(f"{blank}class A:\n    def pay(self):\n        1 / 0", space)
        frames.append(frame_of(space["A"]().pay))
    assert frames == ["shop.A.pay"] * 2


# -- text that cannot be stored ------------------------------------------------------------------------


def test_nul_bytes_and_lone_surrogates_become_visible() -> None:
    failure = capture_failure(raised(CardDeclined("a\x00b\ud800c", {"k\x00": "v\udfff"})))
    assert failure.message == "a\\x00b\\ud800c"
    assert failure.details == {"k\\x00": "v\\udfff"}
    assert "a\\x00b\\ud800c" in failure.stack
    assert storable(failure)


def test_long_messages_and_stacks_keep_their_beginning_and_their_end() -> None:
    failure = capture_failure(raised(ValueError("begin" + "x" * 100_000 + "end")))
    assert len(failure.message) == MESSAGE_LIMIT
    assert failure.message.startswith("beginxxx")
    assert failure.message.endswith("xxxend")
    assert "… cut, 100008 characters in all …" in failure.message
    assert len(failure.stack) == STACK_LIMIT
    assert failure.stack.startswith("Traceback")
    assert failure.stack.endswith("xxxend")


@given(TEXT, st.integers(0, 60))
def test_clean_text_is_storable_bounded_and_stable(text: str, limit: int) -> None:
    clean = clean_text(text, limit)
    clean.encode("utf-8")
    assert "\x00" not in clean
    assert len(clean) <= limit
    assert clean_text(clean, limit) == clean


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_clean_text_leaves_ordinary_text_alone(text: str) -> None:
    assert clean_text(text, len(text)) == text


# -- hostile exceptions --------------------------------------------------------------------------------


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Explosive(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name in {"__traceback__", "__class__", "with_traceback"}:
            return super().__getattribute__(name)
        raise RuntimeError(name)


class HostileMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise OSError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


def test_an_exception_whose_text_cannot_be_read_is_still_a_failure() -> None:
    failure = capture_failure(raised(Speechless()))
    assert failure.message == "<Speechless: its text could not be read, RuntimeError raised>"
    assert failure.frame == f"{__name__}.raised"
    assert "Speechless" in failure.stack


def test_an_exception_that_resists_every_look_is_still_a_failure() -> None:
    failure = capture_failure(raised(Explosive("x")))
    assert failure.error_type == f"{__name__}.Explosive"
    assert failure.category is Category.UNKNOWN
    assert "in raised" in failure.stack
    assert failure.stack.endswith("Explosive")
    assert storable(failure)


def test_details_that_cannot_be_read_say_so() -> None:
    assert capture_failure(CardDeclined("x", HostileMapping())).details == {
        "details": "<could not be read, OSError raised>"
    }


@pytest.mark.parametrize("details", [None, [], "text", 5, SimpleNamespace(a=1)])
def test_details_must_be_a_mapping(details: object) -> None:
    assert capture_failure(CardDeclined("x", details)).details == {}


def test_details_become_json() -> None:
    class Level(IntEnum):
        HIGH = 3

    details = {
        "plain": [None, True, 1, 1.5, "x"],
        "tuple": (1, {2}),
        "frozen": frozenset({"a"}),
        "odd": [float("nan"), float("inf"), Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC), b"x"],
        "level": Level.HIGH,
        "huge": 1 << 20_000,
        7: "key",
        "speechless": Speechless(),
    }
    kept = capture_failure(CardDeclined("x", details)).details
    assert kept["plain"] == [None, True, 1, 1.5, "x"]
    assert kept["tuple"] == [1, [2]]
    assert kept["frozen"] == ["a"]
    assert kept["odd"] == ["nan", "inf", "1.50", "2026-01-02 00:00:00+00:00", "b'x'"]
    assert (kept["level"], type(kept["level"])) == (3, int)
    assert kept["huge"].startswith("0x1000")
    assert kept["7"] == "key"
    assert "its text could not be read" in kept["speechless"]
    assert storable(capture_failure(CardDeclined("x", details)))


def test_endless_details_are_cut() -> None:
    circle: dict[str, Any] = {"text": "x" * 100_000}
    circle["self"] = circle
    circle["many"] = list(range(100_000))
    failure = capture_failure(CardDeclined("x", circle))
    assert len(json.dumps(failure.to_json())) < 500_000
    assert len(failure.details["text"]) == 2_000
    inner: Any = failure.details
    for _ in range(8):
        inner = inner["self"]
    assert inner["self"] == "…"


# -- round trips ---------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


@given(TEXT, st.dictionaries(TEXT, JSON), st.sampled_from([CardDeclined, NonRetryable]))
def test_any_failure_is_storable_and_the_same_after_a_round_trip(
    message: str, details: dict[str, Any], kind: Any
) -> None:
    failure = capture_failure(raised(kind(message, details=details)))
    assert storable(failure)
    assert Failure.from_json(json.loads(json.dumps(failure.to_json(), allow_nan=False))) == failure


def test_fields_of_a_newer_version_are_passed_over() -> None:
    failure = capture_failure(raised(RetryAfter("30s")))
    assert Failure.from_json({**failure.to_json(), "added_later": 1}) == failure


def test_capturing_leaves_the_exception_unchanged() -> None:
    error = raised(ValueError("x"))
    before = traceback.format_exception(error)
    capture_failure(error)
    assert traceback.format_exception(error) == before
