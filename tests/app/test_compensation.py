"""Registration of compensations: their signatures and options, and the errors for invalid ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from redrive import Redrive, RetryPolicy
from redrive.actions import ApiCall, Manual, Notify, Sql
from redrive.errors import ConfigurationError, RegistrationError
from redrive.testing import engine


@dataclass
class Order:
    id: str
    lines: list[str]


@dataclass
class Receipt:
    id: str
    amount: int


def new_app(**settings: Any) -> Redrive:
    return Redrive("sqlite:///:memory:", **settings)


def charging(app: Redrive) -> Any:
    @app.step
    async def charge(order: Order) -> Receipt:
        return Receipt("r", 1)

    return charge


def refuses(words: str, act: Callable[[], object]) -> None:
    with pytest.raises(RegistrationError, match=re.escape(words)):
        act()


def test_a_compensation_is_a_separate_step_with_separate_options() -> None:
    app = new_app()
    charge = charging(app)
    policy = RetryPolicy(max_retries=9)

    @charge.compensate(uncertain=True, retry=policy, timeout="5m", name="give_back")
    async def refund(order: Order, result: Receipt | None) -> None: ...

    assert app.registered_steps["give_back"] is refund
    assert (refund.options.retry, refund.options.timeout) == (policy, 300)
    assert charge.options.undo == "give_back"
    told = {item.name: json.loads(item.options) for item in app.catalogue().steps}
    assert told["charge"]["undo"] == "give_back"
    assert "undo" not in told["give_back"]


async def test_outside_a_run_a_compensation_is_the_plain_function() -> None:
    app = new_app()

    @charging(app).compensate
    async def refund(order: Order, result: Receipt) -> str:
        return f"{order.id} {result.id}"

    assert await refund(Order("o", []), Receipt("r", 1)) == "o r"


def test_the_snapshot_of_a_plain_step_has_no_saga_fields() -> None:
    """Most steps have no compensation, so their snapshots stay short."""
    options = json.loads(charging(new_app()).options_text)
    assert options.keys() == {"retry", "timeout", "heartbeat_timeout", "at_most_once", "transactional", "effect"}


async def takes_nothing() -> None: ...
async def takes_result(result: Receipt) -> None: ...
async def takes_them_the_other_way_round(result: Receipt, order: Order) -> None: ...
async def takes_more(order: Order, result: Receipt, why: str) -> None: ...
async def calls_it_otherwise(o: Order, result: Receipt) -> None: ...


@pytest.mark.parametrize(
    "wrong", [takes_nothing, takes_result, takes_them_the_other_way_round, takes_more, calls_it_otherwise]
)
def test_a_wrong_signature_is_refused_with_the_expected_one(wrong: Any) -> None:
    app = new_app()
    charge = charging(app)
    name = wrong.__name__
    refuses(f"so it must be {name}(order, result)", lambda: charge.compensate(wrong))
    assert charge.undo is None
    assert name not in app.registered_steps


def test_the_arguments_of_a_transactional_step_come_without_the_transaction() -> None:
    app = new_app()

    @app.step(transactional=True)
    async def debit(tx: Any, account: str) -> int:
        return 1

    @debit.compensate
    async def credit(account: str, result: int) -> None: ...

    assert debit.options.undo == "credit"


def test_a_step_has_one_compensation() -> None:
    app = new_app()
    charge = charging(app)

    async def refund(order: Order, result: Receipt) -> None: ...

    async def again(order: Order, result: Receipt) -> None: ...

    refuses("compensate has no option circuit", lambda: charge.compensate(circuit=None))
    charge.compensate(refund)
    refuses("is undone by 'refund' already", lambda: charge.compensate(again))
    refuses("nothing undoes it", lambda: app.registered_steps["refund"].compensate(again))
    refuses(
        "give only one of them", lambda: app.step(name="x", compensate=again, confirm=again, cancel=again)(charge.fn)
    )
    refuses("confirm= and cancel= go together", lambda: app.step(name="x", confirm=again)(charge.fn))


@pytest.mark.parametrize("wrong", ["refund", 5, Order])
def test_a_compensation_must_be_a_function_or_an_action(wrong: Any) -> None:
    charge = charging(new_app())
    refuses("give a function or a declared action (ApiCall, Sql, Notify, Manual)", lambda: charge.compensate(wrong))


def test_wrong_options_are_refused() -> None:
    app = new_app()
    charge = charging(app)

    async def refund(order: Order, result: Receipt) -> None: ...

    refuses("give True or False", lambda: charge.compensate(uncertain="yes")(refund))
    refuses("takes a RetryPolicy", lambda: charge.compensate(retry=3)(refund))
    refuses("longer than 0", lambda: charge.compensate(timeout=0)(refund))
    refuses("give True or False", lambda: app.step(pivot="yes")(refund))
    refuses("give True or False", lambda: app.workflow(rollback="yes")(refund))


def test_a_step_parameter_called_result_is_refused() -> None:
    app = new_app()

    @app.step
    async def grade(result: int) -> int:
        return result

    refuses("has a parameter called 'result'", lambda: app.step(name="x", compensate=Manual("x"))(grade.fn))


def test_an_uncertain_compensation_must_accept_a_missing_result() -> None:
    charge = charging(new_app())

    async def refund(order: Order, result: Receipt) -> None: ...

    refuses("annotate the result as optional", lambda: charge.compensate(uncertain=True)(refund))


async def test_types_that_are_defined_later_are_checked_when_the_app_opens() -> None:
    app = new_app()

    @app.step(compensate=Notify("ops", "{{result.nothing}}"))
    async def charge(order: Order) -> Later:  # noqa: F821
        raise NotImplementedError

    @app.workflow
    async def pay(order: Order) -> None: ...

    globals()["Later"] = Receipt
    try:
        with pytest.raises(RegistrationError, match="result has no field 'nothing'; it has: id, amount"):
            async with engine(app):
                pass
    finally:
        del globals()["Later"]


# -- declared actions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{result.iban}}", "result has no field 'iban'; it has: id, amount"),
        ("{{input.customer}}", "input has no field 'customer'; it has: order"),
        ("{{input.order.price}}", "input has no field 'price'; it has: id, lines"),
        ("{{result.id.first}}", "result has no field 'first' there, but a single value"),
        ("{{input.order.lines.first}}", "input has a list there, with indexes and no field 'first'"),
        ("{{step.secret}}", "step has no field 'secret'"),
    ],
)
def test_a_template_that_names_a_missing_field_is_refused(template: str, why: str) -> None:
    app = new_app()
    body = {"charge": [template]}

    async def charge(order: Order) -> Receipt: ...  # type: ignore[empty-body]

    refuses(why, lambda: app.step(compensate=ApiCall("https://bank.example/refunds", body=body))(charge))
    assert app.registered_steps == {}


@pytest.mark.parametrize(
    "template",
    [
        "{{result.id}} {{result.amount}} {{input.order.id}} {{input.order.lines.0}} {{result}}",
        "{{step.name}} {{step.idempotency_key}} {{step.run_id}} {{step.tenant}} {{step.correlation_id}}",
    ],
)
def test_a_template_that_names_existing_fields_is_accepted(template: str) -> None:
    app = new_app()

    async def charge(order: Order) -> Receipt: ...  # type: ignore[empty-body]

    step = app.step(compensate=Notify("ops", template))(charge)
    assert step.options.undo == "charge.undo"
    assert app.registered_steps["charge.undo"].options.action == "notify"


def test_an_untyped_parameter_allows_every_field() -> None:
    app = new_app()

    @app.step(compensate=Notify("ops", "{{result.a.b}} {{input.order.c.0}}"))
    async def charge(order: dict[str, Any]) -> Any: ...

    assert charge.options.undo == "charge.undo"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/refund",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://[::1]:80/",
        "http://[::ffff:10.0.0.1]/",
        "http://169.254.169.254/latest",
        "https://10.0.0.5/",
    ],
)
def test_a_call_to_a_private_address_in_any_spelling_is_refused(url: str) -> None:
    charge = charging(new_app())
    refuses("ApiCall of step 'charge':", lambda: new_app().step(compensate=ApiCall(url))(charge.fn))


def test_an_allowed_host_may_be_called() -> None:
    app = new_app(allow_hosts="127.0.0.1:8080")

    @app.step(compensate=ApiCall("http://127.0.0.1:8080/refund"))
    async def charge(order: Order) -> Receipt: ...  # type: ignore[empty-body]

    assert charge.options.undo == "charge.undo"


def test_a_statement_names_a_connection_that_is_registered() -> None:
    app = new_app()
    undo = Sql("books", "DELETE FROM entries WHERE id = ?", ["{{result.id}}"])

    async def charge(order: Order) -> Receipt: ...  # type: ignore[empty-body]

    refuses("Register it first: app.connection('books', url)", lambda: app.step(compensate=undo)(charge))
    app.connection("books", "sqlite:///books.db")
    assert app.step(compensate=undo)(charge).options.undo == "charge.undo"


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "sqlite:///", "books.db", None])
def test_a_connection_needs_a_url_that_we_can_open_and_an_error_does_not_show_it(url: Any) -> None:
    with pytest.raises(ConfigurationError, match="must begin with postgresql:// or sqlite:///") as caught:
        new_app().connection("books", url)
    assert "secret" not in str(caught.value)


def test_a_connection_name_is_registered_once() -> None:
    app = new_app()
    app.connection("books", "sqlite:///books.db")
    with pytest.raises(ConfigurationError, match="registered already"):
        app.connection("books", "sqlite:///other.db")
    with pytest.raises(ConfigurationError, match="cannot name a connection"):
        app.connection("", "sqlite:///other.db")


def test_a_changed_action_text_changes_the_code_version() -> None:
    def version(text: str) -> str:
        app = new_app()

        @app.step(compensate=Manual(text))
        async def charge(order: Order) -> None: ...

        return app.version

    assert version("a") == version("a") != version("b")


def test_runs_record_that_their_code_reserves_something() -> None:
    app = new_app()

    @app.workflow(rollback=True)
    async def travel() -> None: ...

    assert json.loads(travel.options_text)["rollback"] is True
    assert "reserves" not in json.loads(travel.options_text)

    async def end(order: Order, result: Receipt) -> None: ...

    app.step(confirm=end, cancel=Manual("x"))(charging(new_app()).fn)
    assert json.loads(travel.options_text)["reserves"] is True
