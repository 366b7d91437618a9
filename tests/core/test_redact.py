"""Redaction: secrets are hidden, nothing else is, and masked fields can be found."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core import redact, secret_and_sealed_text
from redrive.core.redact import DEFAULT_NAMES, DEFAULT_PATTERNS, MASK, Redactor, find_masked_paths, is_masked
from redrive.errors import ConfigurationError

REDACTOR = Redactor()
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
KEY_BLOCK = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nx9w==\n-----END RSA PRIVATE KEY-----"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(DEFAULT_NAMES), inner),
    max_leaves=25,
)


# -- by name -------------------------------------------------------------------------------------------


@each(
    "name",
    [
        *("password", "Password", "PASSWORD", "user_password", "userPassword", "password_hash", "PGPASSWORD"),
        *("api_key", "apiKey", "API-Key", "X-Api-Key", "APIKEY", "apikey", "stripeApiKey", "STRIPE_API_KEY"),
        *("token", "access_token", "accessToken", "accesstoken", "refresh-token", "authToken"),
        *("Authorization", "proxy-authorization", "cookie", "Set-Cookie", "secret", "clientSecret"),
        *("card_number", "cardNumber", "card number", "creditCardNumber", "cvv", "CVC", "iban", "ssn", "pin"),
        *("private_key", "aws_secret_access_key", "credentials", "pwd"),
    ],
)
def test_a_field_with_a_telling_name_is_hidden(name: str) -> None:
    assert REDACTOR.hides(name)
    for value in ("x", 5, 1.5, ["x"], {"a": "x"}):
        assert REDACTOR.redact({name: value}) == {name: MASK}


@each(
    "name",
    [
        *("order_id", "amount", "tokenizer", "spinning", "pinned", "pins", "option", "options", "stops"),
        *("jwtish", "optional", "hotpath", "name", "value", "header", "secretaries"),
        *("secretary", "passenger", "compass", "card", "card_brand", "key", "keyboard", "authorized_by", "", "7"),
    ],
)
def test_a_field_with_an_ordinary_name_is_shown(name: str) -> None:
    assert not REDACTOR.hides(name)
    assert REDACTOR.redact({name: "x"}) == {name: "x"}


@each(
    "name",
    [
        *("passwords", "tokens", "api_keys", "apiKeys", "secrets", "access_tokens", "accesstokens", "cookies"),
        *("PASSWORDS", "userPasswords", "max_tokens", "prompt_tokens"),
    ],
)
def test_a_plural_hides_everything_but_numbers(name: str) -> None:
    for value in ("x", ["x"], {"a": "x"}):
        assert REDACTOR.redact({name: value}) == {name: MASK}
    for number in (5, 1.5, 0):
        assert REDACTOR.redact({name: number}) == {name: number}
    assert REDACTOR.text(f"{name}=abc and {name}=512") == f"{name}={MASK} and {name}=512"


@each(
    "value",
    [
        {"name": "password", "value": "hunter2"},
        {"Value": "hunter2", "Name": "X-Api-Key", "secret_id": None},
        {"key": "DB_PASSWORD", "val": "hunter2", "type": "env"},
        {"header": "authorization", "values": ["hunter2"]},
        [["content-type", "text/plain"], ["authorization", "hunter2"]],
        [("cookie", "hunter2")],
        ["deploy", "--password", "hunter2", "--verbose"],
        {"headers": [{"name": "cookie", "value": {"sid": "hunter2"}}]},
    ],
)
def test_a_value_is_hidden_for_the_name_beside_it(value: Any) -> None:
    shown = json.dumps(REDACTOR.redact(value), ensure_ascii=False)
    assert "hunter2" not in shown
    assert MASK in shown


@each(
    "value",
    [
        {"name": "colour", "value": "red"},
        {"name": "password", "label": "Password", "type": "field"},
        {"name": "password", "value": None},
        {"required": ["password", "email"]},
        ["password", "email"],
        ["deploy", "--token", "--verbose"],
        ["deploy", "--region", "eu"],
        [["colour", "red"], ["size", "xl"]],
        [["password", "email", "name"]],
    ],
)
def test_lists_and_pairs_without_secrets_stay_as_they_are(value: Any) -> None:
    assert REDACTOR.redact(value) == value


def test_null_true_and_false_are_not_hidden() -> None:
    value = {"password": None, "token": "", "has_password": True, "secret": False}
    assert REDACTOR.redact(value) == value


def test_names_are_found_at_any_depth() -> None:
    value = {"customers": [{"name": "Ann", "cards": [{"cvv": 123, "brand": "x"}]}]}
    assert REDACTOR.redact(value) == {"customers": [{"name": "Ann", "cards": [{"cvv": MASK, "brand": "x"}]}]}


# -- by content ----------------------------------------------------------------------------------------


@each(
    "text, shown",
    [
        (f"got {JWT} here", f"got {MASK} here"),
        ("Bearer abcdefghijklmnopqrstuvwx", f"Bearer {MASK}"),
        ("bearer a1b2c3", f"bearer {MASK}"),
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {MASK}"),
        ("Authorization: Bearer abc", f"Authorization: Bearer {MASK}"),
        ("key AKIAIOSFODNN7EXAMPLE!", f"key {MASK}!"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ", MASK),
        ("xoxb-123456789012-abc", MASK),
        ("sk_live_0123456789abcdef", MASK),
        ("sk-proj-0123456789abcdefghij", MASK),
        ("AIza" + "a" * 35, MASK),
        (KEY_BLOCK, f"{MASK}-----END RSA PRIVATE KEY-----"),
        ("postgresql://app:hunter2@db/x", f"postgresql://app:{MASK}@db/x"),
        ("card 4111 1111 1111 1111 declined", f"card {MASK} declined"),
        ("card 4111-1111-1111-1111.", f"card {MASK}."),
        ("card4111111111111111", f"card{MASK}"),
        ("378282246310005", MASK),
        ("30569309025904", MASK),
        ("order 12 4111 1111 1111 1111 123", f"order 12 {MASK} 123"),
        ("5555555555554444 4111111111111111", f"{MASK} {MASK}"),
        ("password=hunter2 failed", f"password={MASK} failed"),
        ('{"password": "hunter 2", "a": 1}', f'{{"password": {MASK}, "a": 1}}'),
        ('"password": "a\\"b" x', f'"password": {MASK} x'),
        ("{'api_key': 'x y', 'a': 1}", f"{{'api_key': {MASK}, 'a': 1}}"),
        ('{\\"password\\": \\"x y\\"}', f'{{\\"password\\": {MASK}}}'),
        ("GET /x?api_key=abc&page=2", f"GET /x?api_key={MASK}&page=2"),
        ("url=https://x/?api_key=abc", f"url=https://x/?api_key={MASK}"),
        ('password="cut off', f"password={MASK} off"),
        ("password=token=x", f"password={MASK}"),
        ("Authorization=Bearer abcdefghijklmnopqrst", f"Authorization=Bearer {MASK}"),
        ("no login with password: hunter2, sorry", f"no login with password: {MASK}, sorry"),
        ("password = hunter2", f"password = {MASK}"),
        ("X-Api-Key: 12ab", f"X-Api-Key: {MASK}"),
        ("token: 'a b' c", f"token: {MASK} c"),
        ("COOK\u0130E: sid=abc", f"COOK\u0130E: {MASK}"),  # a letter whose lower case is two
        ("jwt=abc", f"jwt={MASK}"),
        ("otp: 123456", f"otp: {MASK}"),
        ("dsn=host=db;pw=x y", f"dsn={MASK};pw=x y"),
        ("host=db user=app password=hunter2 dbname=x", f"host=db user=app password={MASK} dbname=x"),
        ("postgresql://app:p@ss@db/x", f"postgresql://app:{MASK}@db/x"),
        ("postgresql://app:" + "x" * 500 + "@db/x", f"postgresql://app:{MASK}@db/x"),
        ("https://0123456789abcdef0123456789abcdef@o1.example/2", f"https://{MASK}@o1.example/2"),
        ('{"a":"x://u:p@h","b":"m@n"}', f'{{"a":"x://u:{MASK}@h","b":"m@n"}}'),
        ('{"name": "password", "value": "x y"}', f'{{"name": "password", "value": {MASK}}}'),
        ("[('content-type', 'a'), ('authorization', 'x y')]", f"[('content-type', 'a'), ('authorization', {MASK})]"),
        ("[(b'cookie', b'x y')]", f"[(b'cookie', b{MASK})]"),
        ("secrets=['a', 'b'] done", f"secrets={MASK} done"),
        ("<password>hunter2</password>", f"<password>{MASK}</password>"),
        ("<ns:apiKey a='b'>x y</ns:apiKey><b>c</b>", f"<ns:apiKey a='b'>{MASK}</ns:apiKey><b>c</b>"),
        ("<token><![CDATA[a<b]]></token>", f"<token>{MASK}</token>"),
        ("<token><![CDATA[a<b", f"<token>{MASK}"),
        ("<user><password>hunt", f"<user><password>{MASK}"),
        ('<user name="ann" password="hunter2"/>', f'<user name="ann" password={MASK}/>'),
        ('<add key="Password" value="hunter2"/>', f'<add key="Password" value={MASK}/>'),
        ("tool --password hunter2 --x", f"tool --password {MASK} --x"),
        ("tool --api-key='a b' x", f"tool --api-key={MASK} x"),
        ("tool --api-key 'a b' x", f"tool --api-key {MASK} x"),
        ("sshpass -p hunter2 ssh x", f"sshpass -p {MASK} ssh x"),
        ("mysql -u root -phunter2 shop", f"mysql -u root -p{MASK} shop"),
        ("curl -s -u ann:hunter2 https://x", f"curl -s -u ann:{MASK} https://x"),
        (f"key rdk_{'0a' * 13}_{'x-Y_' * 10}abc used", f"key rdk_{'0a' * 13}_{MASK} used"),
        ("code 01h.ABCDE-FGHJK-MNPQR-STVWX-23456 sent", f"code 01h.{MASK} sent"),
        ("Set-Cookie: sid=abc; theme=dark\nHost: x", f"Set-Cookie: {MASK}\nHost: x"),
    ],
)
def test_a_secret_in_a_text_is_hidden_and_the_rest_stays(text: str, shown: str) -> None:
    assert REDACTOR.text(text) == shown
    assert REDACTOR.redact([text]) == [shown]


@each(
    "text",
    [
        *("", "plain text", "Bearer authentication failed", "basic information", "invalid token: expired"),
        *("order.card_token: field required", "password: input should be a valid string", "token:\n  next"),
        *("secret://vault/password", "the password is wrong: again"),
        *("4111111111111112", "1700000000000", "order 4111-1111", "9" * 30, "41111111111111111111111111"),
        *("password=", "password= ", "eyJ is a prefix", "https://example.org/a:b@c", "see api_key", "a=b"),
        "550e8400-e29b-41d4-a716-446655440000",
        *("tokens=512", "max_tokens: 4096", "secrets: 3 found", "2 passwords were checked", "otp expired"),
        *("use --password to set it", "--token requires a value", "--password, --token", "cp -p a b", "mkdir -p x"),
        *("ssh -p 2222 host", "mysql -p shop", "mysql -port 3306", "docker run -p 80:80 x", "curl -u ann https://x"),
        *("usage: login <user> <password> [--verbose]", "<password></password>", "<token/>", "<a>b</a>"),
        *("<password> and then </b>", "a < b and password > c", '{"name": "colour", "value": "red"}'),
        *("loc=('body', 'password')", "('password', 'required')", "rdk_ is a prefix"),
        *("ABCDE-FGHJK", "https://example.org/deadbeefdeadbeef@2x.png", "git@github.com:a/b", "a:b@c"),
        *("x < 5, y = 6", "name='ann' value='x'", "tokenizer=fast", "http://[::1]:8080/", "time 12:30:45"),
    ],
)
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert REDACTOR.text(text) == text


@pytest.mark.parametrize("pattern", DEFAULT_PATTERNS)
@settings(max_examples=20)
@given(st.data())
def test_text_that_matches_a_pattern_is_hidden(pattern: str, data: st.DataObject) -> None:
    assert MASK in REDACTOR.text(data.draw(st.from_regex(pattern)))


def test_a_card_number_is_hidden_as_a_number_too() -> None:
    assert REDACTOR.redact([4111111111111111, 4111111111111112, 42, 10**5000, 1.5]) == [
        *(MASK, 4111111111111112, 42, 10**5000, 1.5)
    ]


def test_keys_are_texts_as_well_and_none_is_lost() -> None:
    cards = {"4111111111111111": 1, "5555555555554444": 2, "378282246310005": 3}
    assert REDACTOR.redact(cards) == {MASK: 1, f"{MASK} (2)": 2, f"{MASK} (3)": 3}


# -- properties ----------------------------------------------------------------------------------------


@given(JSON)
def test_nothing_is_changed_in_place_and_the_result_is_json(value: Any) -> None:
    before = copy.deepcopy(value)
    json.dumps(REDACTOR.redact(value))
    assert value == before


@given(JSON)
def test_redacting_twice_is_redacting_once(value: Any) -> None:
    once = REDACTOR.redact(value)
    assert REDACTOR.redact(once) == once


@given(st.text(st.characters(categories=["L", "N"]), min_size=1), st.sampled_from(DEFAULT_NAMES), JSON)
def test_no_value_under_a_hidden_name_is_ever_shown(secret: str, name: str, beside: Any) -> None:
    shown = REDACTOR.redact({"a": [{name: f"§{secret}§", "b": beside}]})
    assert f"§{secret}§" not in json.dumps(shown, ensure_ascii=False)


def test_extremely_nested_values_are_hidden_whole() -> None:
    value: Any = "4111111111111111"
    for _ in range(5_000):
        value = [value]
    shown = REDACTOR.redact(value)
    assert find_masked_paths(shown) == ("[0]" * 201,)


def test_other_values_pass_and_tuples_become_lists() -> None:
    marker = object()
    assert REDACTOR.redact((marker, "x")) == [marker, "x"]


# -- finding the masks again ---------------------------------------------------------------------------


def test_masked_fields_are_found() -> None:
    value = {
        "name": "Ann",
        "card": {"number": "4111111111111111", "cvv": 123},
        "notes": ["ok", "password=x"],
        "odd key": [{"token": "t"}],
        "4111111111111111": 1,
    }
    assert find_masked_paths(value) == ()
    assert find_masked_paths(REDACTOR.redact(value)) == (
        *(f"['{MASK}']", "card.number", "card.cvv", "notes[1]", "['odd key'][0].token"),
    )
    assert find_masked_paths(MASK) == ("$",)


def test_a_text_with_a_mask_anywhere_in_it_is_masked() -> None:
    assert is_masked(MASK)
    assert is_masked(f"Bearer {MASK}")
    assert not any(map(is_masked, ["", "•••", None, 5, [MASK], {MASK: 1}]))


# -- the setting ---------------------------------------------------------------------------------------


def test_a_setting_adds_names_and_patterns_to_the_defaults() -> None:
    redactor = Redactor.parse(r" taxNumber , /EMP-\d{1,6}/ ,, /a\/b,c/,fiscal code")
    assert redactor.names == (*DEFAULT_NAMES, "taxNumber", "fiscal code")
    assert redactor.patterns == (*DEFAULT_PATTERNS, r"EMP-\d{1,6}", "a/b,c")
    assert redactor.redact({"tax_number": 1, "FiscalCode": "x", "password": "y", "z": "EMP-12 a/b,c!"}) == {
        "tax_number": MASK,
        "FiscalCode": MASK,
        "password": MASK,
        "z": f"{MASK} {MASK}!",
    }


@pytest.mark.parametrize("spec", ["", " ", ",", " , ,"])
def test_an_empty_setting_leaves_the_defaults(spec: str) -> None:
    assert Redactor.parse(spec) == Redactor()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("/(/", "not a regular expression"),
        ("/a*/", "would hide every text"),
        ("/abc", "has no end"),
        ("name, /abc, other", "has no end"),
        ("//", "has no end"),
        ("/a/b", "has no end"),
        ("--", "at least one letter or digit"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_reason(spec: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Redactor.parse(spec)


def test_names_in_other_scripts_work() -> None:
    redactor = Redactor.parse("пароль, Geheimzahl, straßenschlüssel")
    assert redactor.redact({"Пароль": "x", "geheimzahl": "y", "Straßenschlüssel": "z"}) == {
        "Пароль": MASK,
        "geheimzahl": MASK,
        "Straßenschlüssel": MASK,
    }


def test_a_redactor_may_have_no_rules() -> None:
    assert Redactor(names=(), patterns=()).redact({"password": JWT}) == {"password": JWT}


# -- time ----------------------------------------------------------------------------------------------

_UNITS = [
    *("a", "1", "1 ", "4 ", "1-", "12 ", "4111 ", "4111 1111 1111 111", "eyJ", "eyJaaaaa.", "eyJ-", "bearer "),
    *("password=", 'password="', "password='", "password\\", 'password=\\"', "password=[", "'", '"', "\\", "://"),
    *("://a:", "://a:b@", "@", "sk-", "xoxb-", "AKIA", "-----BEGIN PRIVATE KEY-----", "authorization:", "cookie:x"),
    *("a-", "A", "\n", " ", "=", '":', "gh", "gho_", "github_pat_", "rdk_", "ABCDE-", "--password ", "--password '"),
    *("<password>", "<password a", "<token><![CDATA[", "<token>a</", "<", "mysql ", "mysql -p ", "curl -u ", "curl "),
    *('"name": "password", ', "name='password' value='", "('token', '", "('token', ", "tokens, ", "a1_", "sshpass -p "),
]


def test_every_repetition_without_a_bound_is_possessive() -> None:
    expressions = [
        *(re.compile(pattern) for pattern in DEFAULT_PATTERNS),
        *(one for one in vars(secret_and_sealed_text).values() if isinstance(one, re.Pattern)),
    ]
    assert len(expressions) > 30
    assert {one.pattern: _unbounded(one.pattern) for one in expressions if _unbounded(one.pattern)} == {}
    assert _unbounded(r"a(?:b|c[de]*)f") == ["MAX_REPEAT"]  # the check finds what it looks for


def _unbounded(pattern: str) -> list[str]:
    """Name the repetitions that may give characters back and that have no bound, or one above 256."""
    found: list[str] = []

    def look(part: Any) -> None:
        if isinstance(part, tuple) and len(part) == 2 and str(part[0]) in ("MAX_REPEAT", "MIN_REPEAT"):
            if part[1][1] > 256:
                found.append(str(part[0]))
        if isinstance(part, tuple | list | re._parser.SubPattern):  # type: ignore[attr-defined]
            for inner in part:
                look(inner)

    look(re._parser.parse(pattern))  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("size", "seconds"), [(1 << 17, 30), pytest.param(1 << 20, 240, marks=pytest.mark.slow)], ids=["128 KiB", "1 MiB"]
)
@pytest.mark.heavy
def test_a_long_text_of_anything_is_redacted_within_a_processor_limit(size: int, seconds: int) -> None:
    """A quadratic scan of a mebibyte takes hours, one of 128 KiB minutes; all of these together take seconds."""
    program = f"""
import json, resource, sys
from redrive.core.redact import Redactor
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
redactor = Redactor()
for unit in json.load(sys.stdin):
    text = unit * ({size} // len(unit))
    redactor.text(text + "!")
    redactor.hides(text)
print("all")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(_UNITS), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "all"), done.stderr[-2000:]


def test_names_that_masking_made_equal_are_numbered_without_counting_again() -> None:
    """Masking makes all these keys equal. The dictionary counts how often it is asked for a name."""
    asked = 0

    class Counting(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            nonlocal asked
            asked += 1
            return super().__contains__(key)

    taken, numbers = Counting(), {}
    for number in range(1, 2_001):
        name = MASK if number == 1 else redact._make_unique(MASK, taken, numbers)
        assert name == (MASK if number == 1 else f"{MASK} ({number})")
        taken[name] = number
    assert asked <= 2 * 2_000
