"""Registration of failure handlers: by workflow or by name, in any order, with invalid handlers refused."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from redrive import FailureEvent, Redrive
from redrive.core.run_options import RunOptions
from redrive.errors import RegistrationError
from redrive.testing import engine


@pytest.fixture
def app() -> Redrive:
    return Redrive("sqlite:///:memory:")


async def page(event: FailureEvent) -> None: ...


async def work() -> None: ...


def handlers(app: Redrive, workflow: str) -> list[str]:
    """Return the names of the failure handlers in the options of a workflow's runs."""
    carried = RunOptions.from_json(app.find(workflow).options_text).on_failure
    return [] if carried is None else [handler.workflow for handler in carried.handlers]


def test_a_handler_is_given_as_workflow_or_name_in_any_order(app: Redrive) -> None:
    app.workflow(name="early", on_failure="page")(work)
    paged = app.workflow(page)
    app.workflow(name="late", on_failure=paged)(work)
    app.workflow(name="without")(work)
    assert [handlers(app, name) for name in ("early", "late", "without")] == [["page"], ["page"], []]


def test_the_global_handler_applies_to_workflows_registered_before_it(app: Redrive) -> None:
    app.workflow(name="own", on_failure="page")(work)
    app.workflow(page)
    assert handlers(app, "own") == ["page"]
    counted = app.on_failure(app.workflow(name="count")(page))
    assert handlers(app, "own") == ["page", "count"]
    assert handlers(app, "page") == handlers(app, "count") == ["count"]
    assert counted is app.find("count")


def test_a_plain_function_becomes_a_workflow(app: Redrive) -> None:
    @app.on_failure
    async def count(event: FailureEvent) -> None: ...

    assert count is app.find("count")
    assert handlers(app, "count") == ["count"]


def test_the_options_of_a_handler_contain_no_handlers(app: Redrive) -> None:
    app.on_failure(page)
    carried = RunOptions.from_json(app.find("page").options_text).on_failure
    assert carried is not None
    assert RunOptions.from_json(carried.handlers[0].options).on_failure is None


def test_only_one_global_handler_can_be_registered(app: Redrive) -> None:
    app.on_failure(page)
    with pytest.raises(RegistrationError, match="is already set to workflow 'page'"):
        app.on_failure(app.workflow(name="other")(page))


@pytest.mark.parametrize("handler", [1, "", page, object()])
def test_a_handler_of_another_type_is_refused(app: Redrive, handler: Any) -> None:
    with pytest.raises(RegistrationError, match="give a workflow of the same app, or the name of one"):
        app.workflow(on_failure=handler)(work)
    assert "work" not in app.registered_workflows


def test_a_workflow_of_another_app_is_refused(app: Redrive) -> None:
    foreign = Redrive("sqlite:///:memory:").workflow(page)
    with pytest.raises(RegistrationError, match="of the same app"):
        app.workflow(on_failure=foreign)(work)
    with pytest.raises(RegistrationError, match="of the same app"):
        app.on_failure(foreign)


async def test_an_unknown_handler_name_is_refused_when_the_app_opens(app: Redrive) -> None:
    app.workflow(on_failure="pgae")(work)
    app.workflow(page)
    with pytest.raises(RegistrationError, match=r"is 'pgae', which is not registered: use one of page, work"):
        async with engine(app):
            pass


async def _opened(app: Redrive, handler: Any) -> None:
    app.workflow(on_failure=app.workflow(name="handler")(handler))(work)
    async with engine(app):
        pass


async def test_any_function_that_takes_an_event_is_accepted(app: Redrive) -> None:
    class Some(TypedDict):
        run_id: str

    async def plain(event): ...  # type: ignore[no-untyped-def]

    async def loose(event: dict[str, Any], note: str = "") -> None: ...

    def threaded(failure: FailureEvent, /) -> None: ...

    for handler in (plain, loose, threaded):
        await _opened(Redrive("sqlite:///:memory:"), handler)


async def test_a_function_that_cannot_take_an_event_is_refused_when_the_app_opens() -> None:
    async def nothing() -> None: ...

    async def number(event: int) -> None: ...

    async def two(event: FailureEvent, more: int) -> None: ...

    for handler, problem in ((nothing, "must take one parameter"), (number, "does not fit"), (two, "does not fit")):
        with pytest.raises(RegistrationError, match=problem):
            await _opened(Redrive("sqlite:///:memory:"), handler)
