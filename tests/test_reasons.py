"""Reasons: every code has a sentence in both languages and is produced somewhere, with its parameters."""

from __future__ import annotations

import ast
import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import redrive
from redrive import LetterFilter, Redrive, RetryPolicy
from redrive.errors import Conflict, InputError, PayloadError
from redrive.policy import Category
from redrive.reasons import ENGLISH, Reason, ReasonCode, quote, render
from redrive.reasons.reason import CATEGORY_CODES, POLISH, parameter_names
from redrive.remote.client import Address, read_problem
from redrive.testing import engine

SOURCES = Path(redrive.__file__).parent
LANGUAGES = {"English": ENGLISH, "Polish": POLISH}
REFUSALS = {
    *("InputError", "NotFound", "NotAllowed", "Conflict", "NotSignedIn", "UnknownWorkflow"),
    *("PayloadError", "PayloadTooLarge"),
}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """Yield the sources outside the catalogues, with their syntax trees."""
    for path in sorted(SOURCES.rglob("*.py")):
        if path.parent.name != "reasons":
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def named_codes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ReasonCode":
            yield node.attr


def used(template: str) -> set[str]:
    """Return the parameters of a template, in all its forms and optional parts; `n` chooses the form."""
    return parameter_names(template.replace("[", "").replace("]", "")) | ({"n"} if "|" in template else set())


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_has_a_sentence_for_every_code_and_no_other(language: str) -> None:
    assert set(LANGUAGES[language].texts) == set(ReasonCode)


def test_both_languages_use_the_same_parameters() -> None:
    differing = [code for code in ReasonCode if used(ENGLISH.texts[code]) != used(POLISH.texts[code])]
    assert differing == []


def test_every_code_is_produced_somewhere() -> None:
    found = Counter(name for _, tree in trees() for name in named_codes(tree))
    found.update(code.name for code in CATEGORY_CODES.values())
    assert [code.name for code in ReasonCode if not found[code.name]] == []


def test_every_reason_is_made_with_the_parameters_of_its_sentence() -> None:
    calls, wrong = 0, []
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "Reason" or not node.args:
                continue
            given = {each.arg for each in node.keywords if each.arg is not None}
            for name in named_codes(node.args[0]):
                calls += 1
                missing = used(ENGLISH.texts[ReasonCode[name]]) - given
                wrong += [f"{path.name}:{node.lineno} {name} lacks {missing}"] if missing else []
    assert calls > 150
    assert wrong == []


def is_text(node: ast.expr) -> bool:
    """Return True for a string literal, an f-string, or texts joined by `+`, `%` or `.format`."""
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr():
            return True
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return is_text(left) or is_text(right)
        case ast.BinOp(left=left, op=ast.Mod()):
            return is_text(left)
        case ast.IfExp(body=body, orelse=orelse):
            return is_text(body) or is_text(orelse)
        case ast.Call(func=ast.Attribute(value=value, attr="format" | "join")):
            return is_text(value)
    return False


def plain_refusals(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that raise a refusal with a text instead of a reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name = getattr(node.exc.func, "id", getattr(node.exc.func, "attr", ""))
            # The first argument of a ProblemError is its status.
            if (name in REFUSALS and is_text(node.exc.args[0])) or (
                name == "ProblemError" and is_text(node.exc.args[1])
            ):
                yield node.lineno


@pytest.mark.parametrize(
    ("argument", "plain"),
    [
        ('"no"', True),
        ('f"no {x}"', True),
        ('"no " + x', True),
        ('x + "no"', True),
        ('"no %s" % x', True),
        ('"no {}".format(x)', True),
        ('", ".join(x)', True),
        ('"no" if x else Reason("a")', True),
        ("Reason(ReasonCode.TEXT, text=x)", False),
        ("reason", False),
    ],
)
@pytest.mark.parametrize("name", ["NotFound", "errors.NotFound"])
def test_a_refusal_with_a_text_is_found(name: str, argument: str, plain: bool) -> None:
    assert bool(list(plain_refusals(ast.parse(f"raise {name}({argument}, role=1)")))) is plain
    assert not list(plain_refusals(ast.parse(f"raise ConfigurationError({argument})")))


def test_every_refusal_is_made_from_a_reason() -> None:
    found = [f"{path.relative_to(SOURCES)}:{line}" for path, tree in trees() for line in plain_refusals(tree)]
    assert found == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_forms_follow_the_number(language: str) -> None:
    died = [render(Reason(ReasonCode.WORKERS_DIED, n=n), LANGUAGES[language]) for n in (1, 2, 5, 12, 22)]
    if language == "English":
        assert died[0] == "1 worker crashed while executing this run"
        assert died[1] == "2 workers crashed while executing this run"
    else:
        assert [text.split()[6] for text in died] == ["uległ", "uległy", "uległo", "uległo", "uległy"]


def test_a_reason_within_a_reason_is_rendered_in_the_same_language() -> None:
    inner = Reason(ReasonCode.STEP_FAILED, step="b", n=1, category="network", why=Reason(ReasonCode.NO_RETRY_ALLOWED))
    outer = Reason(ReasonCode.STEP_NOT_UNDONE, step="a", why=inner)
    assert str(outer) == (
        "step 'a' could not be rolled back: step 'b' failed once (network): the policy does not allow retries"
    )
    assert render(outer, POLISH) == (
        "nie udało się wycofać kroku 'a': krok 'b' nie powiódł się (błąd sieci): zasady nie pozwalają na ponowienie"
    )


@pytest.mark.parametrize("code", [code for code in ReasonCode if "{category}" in ENGLISH.texts[code]])
def test_a_polish_reason_names_the_category_of_a_failure_in_polish(code: ReasonCode) -> None:
    assert set(CATEGORY_CODES) == set(Category)
    given = {"step": "a", "n": 2, "why": "x", "window": 60.0}
    for category, text in CATEGORY_CODES.items():
        rendered = render(Reason(code, category=category, **given), POLISH)
        assert POLISH.texts[text] in rendered
        assert category not in rendered


def test_parts_without_their_parameter_are_left_out() -> None:
    decision = {"attempt": 3, "cause": Reason(ReasonCode.RATE_LIMITED), "why": Reason(ReasonCode.RUN_ENDING)}
    whole = Reason(ReasonCode.NOT_RETRIED, of=5, status_code=429, **decision)
    bare = Reason(ReasonCode.NOT_RETRIED, of=None, status_code=None, **decision)
    assert str(whole) == "attempt 3 of 5, HTTP 429, rate limited, not retried: the run is ending"
    assert str(bare) == "attempt 3, rate limited, not retried: the run is ending"


def test_a_stored_reason_is_read_back() -> None:
    fault = Reason(ReasonCode.FAULT, path="zamówienie.cena", why=Reason(ReasonCode.KIND_NUMBER))
    what = Reason(ReasonCode.WORKFLOW_INPUT, workflow="łódź")
    reason = Reason(ReasonCode.VALUE_INVALID, what=what, faults=(fault,), more=None)
    assert Reason.from_text(reason.to_text()) == reason
    assert "łódź" in reason.to_text()
    assert hash(Reason.from_text(reason.to_text())) == hash(reason)
    assert reason.faults == (("zamówienie.cena", Reason(ReasonCode.KIND_NUMBER)),)


@pytest.mark.parametrize("text", ["paid by hand", "", "{}", "[1]", "7", '{"code": 1, "params": 2}', '"x"'])
def test_other_text_is_a_reason_without_a_code(text: str) -> None:
    assert Reason.from_text(text) == Reason(ReasonCode.TEXT, text=text)
    assert str(Reason.from_text(text)) == text


def test_a_reason_of_another_version_is_shown_unchanged() -> None:
    newer = Reason.from_text('{"code": "moon_phase", "params": {"phase": "full"}}')
    other = Reason(ReasonCode.STEP_FAILED, step="a")
    assert str(newer) == "moon_phase, phase=full"
    assert render(other, POLISH) == "step_failed, step=a"


def test_every_text_within_a_reason_is_changed() -> None:
    reason = Reason(
        ReasonCode.STEP_NOT_UNDONE,
        step="pin 1234",
        why=Reason(ReasonCode.ONE_OF, options=("1234", Reason(ReasonCode.TEXT, text="1234")), more=2),
    )
    hidden = reason.map_text(lambda text: text.replace("1234", "***"))
    assert "1234" not in hidden.to_text()
    assert str(hidden) == "step 'pin ***' could not be rolled back: *** or *** or one of 2 more"


def test_an_error_carries_its_reason() -> None:
    reason = Reason(ReasonCode.BULK_DONE, id="s1")
    error = Conflict(reason)
    assert error.reason == reason
    assert str(error) == "bulk action s1 is finished: all its failures were processed"
    again = copy.deepcopy(error)
    assert (again.reason, str(again)) == (reason, str(error))
    assert PayloadError(reason, path="a").reason == reason
    assert InputError("a plain text").reason is None
    assert Reason.of_error(InputError("a plain text")) == Reason(ReasonCode.TEXT, text="a plain text")


@pytest.mark.parametrize(
    ("code", "text"),
    [("moon_phase", "the moon is full"), (None, "the moon is full"), ("bulk_done", "bulk action s1 is finished: ")],
)
def test_a_client_shows_the_sentence_of_a_newer_server(code: str | None, text: str) -> None:
    problem = {"code": "conflict", "detail": "the moon is full", "reason_code": code, "reason_params": {"id": "s1"}}
    error = read_problem(Address.read("http://there"), 409, json.dumps(problem).encode())
    assert isinstance(error, Conflict)
    assert str(error).startswith(text)


def test_a_refused_value_is_quoted_in_short() -> None:
    assert quote("x" * 100) == "'" + "x" * 59
    assert quote(None) == "None"


async def test_a_dead_letter_stores_its_reason_as_data_and_is_found_by_it() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.step(retry=RetryPolicy(max_retries=1, base_delay="1s"))
    async def charge() -> None:
        raise ConnectionError("the bank is down")

    @app.workflow
    async def fulfil() -> None:
        await charge()

    @app.workflow
    async def refuse() -> None:
        raise ValueError('they said "no"')

    async with engine(app) as e:
        for workflow in (fulfil, refuse):
            await e.run(workflow)
        rows = await e.store.letters(LetterFilter(), limit=9, cursor=None)
        stored = {row.workflow: row.reason for row in rows.items}
        why = Reason(ReasonCode.RETRIES_EXHAUSTED)
        assert Reason.from_json(json.loads(stored["fulfil"])) == Reason(
            ReasonCode.STEP_FAILED, step="charge", n=2, category="network", why=why
        )
        for text, found in {
            "retries exhausted": ["fulfil"],
            "RETRIES_EXHAUSTED": ["fulfil"],
            'said "no"': ["refuse"],
            "100%": [],
        }.items():
            page = await app.dlq.list(LetterFilter(text=text))
            assert [letter.workflow for letter in page.items] == found, text
        (letter,) = (await app.dlq.list(LetterFilter(workflow="fulfil"))).items
        assert letter.reason == "step 'charge' failed 2 times (network): retries are exhausted"
        assert (letter.reason_code, letter.reason_params["why"]) == ("step_failed", why.to_json())
        await app.dlq.ignore(letter.id, by="ann", reason='{"code": "replayed", "params": {}}')
        closed = await app.dlq.get(letter.id)
        assert (closed.resolution, closed.resolution_code) == ('{"code": "replayed", "params": {}}', None)


def test_numbers_and_durations_have_the_marks_of_the_language() -> None:
    waits = Reason(ReasonCode.RETRY_SCHEDULED, attempt=1, of=None, status_code=None, cause="x", delay=4.5, next_at=None)
    many = Reason(ReasonCode.LETTER_IDS_TOO_MANY, count=5000, most=1000)
    assert "waiting 4.5 s" in render(waits)
    assert "oczekiwanie 4,5 s" in render(waits, POLISH)
    assert render(many).startswith("5,000 ids")
    assert "to 5\u202f000" in render(many, POLISH)
