"""Settings: read from argument, environment or default; invalid values are refused; all are documented."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cases import each

from redrive import Redrive
from redrive.errors import ConfigurationError
from redrive.settings import ENVIRONMENT_VARIABLES, Settings
from redrive.time_values import FOREVER

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"
DAY = 86_400.0
KEY = "A" * 43 + "="

EACH = [
    # setting, variable, default, text in the environment and its value, argument and its value
    ("url", "REDRIVE_URL", "sqlite:///redrive.db", ("sqlite:///a.db", "sqlite:///a.db"), ("sqlite:///b.db",) * 2),
    ("token", "REDRIVE_TOKEN", "", ("rdk_1",) * 2, ("rdk_2",) * 2),
    ("allow_plain", "REDRIVE_ALLOW_PLAIN", False, ("yes", True), (False, False)),
    ("proxy", "REDRIVE_PROXY", "", ("http://a:3128",) * 2, ("http://b:3128",) * 2),
    ("ca_file", "REDRIVE_CA_FILE", "", ("/a.pem",) * 2, ("/b.pem",) * 2),
    ("concurrency", "WORKER_CONCURRENCY", 100, ("7", 7), (8, 8)),
    ("queues", "REDRIVE_QUEUES", (), ("emails, default", ("emails", "default")), (["a", "a"], ("a",))),
    ("lease", "REDRIVE_LEASE", 30.0, ("10s", 10.0), ("1m", 60.0)),
    ("grace", "REDRIVE_GRACE", 30.0, ("90", 90.0), (timedelta(minutes=2), 120.0)),
    ("hold", "REDRIVE_HOLD", 5.0, ("250ms", 0.25), (0, 0.0)),
    ("code_wait", "REDRIVE_CODE_WAIT", 600.0, ("1h30m", 5_400.0), ("0s", 0.0)),
    ("chores", "REDRIVE_CHORES", 1.0, ("0.5", 0.5), (2.5, 2.5)),
    ("version", "REDRIVE_VERSION", "", ("2031.5", "2031.5"), ("v2", "v2")),
    ("retention", "REDRIVE_RETENTION", 7 * DAY, ("1d", DAY), (timedelta(days=3), 3 * DAY)),
    ("retention_runs", "REDRIVE_RETENTION_RUNS", None, ("1000", 1000), (0, 0)),
    ("dlq_retention", "REDRIVE_DLQ_RETENTION", 30 * DAY, ("90d", 90 * DAY), ("forever", FOREVER)),
    ("idempotency_retention", "REDRIVE_IDEMPOTENCY_RETENTION", 30 * DAY, ("90d", 90 * DAY), ("1h", 3_600.0)),
    ("outbox_retention", "REDRIVE_OUTBOX_RETENTION", 1 * DAY, ("7d", 7 * DAY), ("1h", 3_600.0)),
    ("audit_retention", "REDRIVE_AUDIT_RETENTION", 365 * DAY, ("3650d", 3650 * DAY), ("30d", 30 * DAY)),
    ("max_payload", "REDRIVE_MAX_PAYLOAD", 1_048_576, ("64 KiB", 65_536), (100, 100)),
    ("redact", "REDRIVE_REDACT", "", ("tax_id", "tax_id"), ("birthday", "birthday")),
    ("encryption_keys", "REDRIVE_ENCRYPTION_KEYS", "", (KEY, KEY), (f"plain,{KEY}",) * 2),
    ("allow_hosts", "REDRIVE_ALLOW_HOSTS", "", ("localhost:80",) * 2, ("10.0.0.0/8, erp",) * 2),
    ("secret_key", "REDRIVE_SECRET_KEY", "", ("x" * 32,) * 2, ("y" * 40,) * 2),
    (
        "base_url",
        "REDRIVE_BASE_URL",
        "",
        ("https://redrive.example.org/", "https://redrive.example.org"),
        ("http://localhost:8700/desk", "http://localhost:8700/desk"),
    ),
    ("trusted_proxies", "REDRIVE_TRUSTED_PROXIES", "", ("127.0.0.1",) * 2, ("10.0.0.0/8, ::1",) * 2),
    ("metrics", "REDRIVE_METRICS", "", ("0.0.0.0:9464",) * 2, (9464, "9464")),
    ("metrics_token", "REDRIVE_METRICS_TOKEN", "", ("x" * 16,) * 2, ("y" * 20,) * 2),
    (
        "smtp_url",
        "REDRIVE_SMTP_URL",
        "",
        ("smtp://mail:25?starttls=never",) * 2,
        ("smtps://ann:secret@mail.example.org",) * 2,
    ),
    ("smtp_from", "REDRIVE_SMTP_FROM", "", ("redrive@example.org",) * 2, ("ops@example.org",) * 2),
    ("notify_every", "REDRIVE_NOTIFY_EVERY", 3_600.0, ("10m", 600.0), ("0s", 0.0)),
    ("escalate_after", "REDRIVE_ESCALATE_AFTER", 0.0, ("4h", 14_400.0), ("1d", DAY)),
    ("escalate_to", "REDRIVE_ESCALATE_TO", "ADMIN", ("#on-call",) * 2, ("kim",) * 2),
    ("log", "REDRIVE_LOG", "", ("json", "json"), ("console", "console")),
]
NAMES = [name for name, *_ in EACH]


def test_every_setting_has_its_variable_and_is_tested_here() -> None:
    assert [field.name for field in fields(Settings)] == list(ENVIRONMENT_VARIABLES) == NAMES
    assert len(set(ENVIRONMENT_VARIABLES.values())) == len(ENVIRONMENT_VARIABLES)


@each("name, variable, default, text, argument", EACH)
def test_an_argument_takes_precedence_over_the_environment_and_that_over_the_default(
    name: str, variable: str, default: Any, text: tuple[str, Any], argument: tuple[Any, Any]
) -> None:
    def loaded(given: dict[str, Any], environment: dict[str, str]) -> Any:
        return getattr(Settings.load(given, environment), name)

    assert ENVIRONMENT_VARIABLES[name] == variable
    assert loaded({}, {}) == default
    assert loaded({}, {variable: text[0]}) == text[1] != default
    # A flag has only two values.
    assert isinstance(default, bool) or loaded({name: argument[0]}, {}) == argument[1] != default
    assert loaded({name: argument[0]}, {variable: text[0]}) == argument[1] != text[1]


@each("name", NAMES)
def test_a_variable_set_to_nothing_and_an_argument_of_none_count_as_not_given(name: str) -> None:
    assert Settings.load({name: None}, {ENVIRONMENT_VARIABLES[name]: ""}) == Settings()


@pytest.mark.parametrize(
    "url", ["redrive.example.org", "ftp://x", "https://", "https://a b", "https://x/?q=1", "https://u:p@x"]
)
def test_an_unusable_base_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"base_url \(REDRIVE_BASE_URL\) must be the URL of"):
        Settings.load({"base_url": url}, {})


def test_one_setting_leaves_the_others_alone() -> None:
    assert Settings.load({"lease": 5}, {"REDRIVE_GRACE": "6"}) == Settings(lease=5.0, grace=6.0)


def test_the_app_reads_the_environment_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_URL", "sqlite:///from-the-environment.db")
    monkeypatch.setenv("WORKER_CONCURRENCY", "3")
    settings = Redrive(lease="5s").settings
    assert (settings.url, settings.concurrency, settings.lease) == ("sqlite:///from-the-environment.db", 3, 5.0)
    assert Redrive("sqlite:///given.db").settings.url == "sqlite:///given.db"
    assert Redrive(url="sqlite:///given.db").settings.url == "sqlite:///given.db"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1048576", 1_048_576),
        ("1B", 1),
        ("2kB", 2_000),
        ("2MB", 2_000_000),
        ("2KiB", 2_048),
        (" 1 mib ", 1_048_576),
    ],
)
def test_sizes_are_bytes_or_carry_their_unit(text: str, size: int) -> None:
    assert Settings.load({"max_payload": text}, {}).max_payload == size
    assert Settings.load({}, {"REDRIVE_MAX_PAYLOAD": text}).max_payload == size


WRONG = [
    ("idempotency_retention", "a month", "idempotency_retention (REDRIVE_IDEMPOTENCY_RETENTION)"),
    ("base_url", "redrive.example.org", "base_url (REDRIVE_BASE_URL) must be the URL of the dashboard"),
    ("url", 5, "url (REDRIVE_URL) must be a text, not of type int"),
    ("token", 5, "token (REDRIVE_TOKEN) must be a text, not of type int"),
    ("allow_plain", "perhaps", "allow_plain (REDRIVE_ALLOW_PLAIN) must be yes or no"),
    ("proxy", 3128, "proxy (REDRIVE_PROXY) must be a text, not of type int"),
    ("ca_file", b"ca.pem", "ca_file (REDRIVE_CA_FILE) must be a text, not of type bytes"),
    ("notify_every", "hourly", "notify_every (REDRIVE_NOTIFY_EVERY)"),
    ("smtp_url", "mail.example.org", "smtp_url (REDRIVE_SMTP_URL) must be like smtp://"),
    ("smtp_url", "smtp://mail?starttls=maybe", "smtp_url (REDRIVE_SMTP_URL) must be like smtp://"),
    ("smtp_from", "Ops <ops@example.org>", "smtp_from (REDRIVE_SMTP_FROM) must be a mail address"),
    ("url", Path("a.db"), "url (REDRIVE_URL) must be a text, not of type "),
    ("version", 2.0, "version (REDRIVE_VERSION) must be a text, not of type float"),
    ("encryption_keys", b"x" * 32, "encryption_keys (REDRIVE_ENCRYPTION_KEYS) must be a text, not of type bytes"),
    ("encryption_keys", "secret", "(REDRIVE_ENCRYPTION_KEYS): key 1 is not the base64 of 32 bytes"),
    ("encryption_keys", f"{KEY},AAAA", "key 2 is not the base64 of 32 bytes"),
    ("encryption_keys", f"{KEY},plain", "key 2 is not the base64 of 32 bytes"),
    ("encryption_keys", f"{KEY},", "key 2 is not the base64 of 32 bytes"),
    ("encryption_keys", "plain,é", "key 2 is not the base64 of 32 bytes"),
    ("redact", ["tax_id"], "redact (REDRIVE_REDACT) must be a text, not of type list"),
    ("allow_hosts", ["erp"], "allow_hosts (REDRIVE_ALLOW_HOSTS) must be a text, not of type list"),
    ("allow_hosts", "erp, *", "allow_hosts (REDRIVE_ALLOW_HOSTS) contains '*'"),
    ("metrics", "everywhere", "metrics (REDRIVE_METRICS) is 'everywhere': give a port, such as 9464"),
    ("metrics", "70000", "metrics (REDRIVE_METRICS) is '70000': give a port"),
    ("metrics_token", "x" * 15, "metrics_token (REDRIVE_METRICS_TOKEN) is shorter than 16 characters"),
    ("log", "loud", "log (REDRIVE_LOG) must be json or console, not 'loud'"),
    ("trusted_proxies", "10.0.0.0/8, proxy", "trusted_proxies (REDRIVE_TRUSTED_PROXIES) contains 'proxy'"),
    ("secret_key", "x" * 31, "secret_key (REDRIVE_SECRET_KEY) is shorter than 32 bytes"),
    ("concurrency", 0, "concurrency (WORKER_CONCURRENCY) must be at least 1, not 0"),
    ("concurrency", "-3", "concurrency (WORKER_CONCURRENCY) must be at least 1, not -3"),
    ("concurrency", "many", "concurrency (WORKER_CONCURRENCY) must be a whole number, not 'many'"),
    ("concurrency", "2.5", "must be a whole number, not '2.5'"),
    ("concurrency", "²", "must be a whole number, not '²'"),
    ("concurrency", "9" * 5000, "must be a whole number, not '999"),
    ("concurrency", 2.5, "must be a whole number, not 2.5"),
    ("concurrency", True, "must be a whole number, not True"),
    ("lease", "0.4s", "lease (REDRIVE_LEASE) is 0.4 s: give at least 0.5 s"),
    ("lease", "soon", "lease (REDRIVE_LEASE) is 'soon', which is not a duration"),
    ("lease", True, "lease (REDRIVE_LEASE) is True, which is not a duration"),
    ("lease", "nan", "which is not a duration"),
    ("dlq_retention", "forevr", '"2d", or "forever".'),
    ("grace", -1, "grace (REDRIVE_GRACE) is -1, but cannot be negative"),
    ("grace", "-1", "but cannot be negative"),
    ("hold", [5], "hold (REDRIVE_HOLD) is [5], which is not a duration"),
    ("code_wait", "10 minutes", "code_wait (REDRIVE_CODE_WAIT) is '10 minutes', which is not a duration"),
    ("queues", 5, "queues (REDRIVE_QUEUES) must be a list of names, not 5"),
    ("queues", "emails,,", "queues (REDRIVE_QUEUES) contains an empty or too long name"),
    ("chores", 0, "chores (REDRIVE_CHORES) must be more than 0 s"),
    ("retention", "inf", "retention (REDRIVE_RETENTION) is longer than a hundred years"),
    ("retention_runs", -1, "retention_runs (REDRIVE_RETENTION_RUNS) must be 0 or more"),
    ("retention_runs", "many", "retention_runs (REDRIVE_RETENTION_RUNS) must be a whole number"),
    ("audit_retention", "1y", "audit_retention (REDRIVE_AUDIT_RETENTION) is '1y', which is not a duration"),
    ("dlq_retention", "1y", "dlq_retention (REDRIVE_DLQ_RETENTION) is '1y', which is not a duration"),
    ("escalate_after", "soon", "escalate_after (REDRIVE_ESCALATE_AFTER) is 'soon', which is not a duration"),
    ("escalate_to", 5, "escalate_to (REDRIVE_ESCALATE_TO) must be a text"),
    ("outbox_retention", "a day", "outbox_retention (REDRIVE_OUTBOX_RETENTION) is 'a day', which is not a duration"),
    ("max_payload", 0, "max_payload (REDRIVE_MAX_PAYLOAD) must be at least 1 byte"),
    ("max_payload", "1GiB", "max_payload (REDRIVE_MAX_PAYLOAD) must be a size such as 1048576 or 1MiB"),
    ("max_payload", "1.5MiB", "must be a size such as 1048576 or 1MiB, not '1.5MiB'"),
    ("max_payload", "²", "must be a size such as"),
    ("max_payload", "MiB", "must be a size such as"),
    ("max_payload", 1.5, "must be a size such as"),
    ("max_payload", True, "must be a size such as"),
]


@each("name, value, words", WRONG)
def test_an_invalid_value_is_refused_naming_setting_and_variable(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        Settings.load({name: value}, {})
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        Redrive(**{name: value})
    if isinstance(value, str):
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            Settings.load({}, {ENVIRONMENT_VARIABLES[name]: value})


def test_every_setting_has_an_error_among_those_above() -> None:
    assert {name for name, _, _ in WRONG} == set(NAMES)


def test_settings_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown settings: leese, zzz; there are: url, token, allow_plain, "):
        Redrive(zzz=1, leese="5s")


# -- the page ----------------------------------------------------------------------------------------------


def rows() -> dict[str, tuple[str, str]]:
    """Return argument and default by variable, from the table of the page."""
    found = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    return {variable: (argument, default) for variable, argument, default in found}


def section(variable: str) -> str:
    found = re.search(rf"^## {variable}$(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return "" if found is None else found[1]


def test_the_page_has_a_heading_for_every_setting_and_no_other() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.M) == list(ENVIRONMENT_VARIABLES.values())


@each("name", NAMES)
def test_the_page_names_argument_and_default_of_every_setting(name: str) -> None:
    variable = ENVIRONMENT_VARIABLES[name]
    argument, default = rows()[variable]
    assert argument == name
    assert f"*Argument:* `{name}`" in section(variable)
    written = re.fullmatch(r"`(.+)`", default)
    standard = getattr(Settings(), name)
    if written is None:
        assert not standard
    else:
        assert getattr(Settings.load({}, {variable: written[1]}), name) == standard
        assert f"*Default:* `{written[1]}`" in section(variable)


@each("variable", ENVIRONMENT_VARIABLES.values())
def test_the_page_says_when_to_change_each_setting(variable: str) -> None:
    assert re.search(r"^\*(Change|Set|Add to|Raise|Lower) it\*", section(variable), re.M)


def test_a_short_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="shorter than 32 bytes") as caught:
        Settings(secret_key="sh0rt")
    assert "sh0rt" not in str(caught.value)
    assert "sh0rt" not in repr(Settings(secret_key="sh0rt" * 8))
