"""What an app registers, told to processes that do not have its code."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

from redrive.app.workflow import Workflow
from redrive.chores import WorkflowSchedule
from redrive.clock import MICROS
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_handlers import encode_event
from redrive.core.failure_reason import FailureReason, LetterCode
from redrive.core.outcomes import RunView
from redrive.core.payload import Signature
from redrive.core.run_options import FailureHandler, OnFailure, RunOptions
from redrive.core.schedule import Schedule
from redrive.errors import PayloadError, RedriveError, RegistrationError
from redrive.reasons import Reason, ReasonCode
from redrive.store.workers import Catalogue, CatalogueItem
from redrive.worker.definitions import Step

if TYPE_CHECKING:
    from redrive.app.app import Redrive

# -- The version of the user's code: a hash over the syntax trees of all registered functions ------------


def hash_functions(functions: Iterable[tuple[str, Callable[..., Any]]]) -> str:
    """Twelve hex digits that change when the code of a function does, but not with its comments or layout."""
    digest = hashlib.sha256()
    for name, fn in sorted(functions, key=lambda item: item[0]):
        digest.update(f"{name}\0{_code_text(fn)}\0".encode())
    return digest.hexdigest()[:12]


def _code_text(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not inspect.isroutine(fn):
        fn = type(fn).__call__  # an object that can be called
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(fn))))
    except (OSError, TypeError, SyntaxError):  # no source at hand, as in a console
        return _constant_text(getattr(fn, "__code__", None))


def _constant_text(value: Any) -> str:
    """A constant of compiled code as text that is the same in every process.

    The text of a code object names its address, that of a set depends on the process's hash seed.
    """
    match value:
        case CodeType():
            return f"{value.co_code.hex()}{_constant_text(value.co_consts)}{value.co_names!r}"
        case tuple():
            return f"({','.join(map(_constant_text, value))})"
        case frozenset():
            return f"{{{','.join(sorted(map(_constant_text, value)))}}}"
        case _:
            return repr(value)


# -- What an app registers, told to processes that do not have its code ----------------------------------


_Workflows = Mapping[str, Workflow[Any, Any, Any]]
_Steps = Mapping[str, Step[Any, Any]]


def compute_version(workflows: _Workflows, steps: _Steps) -> str:
    """The version of registered code, made from all of it."""
    functions = [(f"workflow {name}", w.fn) for name, w in workflows.items()]
    functions += [(f"step {name}{_action_text(s)}", s.fn) for name, s in steps.items()]
    return hash_functions(functions)


def _action_text(step: Step[Any, Any]) -> str:
    """What a declared action says, which is its code."""
    return "" if step.action is None else f" {json.dumps(step.action.to_json(), sort_keys=True)}"


def make_catalogue(version: str, workflows: _Workflows, steps: _Steps) -> Catalogue:
    """Everything that is registered, with its options and schemas."""
    return Catalogue(
        version=version,
        workflows=tuple(_make_item(name, w.catalogue_text, w.signature) for name, w in workflows.items()),
        steps=tuple(_make_item(name, s.options_text, s.signature) for name, s in steps.items()),
    )


def _make_item(name: str, options: str, signature: Signature) -> CatalogueItem:
    schema_in, schema_out = signature.schemas()
    return CatalogueItem(name=name, options=options, schema_in=schema_in, schema_out=schema_out)


# -- The schedules of an app: what its workflows declare, checked, and the runs that come of it ----------


def read_schedules(what: str, given: Any) -> tuple[Schedule, ...]:
    """The schedules that a workflow was registered with; whatever is none is refused."""
    schedules = (given,) if isinstance(given, Schedule) else () if given is None else given
    if not isinstance(schedules, Sequence) or not all(isinstance(each, Schedule) for each in schedules):
        raise RegistrationError(
            f"schedule of {what} is {given!r:.80}; give a Schedule, as in "
            'Schedule("0 6 * * MON-FRI", timezone="Europe/Warsaw"), or a list of them'
        )
    known: set[tuple[str, str]] = set()
    for each in schedules:
        if (each.tenant, each.name) in known:
            raise RegistrationError(
                f"{what} has two schedules called {each.name!r} for tenant {each.tenant!r}; give each a name="
            )
        known.add((each.tenant, each.name))
    return tuple(schedules)


def collect_schedules(app: Redrive) -> list[WorkflowSchedule]:
    """Every schedule of the app, with the way to its runs."""
    return [
        WorkflowSchedule(workflow=name, schedule=schedule, run=partial(workflow.scheduled, schedule))
        for name, workflow in app.registered_workflows.items()
        for schedule in workflow.schedules
    ]


def check_schedule_inputs(app: Redrive, now: int) -> None:
    """Refuse schedules whose input does not fit their workflow, before one of them is due.

    A function that makes the input is tried with the next fire time.
    """
    for each in collect_schedules(app):
        _check_schedule_input(app, each, each.schedule.cron.next(now) or now)


def _check_schedule_input(app: Redrive, each: WorkflowSchedule, at: int) -> None:
    try:
        app.find(each.workflow).input_text((), each.schedule.input_at(at))
    except PayloadError as error:
        raise RegistrationError(f"the input of {each} does not fit: {error}") from None
    except RedriveError as error:
        raise RegistrationError(f"{each}: {error}") from None
    except Exception as error:
        raise RegistrationError(f"{each}: its input= raised {error!r} for the next fire time") from error


# -- Which workflows are told of failures: each workflow's own handler, and the one for all --------------


class FailureHandlers:
    """The failure handlers of an app, by name: they may be registered after the workflows they handle."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._own: dict[str, str] = {}
        self._for_all: str | None = None

    def note(self, workflow: str, handler: Any) -> None:
        """Remember the handler that a workflow was registered with, if it was."""
        if handler is not None:
            self._own[workflow] = self._handler_name(handler, f"on_failure of workflow {workflow!r}")

    def set_for_all(self, handler: Workflow[Any, Any, Any]) -> None:
        """Remember the handler of all failures; there is one."""
        name = self._handler_name(handler, "@app.on_failure")
        if self._for_all is not None:
            raise RegistrationError(
                f"@app.on_failure is workflow {self._for_all!r} already, so {name!r} cannot be it as well; "
                "let one workflow do both, or give on_failure= to the workflows that need the other"
            )
        self._for_all = name

    def _handler_name(self, handler: Any, what: str) -> str:
        if isinstance(handler, str) and handler:
            return handler
        for name, workflow in self._app.registered_workflows.items():
            if workflow is handler:
                return name
        raise RegistrationError(f"{what} is {handler!r:.80}; give a workflow of the same app, or the name of one")

    def of(self, workflow: str) -> OnFailure | None:
        """What a failure of this workflow starts; the same workflow is not started twice."""
        names = dict.fromkeys(name for name in (self._own.get(workflow), self._for_all) if name is not None)
        if not names:
            return None
        settings = self._app.settings
        handlers = tuple(self._make_handler(workflow, name) for name in names)
        return OnFailure(handlers=handlers, limit=settings.max_payload, base_url=settings.base_url)

    def check(self) -> None:
        """Refuse handlers that do not exist or cannot take the event, before anything depends on them."""
        for name in self._app.registered_workflows:
            self.of(name)
        handling = {*self._own.values(), *([] if self._for_all is None else [self._for_all])}
        for name in sorted(handling):
            _check_handler_input(self._app.registered_workflows[name])

    def _make_handler(self, workflow: str, name: str) -> FailureHandler:
        found = self._app.registered_workflows.get(name)
        if found is None:
            known = ", ".join(sorted(self._app.registered_workflows))
            raise RegistrationError(
                f"on_failure of workflow {workflow!r} is {name!r}, which is not registered; there are: {known}"
            )
        return FailureHandler(
            workflow=name,
            parameter=_event_parameter(found),
            options=found.own_options.to_json(),
            timeout=None if found.timeout is None else int(found.timeout * MICROS),
        )


def _event_parameter(handler: Workflow[Any, Any, Any]) -> str:
    names = handler.signature.parameters
    if not names:
        raise RegistrationError(
            f"workflow {handler.name!r} handles failures, so it must take one parameter: "
            f"async def {handler.name}(event: FailureEvent)"
        )
    return names[0]


def _check_handler_input(handler: Workflow[Any, Any, Any]) -> None:
    """An event that says as little as one can must be accepted, or the first failure would find out."""
    failure = Failure.of(Category.UNKNOWN, "a sample")
    ending = FailureReason(
        failure=failure, code=LetterCode.NON_RETRYABLE, reason=Reason(ReasonCode.TEXT, text="a sample")
    )
    run = RunView(id=0, public_id="0", tenant="t", workflow="w", fence=0, input="{}", options=RunOptions())
    event = encode_event(run, ending, OnFailure(handlers=(), limit=1 << 20), 0)
    parameter = _event_parameter(handler)
    try:
        handler.signature.decode(f'{{"{parameter}":{event}}}')
    except PayloadError as error:
        raise RegistrationError(
            f"workflow {handler.name!r} handles failures, but a FailureEvent does not fit it: {error}. "
            f"Annotate {parameter!r} with FailureEvent, and give other parameters defaults"
        ) from None
