"""Registration of workflows and steps: stored options, refused options, and the version of the code."""

from __future__ import annotations

import functools
import inspect
import json
import linecache
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import Circuit, Redrive, RetryPolicy, Rule, Start
from redrive.app.declarations import hash_functions
from redrive.core.new_run import START_OPTIONS
from redrive.core.run_options import RunOptions, StepOptions
from redrive.errors import ConfigurationError, Conflict, InputError, RegistrationError, UnknownWorkflow
from redrive.policy import Category

Decorator = Callable[..., Any]


@pytest.fixture
def app() -> Redrive:
    return Redrive("sqlite:///:memory:")


async def charge(order: int) -> str:
    return f"receipt {order}"


def ship(order: int) -> str:
    return f"parcel {order}"


async def debit(tx: Any, account: str, amount: int) -> int:
    return amount


class Socket:
    """A type without a JSON form."""


class Callable_:
    def __call__(self, order: int) -> int:
        return order


# -- stored options ----------------------------------------------------------------------------------------


def test_a_function_is_registered_under_its_own_name_or_the_one_given(app: Redrive) -> None:
    assert app.step(charge).name == "charge"
    assert app.step(name="bill")(charge).name == "bill"
    assert app.workflow(charge).name == "charge"
    assert app.workflow(name="bill")(charge).name == "bill"
    assert list(app.registered_steps) == list(app.registered_workflows) == ["charge", "bill"]


def test_a_decorator_may_be_written_with_empty_parentheses(app: Redrive) -> None:
    assert app.step()(charge).name == "charge"
    assert app.workflow()(charge).name == "charge"


def test_options_are_kept_when_the_function_is_given_beside_them(app: Redrive) -> None:
    step: Any = app.step
    assert step(charge, name="bill", timeout=5).options.timeout == 5.0
    workflow: Any = app.workflow
    assert workflow(charge, name="bill").name == "bill"


def test_a_step_keeps_its_options(app: Redrive) -> None:
    retry = RetryPolicy(max_retries=5)
    step = app.step(retry=retry, timeout="30s", heartbeat_timeout=timedelta(seconds=5), effect="charges the card")(
        charge
    )
    assert step.options == StepOptions(retry=retry, timeout=30.0, heartbeat_timeout=5.0, effect="charges the card")
    assert StepOptions.from_json(step.options_text) == step.options
    assert app.step(at_most_once=True)(ship).options == StepOptions(at_most_once=True)
    assert app.step(transactional=True)(debit).options == StepOptions(transactional=True)


def test_a_step_without_options_has_the_documented_defaults(app: Redrive) -> None:
    assert app.step(charge).options == StepOptions(timeout=600.0)


def test_a_workflow_keeps_its_options_for_the_runs_it_starts() -> None:
    app = Redrive("sqlite:///:memory:", dlq_retention="2d")
    retry = RetryPolicy(max_retries=5)
    workflow = app.workflow(retry=retry, timeout="7d", dead_letter=False, max_crashes=1)(charge)
    assert workflow.timeout == 7 * 86_400.0
    assert RunOptions.from_json(workflow.options_text) == RunOptions(
        retry=retry, dead_letter=False, max_crashes=1, letter_keeps=2 * 86_400 * 1_000_000
    )
    assert app.workflow(ship).timeout is None


def test_the_plain_function_its_name_and_docstring_stay_accessible(app: Redrive) -> None:
    def documented(order: int) -> int:
        """Says what it does."""
        return order

    for registered in (app.step(documented), app.workflow(documented)):
        assert registered.fn is documented
        assert registered.__doc__ == "Says what it does."
        assert registered.__name__ == "documented"
    assert repr(app.registered_steps["documented"]) == "<step documented>"
    assert repr(app.registered_workflows["documented"]) == "<workflow documented>"


async def test_outside_a_run_steps_and_workflows_are_plain_functions(app: Redrive) -> None:
    bill, send = app.step(charge), app.step(ship)

    @app.workflow
    async def fulfil(order: int) -> list[str]:
        return [await bill(order), await send(order)]  # a `def` step is awaited in workflow code

    @app.workflow
    def plainly(order: int) -> str:
        return send(order)  # type: ignore[no-any-return]

    assert await bill(1) == "receipt 1"
    assert send(1) == "parcel 1"
    assert await fulfil(2) == ["receipt 2", "parcel 2"]
    assert plainly(3) == "parcel 3"


def test_a_partial_function_is_registered_by_a_given_name(app: Redrive) -> None:
    step = app.step(name="first")(functools.partial(charge, order=1))
    assert step.name == "first"
    assert step.is_async


def test_the_catalogue_lists_workflows_for_processes_without_the_code(app: Redrive) -> None:
    app.step(effect="charges the card")(charge)
    app.workflow(timeout="1h")(ship)
    catalogue = app.catalogue()
    assert catalogue.version == app.version
    (workflow,), (step,) = catalogue.workflows, catalogue.steps
    assert (workflow.name, step.name) == ("ship", "charge")
    assert json.loads(step.options)["effect"] == "charges the card"
    assert json.loads(step.schema_in)["properties"]["order"]["type"] == "integer"
    assert json.loads(step.schema_out)["type"] == "string"


def test_a_workflow_is_found_by_its_name(app: Redrive) -> None:
    with pytest.raises(UnknownWorkflow, match="no workflow is called 'ship': registered are none"):
        app.find("ship")
    workflow = app.workflow(ship)
    app.workflow(charge)
    assert app.find("ship") is workflow
    with pytest.raises(UnknownWorkflow, match="no workflow is called 'refund': registered are charge, ship"):
        app.find("refund")
    with pytest.raises(UnknownWorkflow):
        app.handle("some-run", "refund")
    assert app.handle("some-run", "ship").id == app.handle("some-run").id == "some-run"


# -- refused options ---------------------------------------------------------------------------------------


@pytest.fixture(params=["step", "workflow"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def registered(app: Redrive) -> list[str]:
    return [*app.registered_steps, *app.registered_workflows]


def refuses(app: Redrive, words: str, register: Callable[[], object]) -> None:
    """Assert that the registration fails with this message and registers nothing."""
    before = registered(app)
    with pytest.raises(RegistrationError, match=re.escape(words)):
        register()
    assert registered(app) == before


def test_a_name_is_given_once(app: Redrive, kind: str) -> None:
    register: Decorator = getattr(app, kind)
    register(charge)

    def other() -> None: ...

    refuses(
        app,
        f"two functions are registered as {kind} 'charge' (charge and {other.__qualname__}); "
        "give one of them another name=",
        lambda: register(name="charge")(other),
    )


def test_a_partial_function_with_a_taken_name_is_described_in_the_error(app: Redrive, kind: str) -> None:
    register: Decorator = getattr(app, kind)
    register(charge)
    partial = functools.partial(charge, order=1)
    refuses(app, f"(charge and {partial!r})", lambda: register(name="charge")(partial))


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "a#1", "a\x00b", "a\nb", "a\rb", "a\tb", "a\u2028b", "a\ud800b", "x" * 201, 5, b"charge"],
    ids=repr,
)
def test_a_name_has_to_fit_into_keys_stores_and_logs(app: Redrive, kind: str, name: Any) -> None:
    words = f"{name!r} cannot name a {kind}: use a text of 1 to 200 printable characters, but not / or #"
    refuses(app, words, lambda: getattr(app, kind)(name=name)(charge))


@pytest.mark.parametrize("name", ["a b", "Überweisung", "支払い", "pay:card@eu", "<lambda>", "x" * 200])
def test_names_may_be_in_any_language(app: Redrive, kind: str, name: str) -> None:
    assert getattr(app, kind)(name=name)(charge).name == name


def test_reserved_names_are_refused(app: Redrive, kind: str) -> None:
    refuses(
        app,
        f"{kind} 'redrive.sleep': names that begin with 'redrive.' are reserved for the engine",
        lambda: getattr(app, kind)(name="redrive.sleep")(charge),
    )


@pytest.mark.parametrize("value", ["charge", 5, dict, Callable_], ids=repr)
def test_only_functions_are_decorated(app: Redrive, kind: str, value: Any) -> None:
    words = f"@app.{kind} decorates a function, not {value!r}; options have names, as in @app.{kind}(name=...)"
    refuses(app, words, lambda: getattr(app, kind)(value))
    refuses(app, words, lambda: getattr(app, kind)(name="x")(value))


@pytest.mark.parametrize("value", [functools.partial(charge, 1), Callable_()], ids=["partial", "object"])
def test_a_callable_without_a_name_needs_an_explicit_name(app: Redrive, kind: str, value: Any) -> None:
    words = f"{value!r} has no __name__; give it a name with @app.{kind}(name=...)"
    refuses(app, words, lambda: getattr(app, kind)(value))


@pytest.mark.parametrize("first", ["step", "workflow"])
def test_a_registered_function_is_not_registered_again(app: Redrive, kind: str, first: str) -> None:
    done = getattr(app, first)(charge)
    words = f"@app.{kind} decorates a plain function, and <{first} charge> is registered already"
    refuses(app, words, lambda: getattr(app, kind)(name="again")(done))


def test_an_option_that_does_not_exist_is_refused_with_those_that_do(app: Redrive) -> None:
    step: Any = app.step
    workflow: Any = app.workflow
    refuses(
        app,
        "@app.step has no option retries, wait; it has name, retry, timeout, heartbeat_timeout, "
        "circuit, at_most_once, transactional, effect",
        lambda: step(retries=5, wait=1),
    )
    refuses(
        app,
        "@app.workflow has no option at_most_once; it has name, retry, timeout, step_timeout, heartbeat_timeout, "
        "rollback, dead_letter, max_crashes",
        lambda: workflow(at_most_once=True),
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry": 5}, "retry of step 'charge' takes a RetryPolicy, not int"),
        ({"retry": {"max_retries": 5}}, "retry of step 'charge' takes a RetryPolicy, not dict"),
        ({"timeout": 0}, "timeout of step 'charge' is 0; give a duration longer than 0"),
        ({"heartbeat_timeout": "0s"}, "heartbeat_timeout of step 'charge' is '0s'; give a duration longer"),
        ({"at_most_once": 1}, "at_most_once of step 'charge' is 1; give True or False"),
        ({"transactional": "yes"}, "transactional of step 'charge' is 'yes'; give True or False"),
        ({"effect": 5}, "effect of step 'charge' is 5; give a few words, or leave it out"),
        ({"circuit": "payments"}, "circuit of step 'charge' takes a Circuit, not str; write circuit=Circuit("),
        (
            {"at_most_once": True, "retry": RetryPolicy()},
            "step 'charge' runs at most once, so it cannot have retry=; remove one of them",
        ),
        (
            {"at_most_once": True, "transactional": True},
            "step 'charge': a transactional step takes effect exactly once, at_most_once adds nothing",
        ),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_a_step_with_wrong_options_is_refused(app: Redrive, options: dict[str, Any], words: str) -> None:
    refuses(app, words, lambda: app.step(**options)(charge))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retry": 5}, "retry of workflow 'charge' takes a RetryPolicy, not int"),
        ({"timeout": timedelta(0)}, "timeout of workflow 'charge' is datetime.timedelta(0); give a duration"),
        ({"dead_letter": None}, "dead_letter of workflow 'charge' is None; give True or False"),
        ({"max_crashes": 0}, "max_crashes of workflow 'charge' is 0; give a whole number from 1 on"),
        ({"max_crashes": "3"}, "max_crashes of workflow 'charge' is '3'; give a whole number from 1 on"),
        ({"max_crashes": 1.5}, "max_crashes of workflow 'charge' is 1.5; give a whole number from 1 on"),
        ({"step_timeout": 0}, "step_timeout of workflow 'charge' is 0; give a duration longer than 0"),
        ({"heartbeat_timeout": "0s"}, "heartbeat_timeout of workflow 'charge' is '0s'; give a duration longer than 0"),
        ({"failure_queue": ""}, "failure_queue of workflow 'charge'"),
        ({"retention_runs": -1}, "retention_runs of workflow 'charge' is -1; give a whole number from 0 on"),
        ({"max_crashes": True}, "max_crashes of workflow 'charge' is True; give a whole number from 1 on"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_a_workflow_with_wrong_options_is_refused(app: Redrive, options: dict[str, Any], words: str) -> None:
    refuses(app, words, lambda: app.workflow(**options)(charge))


@pytest.mark.parametrize("value", ["soon", -1, True, [5]])
@pytest.mark.parametrize("option", ["timeout", "heartbeat_timeout"])
def test_an_invalid_time_limit_is_refused_by_name(app: Redrive, option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{option} of step 'charge' is "):
        app.step(**{option: value})(charge)
    assert registered(app) == []


@pytest.mark.parametrize("name", sorted(START_OPTIONS))
def test_a_workflow_has_no_parameter_named_like_an_option_of_start(app: Redrive, name: str) -> None:
    exec(f"async def shipping({name}: str) -> None: ...", scope := dict[str, Any]())
    words = f"shipping(): parameter {name!r} has the name of an option of start(). Rename the parameter"
    refuses(app, words, lambda: app.workflow(scope["shipping"]))
    assert app.step(scope["shipping"]).name == "shipping"  # a step is not started, only called


def test_the_options_of_start_are_the_promised_ones() -> None:
    assert {
        "tenant",
        "idempotency_key",
        "delay",
        "deadline",
        "priority",
        "queue",
        "correlation_id",
        "retry",
        "timeout",
        "step_timeout",
        "heartbeat_timeout",
        "on_failure",
        "failure_queue",
        "on_parent_end",
        "started_by",
    } == START_OPTIONS


def test_parameters_that_an_input_object_cannot_hold_are_refused(app: Redrive, kind: str) -> None:
    def many(*orders: int) -> None: ...
    def named(**orders: int) -> None: ...

    refuses(app, "many(): parameter '*orders' cannot be stored", lambda: getattr(app, kind)(many))
    refuses(app, "named(): parameter '**orders' cannot be stored", lambda: getattr(app, kind)(named))


def test_types_that_cannot_be_stored_are_refused(app: Redrive, kind: str) -> None:
    def listen(on: Socket) -> None: ...
    def opened() -> Socket: ...  # type: ignore[empty-body]

    refuses(app, "listen(): parameter 'on' cannot be stored as JSON", lambda: getattr(app, kind)(listen))
    refuses(app, "opened(): the result cannot be stored as JSON", lambda: getattr(app, kind)(opened))


def test_types_defined_beside_a_function_are_found(app: Redrive, kind: str) -> None:
    @dataclass
    class Order:
        number: int

    @getattr(app, kind)  # type: ignore[untyped-decorator]
    def pack(order: Order) -> None: ...

    assert getattr(app, kind)(name="again")(pack.fn).signature.encode((Order(3),), {}) == '{"order":{"number":3}}'
    assert pack.signature.decode('{"order":{"number":3}}') == ((Order(3),), {})


def test_a_transactional_step_is_async_and_takes_a_transaction_first(app: Redrive) -> None:
    async def alone() -> None: ...
    async def by_name(*, tx: Any) -> None: ...

    def blocking(tx: Any) -> None: ...

    register = app.step(transactional=True)
    must = "must take `tx` as its first parameter"
    refuses(app, f"step 'alone' is transactional and {must}", lambda: register(alone))
    refuses(app, f"step 'by_name' is transactional and {must}", lambda: register(by_name))
    refuses(app, "step 'blocking' is transactional and must be an `async def` function", lambda: register(blocking))
    assert json.loads(register(debit).signature.encode(("acme", 5), {})) == {"account": "acme", "amount": 5}


@pytest.mark.parametrize(
    "wrong", [[TimeoutError], ["timeout"], TimeoutError, 5, {"builtins.OSError": "network"}], ids=repr
)
def test_classification_rules_of_another_type_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^classify holds .*; give a list of Rule\(when, category\)"):
        Redrive(classify=wrong)


def test_classification_rules_are_kept_in_order() -> None:
    rules = [Rule(OSError, Category.NETWORK), Rule(KeyError, Category.NOT_FOUND)]
    assert Redrive(classify=rules).rules == tuple(rules)


async def test_an_operation_that_needs_an_open_app_says_how_to_open_it(app: Redrive) -> None:
    workflow = app.workflow(charge)
    words = r"the app is not open; use `async with app:` \(with a worker\) or `async with app.client\(\):`"
    with pytest.raises(ConfigurationError, match=words):
        await workflow.start(1)
    for name in ("runs", "dlq", "policies", "workflows"):
        with pytest.raises(ConfigurationError, match=words):
            getattr(app, name)


async def test_a_worker_without_workflows_is_refused(app: Redrive) -> None:
    app.step(charge)
    with pytest.raises(ConfigurationError, match="no workflow is registered"):
        async with app:
            pass


# -- what a start refuses, before anything is stored --------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tenant": ""}, "tenant must be a text of 1 to 255 characters, not ''"),
        ({"tenant": 5}, "tenant must be a text of 1 to 255 characters, not 5"),
        ({"tenant": "*"}, "'*' cannot be the name of a tenant: it stands for all tenants"),
        ({"queue": "x" * 256}, "queue must be a text of 1 to 255 characters"),
        ({"correlation_id": "a\x00b"}, "correlation_id contains a NUL or half a character"),
        ({"idempotency_key": "a\ud800b"}, "idempotency_key contains a NUL or half a character"),
        ({"priority": 1001}, "priority must be a whole number from -1000 to 1000, not 1001"),
        ({"priority": True}, "priority must be a whole number from -1000 to 1000, not True"),
        ({"deadline": datetime(2031, 5, 17)}, "deadline has no time zone"),  # noqa: DTZ001 (that is the point)
        ({"retry": 3}, "retry takes a RetryPolicy, not int"),
        ({"tennant": "acme"}, "start has no option tennant; it has correlation_id, deadline, delay, "),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
async def test_a_start_with_wrong_options_is_refused(app: Redrive, options: dict[str, Any], words: str) -> None:
    workflow = app.workflow(charge)
    async with app.client():
        with pytest.raises(InputError, match=re.escape(words)):
            await workflow.start_many([(1,), Start((2,), options=options)])
        assert (await app.runs.list()).items == []


@pytest.mark.parametrize("item", [5, [1], "abc"], ids=repr)
async def test_the_items_of_start_many_are_tuples_or_starts(app: Redrive, item: Any) -> None:
    workflow = app.workflow(charge)
    async with app.client():
        with pytest.raises(InputError, match=r"start_many takes tuples of arguments or Start\(...\), not "):
            await workflow.start_many([(1,), item])
        assert (await app.runs.list()).items == []


async def test_runs_that_start_in_several_commits_are_returned_in_order(a_postgres_url: str) -> None:
    app = Redrive(a_postgres_url)
    workflow = app.workflow(charge)
    items = [Start((number,), options={"idempotency_key": str(number)}) for number in range(2_300)]
    async with app.client():
        first = await workflow.start_many(items)
        again = await workflow.start_many(items)
        assert [handle.id for handle in again] == [handle.id for handle in first]
        assert [(await app.runs.get(first[number].id)).input for number in (0, 1_500, 2_299)] == [
            {"order": 0},
            {"order": 1_500},
            {"order": 2_299},
        ]
        with pytest.raises(Conflict):
            await workflow.start_many([*items[:1_500], Start((0,), options={"idempotency_key": "1500"})])


@pytest.mark.parametrize("option", ["delay", "deadline"])
async def test_a_start_at_an_invalid_time_is_refused(app: Redrive, option: str) -> None:
    workflow = app.workflow(charge)
    async with app.client():
        with pytest.raises(ConfigurationError, match=f"^{option} is 'soon', which is not a duration"):
            await workflow.start(1, **{option: "soon"})


async def test_a_deadline_is_kept_to_the_microsecond_even_at_the_maximum(app: Redrive) -> None:
    workflow = app.workflow(charge)
    async with app.client():
        for moment in (datetime.max.replace(tzinfo=UTC), datetime(2031, 5, 17, 14, 2, 11, 999_999, tzinfo=UTC)):
            run = await workflow.start(1, deadline=moment)
            assert (await app.runs.get(run.id)).deadline == moment


# -- the version of the code -------------------------------------------------------------------------------


def compiled(source: str, *, with_source: bool = True) -> Callable[..., Any]:
    """Return the function `f` of this source, as if from a file or as if typed into a console."""
    name = f"<test {abs(hash(source))} {with_source}>"
    if with_source:
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {}
    exec(compile(source, name, "exec"), scope)
    return scope["f"]  # type: ignore[no-any-return]


PLAIN = "def f(order):\n    return order + 1\n"


def version(source: str, *, with_source: bool = True) -> str:
    return hash_functions([("step f", compiled(source, with_source=with_source))])


def test_a_version_is_twelve_digits() -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", version(PLAIN))


@pytest.mark.parametrize(
    "same",
    [
        "def f(order):\n    # counts on\n    return order + 1\n",
        "def f( order ):\n\n        return (order +\n             1)\n",
        "\n\n\ndef f(order): return order + 1\n",
    ],
    ids=["comment", "layout", "place"],
)
def test_comments_and_layout_do_not_change_the_version(same: str) -> None:
    assert version(same) == version(PLAIN)
    assert version(same, with_source=False) == version(PLAIN, with_source=False)


@pytest.mark.parametrize(
    "other",
    [
        "def f(order):\n    return order + 2\n",
        "def f(order):\n    return order - 1\n",
        "def f(order):\n    return other + 1\n",
        "def f(order):\n    return [one + 1 for one in order]\n",
    ],
    ids=["constant", "operator", "name", "shape"],
)
def test_code_that_behaves_differently_has_another_version(other: str) -> None:
    assert version(other) != version(PLAIN)
    assert version(other, with_source=False) != version(PLAIN, with_source=False)


@pytest.mark.parametrize(
    "source", ["def f(order):\n    def g(): return {}\n    return g()\n", "def f(order): return order in {{7, {}}}\n"]
)
def test_a_change_inside_an_inner_function_or_a_set_is_seen_without_source_too(source: str) -> None:
    assert version(source.format(1), with_source=False) != version(source.format(2), with_source=False)


def test_the_version_covers_every_function_and_its_name_but_not_their_order() -> None:
    f, g = compiled(PLAIN), compiled(PLAIN.replace("1", "2"))
    both = hash_functions([("step f", f), ("step g", g)])
    assert both == hash_functions([("step g", g), ("step f", f)])
    assert both != hash_functions([("step f", g), ("step g", f)])
    assert both != hash_functions([("step f", f)])
    assert hash_functions([("step f", f)]) != hash_functions([("workflow f", f)])


CONSOLE = """
import sys
sys.path[:0] = {path!r}
from redrive.app.declarations import hash_functions

def f(order):
    if order.kind in {{"paid", "sent", "lost", "open", "held"}}:
        return [one for one in order.lines]
    return sorted(order, key=lambda line: line.price)

print(hash_functions([("step f", f)]))
"""


@pytest.mark.heavy
def test_a_function_without_source_has_the_same_version_in_every_process() -> None:
    """Addresses of objects and the order of sets differ from process to process; the version must not."""
    script = CONSOLE.format(path=[path for path in sys.path if path])
    versions = {
        subprocess.run(
            [sys.executable, "-"],
            input=script,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(versions) == 1


def test_a_partial_function_has_the_version_of_its_function() -> None:
    twice = functools.partial(functools.partial(compiled(PLAIN), 1), 2)
    assert hash_functions([("step f", twice)]) == version(PLAIN)


def test_an_object_that_can_be_called_has_the_version_of_its_code() -> None:
    class Other:
        def __call__(self, order: int) -> int:
            return order + 1

    assert hash_functions([("step f", Callable_())]) == hash_functions([("step f", Callable_())])
    assert hash_functions([("step f", Callable_())]) != hash_functions([("step f", Other())])


def test_a_function_that_is_not_written_in_python_has_a_version_too() -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", hash_functions([("step f", len)]))


def test_the_version_of_an_app_follows_what_is_registered(app: Redrive) -> None:
    versions = [app.version]
    app.step(charge)
    versions.append(app.version)
    app.workflow(ship)
    versions.append(app.version)
    assert len(set(versions)) == 3
    other = Redrive("sqlite:///:memory:")
    other.workflow(ship)
    other.step(charge)
    assert other.version == app.version


def test_an_explicit_version_does_not_depend_on_what_is_registered() -> None:
    app = Redrive("sqlite:///:memory:", version="2031.5")
    app.workflow(charge)
    assert app.version == app.catalogue().version == "2031.5"


def test_the_source_of_functions_in_this_file_can_be_read() -> None:
    """Without readable source the tests above would compare compiled code."""
    assert "return order + 1" in inspect.getsource(compiled(PLAIN))


# -- circuits ------------------------------------------------------------------------------------------


def test_two_definitions_of_one_circuit_that_differ_are_refused_naming_both() -> None:
    app = Redrive("sqlite:///:memory:")
    app.step(name="charge", circuit=Circuit("payments"))(lambda: None)
    app.step(name="refund", circuit=Circuit("payments", window="1m"))(lambda: None)  # the same, as it is
    with pytest.raises(ConfigurationError) as refused:
        app.step(name="capture", circuit=Circuit("payments", failures=7))(lambda: None)
    for words in ("circuit 'payments'", "step 'capture' has failures=7", "step 'charge' has failures=5"):
        assert words in str(refused.value)
    assert "capture" not in app.registered_steps


def test_circuits_without_a_name_may_differ() -> None:
    app = Redrive("sqlite:///:memory:")
    app.step(name="charge", circuit=Circuit())(lambda: None)
    app.step(name="refund", circuit=Circuit(failures=9))(lambda: None)
    assert len(app.registered_steps) == 2


def test_the_snapshot_contains_the_circuit() -> None:
    app = Redrive("sqlite:///:memory:")
    circuit = Circuit("payments", failures=2, on_open="fail")
    step = app.step(name="charge", circuit=circuit)(lambda: None)
    assert StepOptions.from_json(step.options_text).circuit == circuit
