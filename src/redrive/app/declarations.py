"""The registered code of an app: its version, catalogue, events, schedules, circuits and failure handlers."""

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
from redrive.core.circuit import circuit_key
from redrive.core.failure_handlers import make_sample_event
from redrive.core.payload import Signature, signature_of_type
from redrive.core.run_options import FailureHandler, OnFailure
from redrive.core.schedule import Schedule
from redrive.core.waits_and_events import check_event_name
from redrive.errors import ConfigurationError, PayloadError, RedriveError, RegistrationError
from redrive.policy import Circuit
from redrive.record_fields import replace
from redrive.store.workers import Catalogue, CatalogueItem
from redrive.worker.definitions import Step

if TYPE_CHECKING:
    from redrive.app.app import Redrive

_Workflows = Mapping[str, Workflow[Any, Any, Any]]
_Steps = Mapping[str, Step[Any, Any]]


def compute_version(workflows: _Workflows, steps: _Steps) -> str:
    """Return the version of registered code: a hash of all functions, versions of workflows and declared actions."""
    functions = []
    for name, workflow in workflows.items():
        own = "" if workflow.definition.version is None else f" {workflow.definition.version}"
        functions.append((f"workflow {name}{own}", workflow.fn))
    for name, step in steps.items():
        # The declaration of an action is its code: the function around it is the same for all actions.
        action = "" if step.action is None else f" {json.dumps(step.action.to_json(), sort_keys=True)}"
        functions.append((f"step {name}{action}", step.fn))
    return hash_functions(functions)


def hash_functions(functions: Iterable[tuple[str, Callable[..., Any]]]) -> str:
    """Return twelve hex digits that change with the code of a function, but not with its comments or layout."""
    digest = hashlib.sha256()
    for name, fn in sorted(functions, key=lambda item: item[0]):
        while isinstance(fn, functools.partial):
            fn = fn.func
        if not inspect.isroutine(fn):
            fn = type(fn).__call__  # an object that can be called
        try:
            text = ast.dump(ast.parse(textwrap.dedent(inspect.getsource(fn))))
        except (OSError, TypeError, SyntaxError):  # code without a source file, as in a console
            text = _constant_text(getattr(fn, "__code__", None))
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()[:12]


def _constant_text(value: Any) -> str:
    """Return a constant of compiled code as text that is the same in every process.

    The repr of a code object contains its address. That of a set depends on the process's hash seed.
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


def make_catalogue(version: str, workflows: _Workflows, steps: _Steps, channels: Iterable[str]) -> Catalogue:
    """Return the options and schemas of everything registered, for processes without the code."""
    return Catalogue(
        version=version,
        workflows=tuple(_make_workflow_item(name, workflow) for name, workflow in workflows.items()),
        steps=tuple(_make_item(name, s.options_text, s.signature) for name, s in steps.items()),
        channels=tuple(CatalogueItem(name=name, options="{}", schema_in="{}", schema_out="{}") for name in channels),
    )


def _make_workflow_item(name: str, workflow: Workflow[Any, Any, Any]) -> CatalogueItem:
    item = _make_item(name, workflow.catalogue_text, workflow.signature, _describe_events(workflow))
    return replace(item, own=workflow.definition.version, pinned=workflow.definition.pinned)


def _make_item(name: str, options: str, signature: Signature, events: str | None = None) -> CatalogueItem:
    schema_in, schema_out = signature.get_schema_texts()
    return CatalogueItem(name=name, options=options, schema_in=schema_in, schema_out=schema_out, events=events)


def _describe_events(workflow: Workflow[Any, Any, Any]) -> str | None:
    """Return the schemas of the events that a workflow declares, by name; None if it declares none."""
    declared = workflow.definition.events
    if declared is None:
        return None
    return json.dumps({name: json.loads(each.get_schema_texts()[1]) for name, each in sorted(declared.items())})


def read_events(what: str, given: Any) -> Mapping[str, Signature] | None:
    """Return the types of the events that a workflow declares, by name."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        example = '{"approved": Approval}'
        raise RegistrationError(f"events of {what} is {given!r:.80}; give types by name, as in {example}")
    found: dict[str, Signature] = {}
    for name, kind in given.items():
        try:
            found[check_event_name(name)] = signature = signature_of_type(kind)
            signature.prepare()
        except Exception as error:
            raise RegistrationError(f"event {name!r:.80} of {what}: {error}") from None
    return found


def read_schedules(what: str, given: Any) -> tuple[Schedule, ...]:
    """Return the schedules of a workflow; refuse values of other types, and two of one name and tenant."""
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
    """Return every schedule of the app, with the function that makes its runs."""
    return [
        WorkflowSchedule(workflow=name, schedule=schedule, run=partial(workflow.build_scheduled_run, schedule))
        for name, workflow in app.registered_workflows.items()
        for schedule in workflow.schedules
    ]


def check_schedule_inputs(app: Redrive, now: int) -> None:
    """Refuse schedules whose input does not fit their workflow, before one of them is due.

    A function that makes the input is called with the next fire time.
    """
    for each in collect_schedules(app):
        try:
            inputs = each.schedule.input_at(each.schedule.cron.next(now) or now)
            app.find(each.workflow).encode_input((), inputs)
        except PayloadError as error:
            raise RegistrationError(
                f"the input of {each} is invalid: {error}; correct input= of the schedule"
            ) from None
        except RedriveError as error:
            raise RegistrationError(f"{each}: {error}") from None
        except Exception as error:
            raise RegistrationError(f"{each}: its input= raised {error!r} for the next fire time") from error


class FailureHandlers:
    """The failure handlers of an app, by name: a handler may be registered after the workflows it handles."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._own: dict[str, str] = {}
        self._queues: dict[str, str] = {}
        self._for_all: str | None = None

    def add(self, workflow: str, handler: Any, queue: str | None) -> None:
        """Record the handler that a workflow was registered with, if any, and the queue for its handlers."""
        if handler is not None:
            self._own[workflow] = self._handler_name(handler, f"on_failure of workflow {workflow!r}")
        if queue is not None:
            self._queues[workflow] = queue

    def set_for_all(self, handler: Workflow[Any, Any, Any]) -> None:
        """Record the handler of all failures; an app can have one."""
        name = self._handler_name(handler, "@app.on_failure")
        if self._for_all is not None:
            raise RegistrationError(
                f"@app.on_failure is already set to workflow {self._for_all!r}: call both from one workflow, or set "
                f"on_failure= on the workflows that need {name!r}"
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
        """Return the handlers that a failure of this workflow starts, each once."""
        names = dict.fromkeys(name for name in (self._own.get(workflow), self._for_all) if name is not None)
        if not names:
            return None
        handlers = tuple(self._make_handler(name, workflow) for name in names)
        return replace(self.template, handlers=handlers, queue=self._queues.get(workflow))

    def find(self, handler: Any, workflow: str) -> OnFailure:
        """Return the handler that a start of a workflow names, after it was checked."""
        name = self._handler_name(handler, f"on_failure of a start of workflow {workflow!r}")
        found = self._make_handler(name, workflow)
        _check_accepts_event(self._app.registered_workflows[name])
        return replace(self.template, handlers=(found,))

    @property
    def template(self) -> OnFailure:
        """The rules of this app for failure events, without a handler."""
        settings = self._app.settings
        return OnFailure(handlers=(), limit=settings.max_payload, base_url=settings.base_url)

    def _make_handler(self, name: str, workflow: str) -> FailureHandler:
        found = self._app.registered_workflows.get(name)
        if found is None:
            known = ", ".join(sorted(self._app.registered_workflows))
            raise RegistrationError(
                f"on_failure of workflow {workflow!r} is {name!r}, which is not registered: use one of {known}, or "
                "import the module that registers it"
            )
        return FailureHandler(
            workflow=name,
            parameter=_event_parameter(found),
            options=found.own_options.to_json(),
            timeout=None if found.timeout is None else int(found.timeout * MICROS),
            for_all=name == self._for_all,
        )

    def check(self) -> None:
        """Refuse handlers that do not exist or do not accept a FailureEvent, before a run can fail."""
        for name in self._app.registered_workflows:
            self.of(name)
        for name in sorted({*self._own.values(), *([] if self._for_all is None else [self._for_all])}):
            _check_accepts_event(self._app.registered_workflows[name])


def _event_parameter(handler: Workflow[Any, Any, Any]) -> str:
    names = handler.signature.parameters
    if not names:
        raise RegistrationError(
            f"workflow {handler.name!r} handles failures, so it must take one parameter: "
            f"async def {handler.name}(event: FailureEvent)"
        )
    return names[0]


def _check_accepts_event(handler: Workflow[Any, Any, Any]) -> None:
    """Refuse a handler that cannot decode a FailureEvent whose optional fields are all missing."""
    parameter = _event_parameter(handler)
    try:
        handler.signature.decode(f'{{"{parameter}":{make_sample_event()}}}')
    except PayloadError as error:
        raise RegistrationError(
            f"workflow {handler.name!r} handles failures, but a FailureEvent does not fit it: {error}. "
            f"Annotate {parameter!r} with FailureEvent, and give other parameters defaults"
        ) from None


def circuit_names(registered: Mapping[str, Step[Any, Any]]) -> list[str]:
    """Return the names of the circuits of steps, sorted."""
    circuits = (step.options.circuit for step in registered.values())
    return sorted({circuit.name for circuit in circuits if circuit is not None and circuit.name})


def find_circuit(registered: Mapping[str, Step[Any, Any]], key: str) -> Circuit:
    """Return the circuit with this key, with the settings of the code."""
    workflow = key.partition("/")[0]
    for step in registered.values():
        circuit = step.options.circuit
        if circuit is not None and circuit_key(circuit, workflow, step.name) == key:
            return circuit
    known = ", ".join(circuit_names(registered)) or "none"
    raise ConfigurationError(
        f"no step has a circuit {key!r}; there are: {known}, and WORKFLOW/STEP for circuits without a name"
    )
