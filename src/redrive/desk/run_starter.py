"""Starts of runs by the name of a workflow, with inputs as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.failure_handlers import make_sample_event
from redrive.core.json_schema import find_faults
from redrive.core.new_run import (
    StartableWorkflow,
    build_new_run,
    check_sealed_hash,
    describe_key_conflict,
    read_sealed_index,
    set_event_key,
)
from redrive.core.run_options import FailureHandler, OnFailure, RunOptions, add_origin, takes_sealed
from redrive.core.secret_and_sealed_text import read_sealed_value
from redrive.core.transitions import NewRun
from redrive.desk.models import Caller
from redrive.desk.validation import PayloadChecker
from redrive.errors import Conflict, InputError, RedriveError, UnknownWorkflow
from redrive.observability.tracing import current_traceparent
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settings import ENVIRONMENT_VARIABLES
from redrive.store.port import DeskStore
from redrive.store.runs import StartResult
from redrive.store.workers import CatalogueRow


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be started, with the options of `start`.

    `event` is the event that starts it: a stream and an id. The event is the idempotency key of the run. An event of a
    source is also recorded as the `origin` of the run. With an encrypted input come its `input_hash`, by which a
    repeated start is recognised, and its searchable values (`input_index`), both encrypted as well.
    """

    workflow: str
    event: tuple[str, str] | None = None
    from_source: bool = False
    input: Mapping[str, Any] = msgspec.field(default_factory=dict)
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    input_hash: str | None = None
    input_index: tuple[tuple[str, str], ...] = ()


class RunStarter:
    """Starts runs by the name of their workflow, with inputs as JSON.

    `here` finds a workflow whose code this process has; the catalogue has the others. `rules` are those for failure
    events, without a handler. `caller` is the credential of a request over HTTP, None for this process itself.
    """

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        checker: PayloadChecker,
        here: Callable[[str], StartableWorkflow | None],
        on_start: Callable[[], None],
        key_keeps: int,
        rules: OnFailure,
        caller: Caller | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._rules = rules
        self._checker = checker
        self._here = here
        self._on_start = on_start
        self._key_keeps = key_keeps
        self._caller = caller or Caller()

    async def start(self, requests: Sequence[StartRequest]) -> list[StartResult]:
        """Start runs, all or none of them; a key that was used with another input is a Conflict.

        For a caller who may not see payloads, a key of another credential is a Conflict with every input: an
        answer that depended on the input would let the caller guess it.
        """
        known = await self._find_workflows({each.workflow for each in requests})
        runs = [await self._make_run(each, *known[each.workflow]) for each in requests]
        started = await self._store.start(runs)
        self._on_start()
        for run, answer, each in zip(runs, started, requests, strict=True):
            if not (answer.new or self._caller.sees_payloads or answer.maker == self._caller.name):
                code, first = ReasonCode.KEY_OF_OTHER_CREDENTIAL, answer.public_id
                raise Conflict(Reason(code, run=first, workflow=run.workflow, tenant=run.tenant))
            if answer.clash:
                raise Conflict(describe_key_conflict(run, answer.public_id, each.event))
        return started

    async def start_each(self, requests: Sequence[StartRequest]) -> list[StartResult | RedriveError]:
        """Start those of the runs that can be started, in one commit. The others have the error that refuses them."""
        known = await self._load_workflows({each.workflow for each in requests})
        found: list[StartResult | RedriveError | None] = [None] * len(requests)
        runs: list[tuple[int, NewRun]] = []
        for number, each in enumerate(requests):
            try:
                if each.workflow not in known:
                    raise _make_unknown(each.workflow)
                runs.append((number, await self._make_run(each, *known[each.workflow])))
            except InputError as error:
                found[number] = error
        started = await self._store.start([run for _, run in runs]) if runs else []
        self._on_start()
        for (number, run), answer in zip(runs, started, strict=True):
            reason = describe_key_conflict(run, answer.public_id, requests[number].event) if answer.clash else None
            found[number] = answer if reason is None else Conflict(reason)
        return [each for each in found if each is not None]

    async def _make_run(self, request: StartRequest, workflow: StartableWorkflow, schema: Any) -> NewRun:
        sealed = read_sealed_value(request.input)
        if sealed is not None:
            text = self._checker.check_sealed(sealed, Reason(ReasonCode.WORKFLOW_INPUT, workflow=request.workflow))
        elif workflow.sealed:
            raise InputError(
                Reason(
                    ReasonCode.WORKFLOW_SEALED,
                    workflow=workflow.name,
                    variable=ENVIRONMENT_VARIABLES["encryption_keys"],
                )
            )
        elif schema is None:
            text = await self._checker.encode_input(request.workflow, dict(request.input))
        else:
            what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=request.workflow)
            text = await self._checker.encode_by_schema(dict(request.input), schema, what)
        if request.event is not None and "idempotency_key" in request.options:
            raise InputError(Reason(ReasonCode.EVENT_HAS_KEY))
        options = request.options
        if options.get("on_failure") is not None:
            options = {**options, "on_failure": await self._find_handler(options["on_failure"])}
        if self._caller.who is not None:
            options = {**options, "started_by": self._caller.who}
        run = build_new_run(
            workflow,
            text,
            options,
            public_id=self._clock.new_id(),
            now=self._store.now(),
            key_keeps=self._key_keeps,
            trace=current_traceparent(),
        )
        if request.event is not None:
            run = set_event_key(run, request.event)
            if request.from_source:
                run = replace(run, options=add_origin(run.options, request.event))
        if sealed is not None:
            run = replace(
                run,
                key_hash=None if run.key is None else check_sealed_hash(request.input_hash),
                index=read_sealed_index(request.input_index, workflow.options.index),
            )
        return run if run.key is None else replace(run, key_maker=self._caller.name)

    async def _find_handler(self, name: str) -> OnFailure:
        """Return the handler that a start names. The catalogue hides workflows that the caller may not start."""
        rows = [row for row in await self._store.known([name]) if row.kind == "workflow"]
        if not rows:
            raise _make_unknown(name)
        (item,) = rows
        workflow, schema = _read_catalogue(item)
        parameter = next(iter(schema.get("properties", {})), None)
        if parameter is None or find_faults({parameter: json.loads(make_sample_event())}, schema):
            raise InputError(Reason(ReasonCode.HANDLER_UNFIT, workflow=name))
        handler = FailureHandler(
            workflow=name,
            parameter=parameter,
            options=replace(workflow.options, on_failure=None).to_json(),
            timeout=None if workflow.timeout is None else int(workflow.timeout * MICROS),
        )
        return replace(self._rules, handlers=(handler,))

    async def _find_workflows(self, names: set[str]) -> dict[str, tuple[StartableWorkflow, Any]]:
        """Return workflows by name, as `_load_workflows` does; raise UnknownWorkflow if one is missing."""
        found = await self._load_workflows(names)
        if unknown := sorted(names - found.keys()):
            raise _make_unknown(unknown[0])
        return found

    async def _load_workflows(self, names: set[str]) -> dict[str, tuple[StartableWorkflow, Any]]:
        """Return workflows by name, each with the schema of its input where this process has no code to check it by."""
        found: dict[str, tuple[StartableWorkflow, Any]] = {}
        found |= {name: (here, None) for name in names if (here := self._here(name)) is not None}
        missing = sorted(names - found.keys())
        for item in await self._store.known(missing) if missing else ():
            if item.kind == "workflow":
                found[item.name] = _read_catalogue(item)
        return found


def _make_unknown(workflow: str) -> UnknownWorkflow:
    return UnknownWorkflow(Reason(ReasonCode.CODE_UNREGISTERED, kind="workflow", name=workflow[:60]))


def _read_catalogue(item: CatalogueRow) -> tuple[StartableWorkflow, Any]:
    """Return a workflow that other processes registered, and the schema of its input."""
    options = RunOptions.from_json(item.options)
    workflow = StartableWorkflow(
        name=item.name,
        version=item.code_version,
        options=options,
        text=options.to_json(),
        timeout=json.loads(item.options).get("timeout"),  # stored beside the options of a run
        sealed=takes_sealed(item.options),
    )
    return workflow, json.loads(item.schema_in or "{}")
