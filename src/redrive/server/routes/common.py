"""Shared parts of routes: parameters, bodies, routes made from operations, and the workflows that a principal sees."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, create_model, model_validator
from pydantic_core import PydanticCustomError

from redrive.core.roles import Permission
from redrive.core.states import RunStatus
from redrive.desk.api_operations import CALLER_PARAMETERS, get_answer_type, get_operation, get_parameters
from redrive.desk.workflows import DeployedVersion, KnownWorker, KnownWorkflow, Workflows
from redrive.errors import ConfigurationError, InputError, NotAllowed
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.server.idempotency import KEY_HEADER, IdempotentRoute
from redrive.server.request_context import Context, RequestContext, requires
from redrive.settings import API_PREFIX
from redrive.store.filters import RunFilter
from redrive.store.result_page import OLDEST_CURSOR
from redrive.store.runs import RunRow
from redrive.store.workers import live_workers

Id = Annotated[str, Path(pattern=r"^[!-~]{1,200}$", description="An id.")]
Name = Annotated[str, Path(pattern=r"^[^/#\x00-\x1f]{1,255}$", description="A name.")]
Key = Annotated[str | None, Header(alias=KEY_HEADER, max_length=255)]
Limit = Annotated[int, Query(ge=1, le=500, description="The most items to return.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next` or `prev` of another page.")]
Since = Annotated[datetime | None, Query(description="At or after this time, with its zone.")]
Until = Annotated[datetime | None, Query(description="Before this time, with its zone.")]
Index = Annotated[
    list[Annotated[str, Field(max_length=500)]] | None,
    Query(max_length=10, description="`field:value`, of a declared field; up to 10."),
]
Span = Annotated[StrictFloat | str, Field(description="Seconds, or a text such as `10m`.")]
Text = Annotated[str, Field(min_length=1, max_length=255)]
LongText = Annotated[str, Field(min_length=1, max_length=10_000)]
_MAX_UNKNOWN_NAMES = 20
_MAX_OLDEST_RUNS = 100
_REPLAY_OPTIONS = frozenset({"input", "patch", "output", "new_operation", "ask_again", "skip_steps"})
_PARAMETER_TYPES: dict[str, Any] = {"id": Id, "limit": Limit, "cursor": Cursor, "idempotency_key": Key}
_WIRE_TYPES: dict[Any, Any] = {str: Text, str | None: Text | None}

F = TypeVar("F", bound=Callable[..., Any])


class Body(BaseModel):
    """A JSON object with strictly checked fields; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        """Refuse many unknown names with one error: one for each costs more than parsing the body."""
        if isinstance(data, dict) and len(data) > len(cls.model_fields) + _MAX_UNKNOWN_NAMES:
            raise PydanticCustomError("too_many_names", "too many unknown names")
        return data


class ReasonBody(Body):
    """The reason that a user gives, for the audit log."""

    reason: str | None = Field(default=None, max_length=10_000)

    def read_options(self, context: RequestContext) -> dict[str, Any]:
        """Return options of a call of the desk: the caller, the reason, and more in subclasses."""
        return {"by": context.by, "reason": self.reason}


class DryRunBody(ReasonBody):
    """A reason, and whether to preview the operation only."""

    dry_run: bool = False


class ReplayBody(DryRunBody):
    """The part of a replay that its kinds share."""

    patch: dict[str, Any] | None = None
    output: Any = None
    override_retry_policy: dict[str, Any] | None = None
    new_operation: bool = False
    ask_again: bool = False

    def read_options(self, context: RequestContext) -> dict[str, Any]:
        options = {**super().read_options(context), "retry": parse_policy(self.override_retry_policy)}
        names = type(self).model_fields.keys() & _REPLAY_OPTIONS
        return {**options, **{name: getattr(self, name) for name in names}}


class SafeJsonResponse(JSONResponse):
    """A JSON response that escapes lone surrogates, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            import json

            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def make_router(tag: str) -> APIRouter:
    """Return a router for the routes under one heading of the OpenAPI document."""
    return APIRouter(
        prefix=API_PREFIX, route_class=IdempotentRoute, tags=[tag], default_response_class=SafeJsonResponse
    )


def serve(router: APIRouter, call: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that serves an operation of the desk by the decorated function."""
    about = get_operation(call)
    rule = requires(about.permission, all_workflows=about.all_workflows)
    return router.api_route(about.path, methods=[about.method], status_code=about.status, **rule)


def add_operations(
    router: APIRouter,
    find_facet: Callable[[RequestContext], Any],
    *calls: Callable[..., Any],
    types: Mapping[str, Any] | None = None,
) -> None:
    """Serve operations of the desk that take their parameters as they were sent.

    A text in the path is a `Name`, elsewhere it is a `Text`; `types` holds other types by the name of a parameter.
    Parameters of a POST or PUT that are not in its path form its body.
    """
    for call in calls:
        about, answer = get_operation(call), get_answer_type(call)
        if about.field is not None:
            field: dict[str, Any] = {about.field: (answer, ...)}
            answer = create_model(about.field.capitalize(), __base__=Body, **field)
        router.add_api_route(
            about.path,
            _make_endpoint(call, find_facet, {**_PARAMETER_TYPES, **(types or {})}),
            methods=[about.method],
            name=about.id,
            description=inspect.getdoc(call),
            status_code=about.status,
            response_model=None if answer is type(None) else answer,
            **requires(about.permission, all_workflows=about.all_workflows),
        )


def _make_endpoint(
    call: Callable[..., Any], find_facet: Callable[[RequestContext], Any], types: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a function with the signature that FastAPI reads the parameters and the body of an operation from."""
    about, described = get_operation(call), get_parameters(call)
    parameters = [_make_parameter("context", Context)]
    fields: dict[str, Any] = {}
    sent = {name: about.names.get(name, name) for name in described if name not in {*CALLER_PARAMETERS, "tenant"}}
    for name, wire_name in sent.items():
        annotation, default = described[name].annotation, described[name].default
        if wire_name in about.path_names:
            parameters.append(_make_parameter(wire_name, types.get(wire_name, Name)))
            continue
        kind = types.get(wire_name, _WIRE_TYPES.get(annotation, annotation))
        if about.method in ("POST", "PUT") and kind is not Key:
            fields[wire_name] = (kind, ... if default is inspect.Parameter.empty else default)
        else:
            # A filter has no default: each of its fields has one.
            default = inspect.Parameter.empty if name == "filter" else default
            parameters.append(_make_parameter(wire_name, kind, default))
    model: Any = None
    if fields:
        base = ReasonBody if fields.pop("reason", None) else Body
        model = create_model(about.id.title().replace("_", ""), __base__=base, **fields) if fields else base
        needed = any(field.is_required() for field in model.model_fields.values())
        parameters.append(_make_parameter("body", model) if needed else _make_parameter("body", model | None, None))

    async def endpoint(context: RequestContext, body: Body | None = None, **given: Any) -> Any:
        if model is not None:
            given |= dict(body or model())
        values = {name: given[wire_name] for name, wire_name in sent.items()}
        values |= dict.fromkeys(CALLER_PARAMETERS & described.keys(), context.by)
        if "tenant" in described:
            values["tenant"] = context.home if described["tenant"].annotation is str else context.one_tenant
        answer = await getattr(find_facet(context), call.__name__)(**values)
        return answer if about.field is None else {about.field: answer}

    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return endpoint


def _make_parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def read_filter(kind: type[Any], **types: Any) -> Any:
    """Return the type of a parameter that takes a filter of the desk from the query.

    Its fields are `Text`, times or the given types. The tenant is not a field of the query.
    """
    kinds = {"since": Since, "until": Until, "index": Index, **types}
    fields = [field.name for field in dataclasses.fields(kind) if field.name != "tenant"]
    kinds["workflows"] = Annotated[list[Text] | None, Query(max_length=100)]
    parameters = [_make_parameter(name, kinds.get(name, Text | None), None) for name in fields]

    def make_filter(context: RequestContext, **given: Any) -> Any:
        if "text" in given:
            check_search_text(context, given["text"])
        if "index" in given:
            given["index"] = parse_index(context, given["index"])
        if isinstance(given.get("status"), list):
            given["status"] = tuple(given["status"]) or None
        return kind(**given)

    make_filter.__signature__ = inspect.Signature([_make_parameter("context", Context), *parameters])  # type: ignore[attr-defined]
    return Annotated[kind, Depends(make_filter)]


def check_search_text(context: RequestContext, text: str | None) -> str | None:
    """Return a text to search errors for, if the caller may see payloads.

    The search covers redacted values: the number of matches would reveal them bit by bit.
    """
    if text is not None and not context.principal.may(Permission.SEE_PAYLOADS):
        raise NotAllowed(Reason(ReasonCode.SEARCH_NEEDS_PAYLOADS))
    return text


def hides_index(context: RequestContext, field: str, value: Any) -> bool:
    """Return True if a value of a search field is redacted for the caller: a match would confirm a guess."""
    shown: Any = str(value)
    for name in reversed(field.split(".")):
        shown = {name: shown}
    return not context.principal.may(Permission.SEE_PAYLOADS) and context.service.redactor.redact(shown) != shown


def check_index(context: RequestContext, index: Mapping[str, Any] | None) -> None:
    """Refuse a search by a value that is redacted for the caller."""
    for field, given in (index or {}).items():
        values = given if isinstance(given, list | tuple) else [given]
        if any(hides_index(context, field, value) for value in values):
            raise NotAllowed(Reason(ReasonCode.INDEX_NEEDS_PAYLOADS, field=quote(field)))


def parse_index(context: RequestContext, given: list[str] | None) -> dict[str, list[str]] | None:
    """Parse values to search by, such as `customer.email:ann@example.org`. Of several of a field, any matches."""
    found: dict[str, list[str]] = {}
    for text in given or ():
        field, colon, value = text.partition(":")
        if not colon or not field:
            raise InputError(Reason(ReasonCode.INDEX_INVALID))
        found.setdefault(field, []).append(value)
    check_index(context, found)
    return found or None


def parse_policy(given: dict[str, Any] | None) -> RetryPolicy | None:
    if given is None:
        return None
    try:
        return RetryPolicy.from_json(given)
    except (ConfigurationError, TypeError, ValueError, KeyError, OverflowError) as error:
        raise InputError(Reason(ReasonCode.POLICY_INVALID, why=Reason.of_error(error))) from None


def make_workflows_desk(context: RequestContext) -> Workflows:
    """Return the desk for workflows, which all tenants share."""
    return Workflows(context.whole, context.clock, context.runtime.wake_workers, tenant=context.one_tenant or "")


async def list_known_workflows(context: RequestContext) -> list[KnownWorkflow]:
    """Return the registered workflows that the principal may see.

    Due runs that no worker can take are counted over all tenants for owners; for others, among the hundred
    runs of their tenant that have waited longest.
    """
    allowed = context.principal.workflows
    found = [each for each in await make_workflows_desk(context).list() if allowed is None or each.name in allowed]
    if context.principal.may(Permission.MANAGE_TENANTS):
        return found
    alive = live_workers(await context.whole.workers(), context.whole.now())
    registered = {name for worker in alive for name in worker.workflows}
    lanes = [(run.workflow, run.queue, run.pin) for run in await list_oldest_due_runs(context)]
    waiting = [lane for lane in lanes if not any(worker.takes(*lane) for worker in alive)]
    unclaimable = Counter(workflow for workflow, _, _ in waiting)
    pinned = [lane for lane in waiting if not any(worker.has(lane[0], lane[2]) for worker in alive) and lane[2]]
    idle = sorted({lane[:2] for lane in waiting if lane[0] in registered and lane not in pinned})
    return [
        replace(
            each,
            unclaimable=unclaimable[each.name],
            idle_queues=tuple(queue for workflow, queue in idle if workflow == each.name),
            idle_versions=tuple(sorted({pin for workflow, _, pin in pinned if workflow == each.name})),
        )
        for each in found
    ]


async def list_deployed_versions(context: RequestContext) -> list[DeployedVersion]:
    """Return the versions of code with the runs that the principal may see."""
    tenant = None if context.principal.may(Permission.MANAGE_TENANTS) else context.tenant
    return [*await make_workflows_desk(context).versions(tenant=tenant)]


async def list_known_workers(context: RequestContext) -> list[KnownWorker]:
    """Return the workers, newest first; a token for some workflows sees only those workflows and their workers."""
    some, found = context.principal.workflows, await make_workflows_desk(context).workers()
    if some is None:
        return [*found]
    narrowed = [replace(each, workflows=tuple(filter(some.__contains__, each.workflows))) for each in found]
    return [each for each in narrowed if each.workflows]


async def list_oldest_due_runs(context: RequestContext) -> list[RunRow]:
    """Return the due runs that have waited longest."""
    view, some, rows = context.view, context.principal.workflows, list[RunRow]()
    for workflow in [None] if some is None else sorted(some):  # a token for some workflows must name one
        where = RunFilter(status=[RunStatus.PENDING], workflow=workflow)
        rows += (await view.runs(where, limit=_MAX_OLDEST_RUNS, cursor=OLDEST_CURSOR)).items
    now, paused = context.whole.now(), await view.paused()
    return [run for run in rows if run.workflow not in paused and (run.available_at or now) <= now]
