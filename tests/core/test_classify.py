"""Classification of errors by type, status code and errno, never by message."""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import re
import socket
import sqlite3
import ssl
import subprocess
import urllib.error
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import Any
from unittest import mock

import pydantic
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive import errors
from redrive.core.classify import (
    MAX_RETRY_AFTER,
    Category,
    Classification,
    Rule,
    base_names,
    classify,
    first_leaf,
    iter_leaves,
)
from redrive.core.retry import RETRYABLE_CATEGORIES
from redrive.errors import ConfigurationError, NonRetryable, RetryAfter, RunFailed, StepFailed

NOON = 1_445_428_800.0  # Wed, 21 Oct 2015 12:00:00 GMT


def foreign(name: str, *bases: type, **attributes: Any) -> Any:
    """Return an exception class that looks as if another package had defined it."""
    module, _, short = name.rpartition(".")
    return type(short, bases or (Exception,), {"__module__": module, "__qualname__": short, **attributes})


class Carrier(Exception):
    """An exception with whatever attributes a test gives it."""

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*args)
        self.__dict__.update(attributes)


class Response:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


def category(error: BaseException) -> str:
    return classify(error).category.value


# -- the table -----------------------------------------------------------------------------------------


def test_there_are_twelve_categories_and_these_are_retried() -> None:
    assert len(Category) == 12
    assert sorted(RETRYABLE_CATEGORIES) == [
        *("dependency_unavailable", "network", "rate_limit", "server_error", "timeout", "unknown")
    ]


@each(
    "status, meant",
    [
        *((400, "validation"), (422, "validation"), (401, "authorization"), (403, "authorization")),
        *((404, "not_found"), (410, "not_found"), (408, "timeout"), (504, "timeout"), (429, "rate_limit")),
        *((402, "client_error"), (409, "client_error"), (451, "client_error"), (499, "client_error")),
        *((500, "server_error"), (502, "server_error"), (503, "server_error"), (529, "server_error")),
    ],
)
def test_a_status_decides_wherever_it_is_carried(status: int, meant: str) -> None:
    for error in (
        Carrier(status_code=status),
        Carrier(status=status),
        Carrier(status_code=str(status)),
        Carrier(response=Response(status_code=status)),
        Carrier(response=Response(status=status)),
    ):
        assert classify(error) == Classification(category=Category(meant), status_code=status)


class OfItsClass(Exception):
    status_code = 503


class InASlot(Exception):
    __slots__ = ("status_code",)

    def __init__(self) -> None:
        self.status_code = 503


class Computed(Exception):
    @property
    def status(self) -> int:
        return 503


class AskedFor(Exception):
    def __getattr__(self, name: str) -> int:
        if name == "status":
            return 503
        raise AttributeError(name)


@pytest.mark.parametrize("made", [OfItsClass, InASlot, Computed, AskedFor])
def test_a_status_is_found_however_the_class_keeps_it(made: type[Exception]) -> None:
    class Derived(made):  # type: ignore[misc, valid-type]
        pass

    for error in (made(), Derived()):
        assert classify(error) == Classification(category=Category.SERVER_ERROR, status_code=503)


@each("nothing", [True, False, None, 0, -1, 99, 600, 4290, "4", "4 29", "٤٢٩", "abc", 429.0, []])
def test_other_values_are_not_taken_for_a_status(nothing: object) -> None:
    assert classify(Carrier(status_code=nothing)) == Classification(category=Category.UNKNOWN)


def test_a_status_below_400_is_kept_but_decides_nothing() -> None:
    error = foreign("shop.NotJson", ValueError)()
    error.response = Response(status_code=200)
    assert classify(error) == Classification(category=Category.INTERNAL, status_code=200)


def test_a_status_takes_precedence_over_the_type() -> None:
    assert classify(foreign("shop.Oops", ValueError, status_code=HTTPStatus.SERVICE_UNAVAILABLE)()) == Classification(
        category=Category.SERVER_ERROR, status_code=503
    )


@each(
    "error, meant",
    [
        (TimeoutError(), "timeout"),
        (subprocess.TimeoutExpired("ls", 1), "timeout"),
        (OSError(errno.ETIMEDOUT, "x"), "timeout"),
        (ConnectionRefusedError(), "network"),
        (BrokenPipeError(), "network"),
        (OSError(errno.EHOSTUNREACH, "x"), "network"),
        (OSError(errno.ENETDOWN, "x"), "network"),
        (socket.gaierror(-2, "x"), "network"),
        (socket.herror(), "network"),
        (ssl.SSLError(1, "x"), "network"),
        (ssl.SSLCertVerificationError(1, "x"), "network"),
        (asyncio.IncompleteReadError(b"", 1), "network"),
        (http.client.RemoteDisconnected(), "network"),
        (http.client.IncompleteRead(b""), "network"),
        (PermissionError(), "authorization"),
        (FileNotFoundError(), "not_found"),
        (TypeError(), "internal"),
        (AttributeError(), "internal"),
        (UnboundLocalError(), "internal"),
        (KeyError(), "internal"),
        (IndexError(), "internal"),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), "internal"),
        (AssertionError(), "internal"),
        (ZeroDivisionError(), "internal"),
        (NotImplementedError(), "internal"),
        (OSError(errno.ENOSPC, "x"), "unknown"),
        (OSError(), "unknown"),
        (RuntimeError(), "unknown"),
        (Exception(), "unknown"),
        (asyncio.CancelledError(), "unknown"),
    ],
)
def test_pythons_own_exceptions(error: BaseException, meant: str) -> None:
    assert category(error) == meant


@each(
    "error, meant",
    [
        (ConfigurationError("x"), "missing_config"),
        (errors.RegistrationError("x"), "missing_config"),
        (errors.PayloadError("x"), "validation"),
        (errors.NotFound("x"), "not_found"),
        (errors.Conflict("x"), "client_error"),
        (errors.StoreUnavailable("x"), "dependency_unavailable"),
        (errors.MisusedStep("x"), "internal"),
        (errors.StoreError("x"), "unknown"),
        (StepFailed(step="s", category="network", error_type="a.B", message="m"), "network"),
        (StepFailed(step="s", category="made_up", error_type="a.B", message="m"), "unknown"),
        (RunFailed("m", run_id="r", status="FAILED", category="timeout"), "timeout"),
        (RunFailed("m", run_id="r", status="FAILED"), "unknown"),
    ],
)
def test_redrives_own_exceptions(error: BaseException, meant: str) -> None:
    assert category(error) == meant


def test_a_pydantic_error_is_validation_although_it_is_a_value_error() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("many")
    assert category(caught.value) == "validation"


# -- foreign packages, none of them imported -----------------------------------------------------------


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
def test_httpx(package: str) -> None:
    transport = foreign(f"{package}.TransportError")
    timeout = foreign(f"{package}.TimeoutException", transport)
    assert category(foreign(f"{package}.ConnectTimeout", timeout)()) == "timeout"
    assert category(foreign(f"{package}.ConnectError", transport)()) == "network"
    assert category(foreign(f"{package}.UnsupportedProtocol", transport)()) == "internal"
    refused = foreign(f"{package}.HTTPStatusError")()
    refused.response = Response(status_code=429, headers={"Retry-After": "7"})
    assert classify(refused) == Classification(category=Category.RATE_LIMIT, status_code=429, retry_after=7.0)


def test_requests_and_urllib3() -> None:
    base = foreign("requests.exceptions.RequestException", OSError)
    connection = foreign("requests.exceptions.ConnectionError", base)
    timeout = foreign("requests.exceptions.Timeout", base)
    assert category(connection()) == "network"
    assert category(foreign("requests.exceptions.ConnectTimeout", connection, timeout)()) == "timeout"
    pool_timeout = foreign("urllib3.exceptions.TimeoutError")
    assert category(foreign("urllib3.exceptions.NewConnectionError", pool_timeout)()) == "network"
    exhausted = foreign("urllib3.exceptions.MaxRetryError")
    assert category(exhausted()) == "network"
    wrapping = exhausted()
    wrapping.reason = pool_timeout()
    assert category(wrapping) == "timeout"


def test_aiohttp() -> None:
    connection = foreign("aiohttp.client_exceptions.ClientConnectionError")
    assert category(connection()) == "network"
    slow = foreign("aiohttp.client_exceptions.ServerTimeoutError", connection, TimeoutError)
    assert category(slow()) == "timeout"
    connector = foreign("aiohttp.client_exceptions.ClientConnectorError", OSError, connection)
    assert category(connector(errno.ETIMEDOUT, "x")) == "timeout"
    answered = foreign("aiohttp.client_exceptions.ClientResponseError", Carrier)
    assert classify(answered(status=503, headers={"retry-after": "3"})) == Classification(
        category=Category.SERVER_ERROR, status_code=503, retry_after=3.0
    )


def test_urllib() -> None:
    headers = Message()
    headers["Retry-After"] = "9"
    with urllib.error.HTTPError("http://x", 503, "m", headers, None) as refused:
        assert classify(refused) == Classification(category=Category.SERVER_ERROR, status_code=503, retry_after=9.0)
    assert category(urllib.error.URLError(TimeoutError())) == "timeout"
    assert category(urllib.error.URLError(RuntimeError())) == "network"  # type: ignore[arg-type]
    assert category(urllib.error.URLError("no host given")) == "network"


@pytest.mark.parametrize(
    ("state", "meant"),
    [
        *(("08006", "dependency_unavailable"), ("57P01", "dependency_unavailable")),
        *(("57P03", "dependency_unavailable"), ("53300", "dependency_unavailable")),
        *(("40001", "dependency_unavailable"), ("40P01", "dependency_unavailable")),
        *(("25006", "dependency_unavailable"), ("57014", "timeout"), ("55P03", "timeout")),
        *(("23505", "validation"), ("22P02", "validation"), ("28P01", "authorization")),
        *(("42501", "authorization"), ("42P01", "internal"), ("XX000", "unknown"), ("57000", "unknown")),
        *(("08", "unknown"), ("", "unknown"), (None, "unknown"), (8006, "unknown")),
    ],
)
@pytest.mark.parametrize("attribute", ["sqlstate", "pgcode"])
def test_database_drivers_by_sqlstate(state: object, meant: str, attribute: str) -> None:
    assert category(Carrier(**{attribute: state})) == meant


def test_a_driver_that_lost_its_connection_has_no_sqlstate() -> None:
    assert category(foreign("psycopg.OperationalError", sqlstate=None)()) == "dependency_unavailable"
    assert category(foreign("psycopg.errors.Aborted", foreign("psycopg.OperationalError"), sqlstate="40001")()) == (
        "dependency_unavailable"
    )


def test_sqlalchemy_errors_are_classified_by_the_driver_error() -> None:
    wrapper = foreign("sqlalchemy.exc.OperationalError", foreign("sqlalchemy.exc.DBAPIError"))()
    assert category(wrapper) == "unknown"
    wrapper.orig = Carrier(sqlstate="57014")
    assert category(wrapper) == "timeout"


def test_sqlite_by_result_code(tmp_path: Path) -> None:
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    waiter = sqlite3.connect(tmp_path / "a.db", isolation_level=None, timeout=0)
    try:
        holder.execute("CREATE TABLE t (a UNIQUE)")
        holder.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError) as twice:
            holder.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(sqlite3.OperationalError) as wrong:
            holder.execute("SELEC")
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError) as busy:
            waiter.execute("SELECT * FROM t")
    finally:
        holder.close()
        waiter.close()
    assert category(busy.value) == "dependency_unavailable"
    assert category(twice.value) == "validation"
    assert category(wrong.value) == "unknown"


def aws(code: object, status: object = 400, headers: object = None) -> BaseException:
    error: BaseException = foreign("botocore.exceptions.ClientError", Carrier)(
        response={"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
    )
    return error


@each(
    "error, code",
    [
        (Carrier(status_code=429), "429"),
        (Carrier(sqlstate="40001"), "40001"),
        (Carrier(pgcode="57014"), "57014"),
        (Carrier(sqlstate="a name", pgcode=7), None),
        (Carrier(sqlite_errorcode=5, sqlite_errorname="SQLITE_BUSY"), "SQLITE_BUSY"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "ECONNREFUSED"),
        (OSError(98765, "unheard of"), None),
        (ValueError("HTTP 500"), None),
    ],
)
def test_an_error_has_the_code_of_its_driver_or_its_status(error: BaseException, code: str | None) -> None:
    assert classify(error).error_code == code


@each(
    "code, status, meant",
    [
        ("ThrottlingException", 400, "rate_limit"),
        ("ProvisionedThroughputExceededException", 400, "rate_limit"),
        ("SlowDown", 503, "rate_limit"),
        ("RequestTimeout", 400, "timeout"),
        ("AccessDenied", 403, "authorization"),
        ("ExpiredTokenException", 400, "authorization"),
        ("ResourceNotFoundException", 400, "not_found"),
        ("NoSuchKey", 404, "not_found"),
        ("InternalError", 500, "server_error"),
        ("Whatever", 400, "validation"),
        (None, 502, "server_error"),
    ],
)
def test_botocore_by_its_own_code_then_by_status(code: object, status: int, meant: str) -> None:
    signal = classify(aws(code, status, {"retry-after": "2"}))
    assert signal == Classification(category=Category(meant), status_code=status, driver_code=code, retry_after=2.0)
    assert signal.error_code == (code or str(status))


@pytest.mark.parametrize("response", [None, "x", {}, {"Error": None}, {"Error": {"Code": ["x"]}}])
def test_botocore_with_an_odd_response(response: object) -> None:
    assert category(foreign("botocore.exceptions.ClientError", Carrier)(response=response)) == "unknown"


@pytest.mark.parametrize("package", ["openai", "anthropic"])
def test_model_clients(package: str) -> None:
    connection = foreign(f"{package}.APIConnectionError")
    assert category(connection()) == "network"
    assert category(foreign(f"{package}.APITimeoutError", connection)()) == "timeout"
    limited = foreign(f"{package}.RateLimitError", Carrier)(
        status_code=429, response=Response(status_code=429, headers={"retry-after-ms": "1500"})
    )
    assert classify(limited) == Classification(category=Category.RATE_LIMIT, status_code=429, retry_after=1.5)


# -- what steps raise on purpose, groups, wrapping -----------------------------------------------------


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_non_retryable_takes_the_category_of_its_cause() -> None:
    assert category(NonRetryable("x")) == "unknown"
    assert category(caused(NonRetryable("x"), TimeoutError())) == "timeout"
    assert classify(caused(NonRetryable("x"), Carrier(status_code=404))) == Classification(
        category=Category.NOT_FOUND, status_code=404
    )


def test_only_non_retryable_looks_at_its_cause() -> None:
    assert category(caused(RuntimeError("x"), TimeoutError())) == "unknown"


def test_retry_after_is_a_rate_limit_with_the_delay_asked_for() -> None:
    assert classify(RetryAfter("30s")) == Classification(category=Category.RATE_LIMIT, retry_after=30.0)
    assert classify(RetryAfter("2d")).retry_after == 172_800.0
    assert classify(RetryAfter("nonsense")) == Classification(category=Category.RATE_LIMIT)
    assert classify(RetryAfter.__new__(RetryAfter)) == Classification(category=Category.RATE_LIMIT)


def test_a_group_has_the_category_of_its_first_leaf() -> None:
    group = ExceptionGroup("g", [ExceptionGroup("h", [Carrier(status_code=503), KeyError()]), TypeError()])
    assert classify(group) == Classification(category=Category.SERVER_ERROR, status_code=503)
    assert [type(leaf).__name__ for leaf in iter_leaves(group)] == ["Carrier", "KeyError", "TypeError"]
    assert type(first_leaf(group)) is Carrier
    assert list(iter_leaves(group.exceptions[1])) == [group.exceptions[1]]


def test_the_lineage_names_the_class_and_its_bases_without_object() -> None:
    assert base_names(KeyError()) == (
        *("builtins.KeyError", "builtins.LookupError", "builtins.Exception", "builtins.BaseException"),
    )


# -- Retry-After ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("30", 30.0),
        (" 1.5 ", 1.5),
        (7, 7.0),
        (2.5, 2.5),
        (b"8", 8.0),
        ("0", 0.0),
        ("-5", 0.0),
        ("999999999", MAX_RETRY_AFTER),
        ("Wed, 21 Oct 2015 12:00:30 GMT", 30.0),
        ("Wednesday, 21-Oct-15 12:00:30 GMT", 30.0),
        ("Wed Oct 21 12:00:30 2015", 30.0),
        ("Wed, 21 Oct 2015 14:00:30 +0200", 30.0),
        ("Wed, 21 Oct 2015 12:00:30 -0000", 30.0),
        ("Wed, 21 Oct 2015 11:00:00 GMT", 0.0),
        ("Wed, 21 Oct 2099 11:00:00 GMT", MAX_RETRY_AFTER),
        *(("", None), ("soon", None), ("nan", None), ("inf", None), ("1e9", None), ("٣", None)),
        *((None, None), (True, None), ([], None), ({}, None), ("9" * 500, None), (float("nan"), None)),
        ("Wed, 99 Oct 2015 99:00:30 GMT", None),
    ],
)
@pytest.mark.parametrize("name", ["Retry-After", "retry-after", "RETRY-AFTER"])
def test_the_header_is_read_as_seconds_or_as_a_date_and_junk_is_ignored(
    name: str, value: object, wait: float | None
) -> None:
    headers = {"Date": "x", 5: "y", name: value}
    for error in (Carrier(headers=headers), Carrier(response=Response(headers=headers))):
        assert classify(error, now=NOON).retry_after == wait


def test_a_date_means_nothing_without_the_time() -> None:
    error = Carrier(status_code=503, headers={"Retry-After": "Wed, 21 Oct 2015 12:00:30 GMT"})
    assert classify(error) == Classification(category=Category.SERVER_ERROR, status_code=503)


@given(st.text() | st.binary() | st.floats() | st.integers())
def test_no_header_breaks_classification(value: object) -> None:
    wait = classify(Carrier(status_code=429, headers={"Retry-After": value}), now=NOON).retry_after
    assert wait is None or 0 <= wait <= MAX_RETRY_AFTER


# -- messages do not matter ----------------------------------------------------------------------------

WORDS = st.text() | st.lists(
    st.sampled_from(["timeout", "429", "rate limit", "connection refused", "validation", "not found", "503"])
).map(" ".join)
MAKERS = st.sampled_from(
    [
        *(ValueError, RuntimeError, TimeoutError, ConnectionError, KeyError, Exception, PermissionError),
        *(NonRetryable, ConfigurationError, lambda text: RetryAfter("30s", text)),
        *(lambda text: Carrier(text, status_code=503), lambda text: Carrier(text, sqlstate="57014")),
        *(lambda text: OSError(errno.ECONNRESET, text), lambda text: ExceptionGroup(text, [KeyError(text)])),
        *(lambda text: aws("Throttling"), lambda text: foreign("httpx.ConnectError")(text)),
    ]
)


@given(MAKERS, WORDS, WORDS)
def test_the_category_does_not_depend_on_the_message(make: Any, text: str, other: str) -> None:
    assert classify(make(text)) == classify(make(other))


# -- rules ---------------------------------------------------------------------------------------------


class Declined(Exception):
    pass


class HardDeclined(Declined):
    pass


@pytest.mark.parametrize("when", [Declined, f"{__name__}.Declined", lambda error: isinstance(error, Declined)])
def test_a_rule_by_class_name_or_function_covers_derived_classes(when: Any) -> None:
    rules = [Rule(when, Category.CLIENT_ERROR)]
    assert classify(HardDeclined(), rules).category is Category.CLIENT_ERROR
    assert classify(Declined(), rules).category is Category.CLIENT_ERROR
    assert classify(RuntimeError(), rules).category is Category.UNKNOWN


def test_the_first_rule_that_applies_takes_precedence_over_everything_else() -> None:
    rules = [
        Rule(HardDeclined, Category.VALIDATION),
        Rule(Declined, Category.NETWORK),
        Rule(Exception, Category.INTERNAL),
    ]
    assert classify(HardDeclined(), rules).category is Category.VALIDATION
    assert classify(Declined(), rules).category is Category.NETWORK
    assert classify(Carrier(status_code=429), rules) == Classification(category=Category.INTERNAL, status_code=429)
    assert classify(RetryAfter(5), rules) == Classification(category=Category.INTERNAL, retry_after=5.0)


def test_rules_see_a_group_and_its_first_leaf_and_what_is_wrapped() -> None:
    group = ExceptionGroup("g", [Declined()])
    assert classify(group, [Rule(Declined, Category.NETWORK)]).category is Category.NETWORK
    assert classify(group, [Rule(ExceptionGroup, Category.TIMEOUT)]).category is Category.TIMEOUT
    wrapped = caused(NonRetryable("x"), Declined())
    assert classify(wrapped, [Rule(Declined, Category.NETWORK)]).category is Category.NETWORK


def test_a_rule_that_raises_is_passed_over_and_named() -> None:
    def broken(error: BaseException) -> bool:
        raise ZeroDivisionError

    rules = [Rule(broken, Category.VALIDATION), Rule(TimeoutError, Category.NETWORK)]
    signal = classify(ExceptionGroup("g", [TimeoutError()]), rules)
    assert signal.category is Category.NETWORK
    assert len(signal.faults) == 1
    assert re.fullmatch(r"the rule .*broken \(validation\) raised ZeroDivisionError", signal.faults[0])
    signal = classify(TimeoutError(), [Rule(mock.Mock(side_effect=KeyError), Category.VALIDATION)])
    assert (signal.category, len(signal.faults)) == (Category.TIMEOUT, 1)


def test_a_rules_category_may_be_given_as_text() -> None:
    assert Rule(Declined, "network").category is Category.NETWORK  # type: ignore[arg-type]


@pytest.mark.parametrize("when", [int, "Declined", 5, None])
def test_a_rule_that_can_never_apply_is_refused(when: Any) -> None:
    with pytest.raises(ConfigurationError, match="`when` is "):
        Rule(when, Category.NETWORK)


@pytest.mark.parametrize("wrong", ["netwrok", None, 5])
def test_a_rule_with_an_unknown_category_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="category is "):
        Rule(Declined, wrong)


# -- hostile exceptions --------------------------------------------------------------------------------


class Explosive(Exception):
    """An exception whose attributes all raise."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class EndlessHeaders:
    def items(self) -> Any:
        while True:
            yield "x", "y"


def test_attributes_that_raise_are_ignored() -> None:
    assert classify(Explosive()) == Classification(category=Category.UNKNOWN)
    assert category(foreign("redrive.errors.StepFailed", Explosive, StepFailed).__new__(StepFailed)) == "unknown"


@pytest.mark.parametrize("pretends", [None, int, str, dict])
def test_mock_attributes_are_ignored(pretends: Any) -> None:
    thing = mock.MagicMock(spec=pretends)
    error = Carrier(status_code=thing, status=thing, response=thing, headers=thing, sqlstate=thing, errno=thing)
    assert classify(error, now=NOON) == Classification(category=Category.UNKNOWN)
    assert classify(Carrier(response=mock.MagicMock()), now=NOON) == Classification(category=Category.UNKNOWN)


@pytest.mark.parametrize("headers", [EndlessHeaders(), {"Retry-After": object()}, [("Retry-After", "1")], 5])
def test_odd_headers_request_no_delay(headers: object) -> None:
    assert classify(Carrier(status_code=503, headers=headers), now=NOON).retry_after is None


def test_cyclic_causes_end() -> None:
    one, other = NonRetryable("a"), NonRetryable("b")
    one.__cause__, other.__cause__ = other, one
    assert category(one) == "unknown"
    itself = urllib.error.URLError("x")
    itself.reason = itself  # type: ignore[assignment]
    assert category(itself) == "network"


def test_an_odd_errno_is_ignored() -> None:
    odd = OSError()
    odd.errno = "111"  # type: ignore[assignment]
    assert category(odd) == "unknown"
    assert category(Carrier(errno=errno.ECONNRESET)) == "unknown"


def test_a_subclass_of_group_cannot_hide_its_leaves() -> None:
    hiding = foreign("x.Hiding", ExceptionGroup, exceptions=property(lambda self: os.abort()))
    assert category(hiding("g", [TimeoutError()])) == "timeout"
