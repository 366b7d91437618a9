"""Registering workflows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redrive.app.checks import check_flags, check_retry, chosen_name, time_limit
from redrive.app.scheduling import read_schedules
from redrive.app.workflow import Workflow
from redrive.core.index import MOST_FIELDS, parts
from redrive.core.payload import Signature
from redrive.core.schedules import Schedule
from redrive.core.starting import START_OPTIONS
from redrive.duration import Duration
from redrive.errors import RegistrationError
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy
from redrive.worker.definitions import WorkflowDefinition

if TYPE_CHECKING:
    from redrive.app.app import Redrive

__all__ = ["WorkflowRequest", "register_workflow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRequest:
    """What `@app.workflow` was told, not checked yet."""

    name: str | None = None
    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    rollback: bool = False
    dead_letter: bool = True
    max_crashes: int = 3
    retention_runs: int | None = None
    dlq_retention: Duration | None = None
    index: Sequence[str] = ()
    on_failure: Workflow[Any, Any, Any] | str | None = None
    notify: Mapping[str, Any] | None = None
    schedule: Schedule | Sequence[Schedule] | None = None


def register_workflow(
    app: Redrive, fn: Callable[..., Any], names: Mapping[str, Any], asked: WorkflowRequest
) -> Workflow[Any, Any, Any]:
    """Make a function a workflow of the app. `names` are those that its annotations may refer to."""
    name = chosen_name("workflow", asked.name, fn, app.registered_workflows)
    what = f"workflow {name!r}"
    _check(what, asked)
    definition = WorkflowDefinition(
        name=name,
        fn=fn,
        signature=Signature.of(fn, reserved=START_OPTIONS, names=names),
        is_async=inspect.iscoroutinefunction(fn),
    )
    workflow = _workflow(app, what, definition, asked)
    app.handlers.note(name, asked.on_failure)
    app.registered_workflows[name] = workflow
    app.changed()
    return workflow


def _check(what: str, asked: WorkflowRequest) -> None:
    check_flags(what, dead_letter=asked.dead_letter, rollback=asked.rollback)
    _check_number(f"max_crashes of {what}", asked.max_crashes, least=1)
    if asked.retention_runs is not None:
        _check_number(f"retention_runs of {what}", asked.retention_runs, least=0)
    check_retry(what, asked.retry)


def _check_number(what: str, number: Any, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise RegistrationError(f"{what} is {number!r}; give a whole number from {least} on")


def _workflow(
    app: Redrive, what: str, definition: WorkflowDefinition, asked: WorkflowRequest
) -> Workflow[Any, Any, Any]:
    return Workflow(
        app,
        definition,
        retry=asked.retry,
        timeout=time_limit(asked.timeout, f"timeout of {what}"),
        dead_letter=asked.dead_letter,
        max_crashes=asked.max_crashes,
        retention_runs=asked.retention_runs,
        dlq_retention=time_limit(asked.dlq_retention, f"dlq_retention of {what}"),
        index=_index(what, asked.index, definition.signature),
        rollback=asked.rollback,
        notify=None if asked.notify is None else app.channels.rule(definition.name, asked.notify),
        schedules=read_schedules(what, asked.schedule),
    )


def _index(what: str, fields: Any, signature: Signature) -> tuple[str, ...]:
    """The fields to search by, each once; whatever cannot be one is refused."""
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        raise RegistrationError(f'index of {what} is {fields!r}; give a list, as in ["customer.email"]')
    for field in fields:
        known = signature.parameters
        if not isinstance(field, str) or not all(parts(field)) or parts(field)[0] not in known:
            raise RegistrationError(
                f"index of {what} has {field!r}; give a parameter ({', '.join(known) or 'there is none'}), "
                "and behind dots the names inside its value"
            )
    if len(fields) > MOST_FIELDS:
        raise RegistrationError(f"index of {what} has {len(fields)} fields; {MOST_FIELDS} are the most")
    return tuple(dict.fromkeys(fields))
