"""The desk of a server: the classes of the desk as proxies, and the calls that differ from their operation."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar, Unpack, get_args

from redrive.core.journal import History
from redrive.core.json_edit import Change, diff_json, merge_patch, unmask
from redrive.core.json_schema import find_faults
from redrive.core.keys_and_ids import event_hash, payload_hash
from redrive.core.new_run import extract_index_values
from redrive.core.redact import Redactor
from redrive.core.replay_plan import ReplayMode
from redrive.core.roles import ALL_TENANTS, Role
from redrive.core.secret_and_sealed_text import read_sealed_value
from redrive.desk import api_operations
from redrive.desk.actor import Actor
from redrive.desk.audit import Audit
from redrive.desk.bulk import require_open_letters
from redrive.desk.circuits import Circuits
from redrive.desk.event_sender import EventRequest
from redrive.desk.groups import GroupList
from redrive.desk.letters import DeadLetters
from redrive.desk.models import DeadLetter, SentEvent, Task
from redrive.desk.notifications import Notifications
from redrive.desk.outbox_and_sinks import Outbox, Sinks
from redrive.desk.policies import Policies, StoredPolicy
from redrive.desk.preview import DryRun
from redrive.desk.replays import Replay, ReplayOptions
from redrive.desk.run_starter import RunStarter, StartRequest
from redrive.desk.runs import RetryOptions, Runs
from redrive.desk.saga import Ledger, Saga
from redrive.desk.saved_views import SavedView, SavedViews
from redrive.desk.schedules import Schedules
from redrive.desk.tasks import Tasks
from redrive.desk.validation import encode_json, make_invalid_reason
from redrive.desk.workflows import KnownWorkflow, Workflows
from redrive.errors import ConfigurationError, Conflict, InputError, NotFound, RedriveError
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import as_dict, field_names, replace
from redrive.remote.client import TOKEN_VARIABLE, Address, Client, RawJson, encode_value, make_query, read, without_none
from redrive.remote.sealing import Sealing
from redrive.settings import ENVIRONMENT_VARIABLES
from redrive.store.accounts import IssuedToken, MemberRow, NewToken, NewUser, TenantRow, TokenKind, TokenRow, UserRow
from redrive.store.filters import LetterFilter, require_filter
from redrive.store.result_page import Page
from redrive.store.runs import StartResult

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMPENSATION_VERBS = {"skip_failed": "skip", "skip": "skip", "complete": "mark-done"}


def remote(facet: type[T], client: Client) -> T:
    """Return an object with the calls of a class of the desk, which a server carries out.

    A method of `facet` that describes no operation, such as one that overrides an operation, stays as it is.
    """

    def make_proxy(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        async def proxy(_: Any, *args: Any, **options: Any) -> Any:
            return await send(client, call, *args, **options)

        return proxy

    calls = {name: make_proxy(call) for name, call in api_operations.list_operations(facet).items()}
    made: T = object.__new__(type(facet.__name__, (facet,), calls))
    made._client = client  # type: ignore[attr-defined]
    return made


async def send(client: Client, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call an operation of the desk on a server, and return the answer as the desk would."""
    about, parameters = api_operations.get_operation(call), api_operations.get_parameters(call)
    answer = api_operations.get_answer_type(call)
    inspect.signature(call).bind(None, *args, **options)  # a wrong argument is a TypeError, as for a local call
    given = dict(zip(parameters, args, strict=False)) | options
    tenant = given.pop("tenant", parameters["tenant"].default if "tenant" in parameters else None)
    key = given.pop("idempotency_key", None)
    if given.get("filter") is not None:
        require_filter(given["filter"], get_args(parameters["filter"].annotation)[0])  # refuses what is not a filter
    where = given.pop("filter", given.get("letters"))
    if client.sealing is not None:
        where = client.sealing.seal_filter(where)
    values = _encode_letters(where) if given.pop("letters", None) is not None else make_query(where)
    tenant = tenant or getattr(where, "tenant", None)
    for name, parameter in parameters.items():
        if about.names.get(name, name) in about.path_names:
            given.setdefault(name, parameter.default)
    for name, value in given.items():
        # The server has the same defaults. None without a default, as in `assign(to=None)`, is sent.
        default = parameters[name].default if name in parameters else None
        wire_name = about.names.get(name, name)
        if name not in api_operations.CALLER_PARAMETERS and (value != default or wire_name in about.path_names):
            values[wire_name] = encode_value(value)
    parts = about.path.removeprefix("/").split("/")
    path = [str(values.pop(part[1:-1].removesuffix(":path"))) if part.startswith("{") else part for part in parts]
    body, query = (values, None) if about.method in ("POST", "PUT") else (None, values)
    try:
        found = await client.request(about.method, *path, tenant=tenant, key=key, body=body, query=query)
    except NotFound:
        # A call that removes something returns False if it was not there.
        if about.method == "DELETE" and answer is bool:
            return False
        raise
    if about.status == 204:
        return True if answer is bool else None
    return read(answer, found if about.field is None else found[about.field])


def _encode_letters(letters: LetterFilter | Iterable[str]) -> dict[str, Any]:
    if not isinstance(letters, LetterFilter):
        return {"ids": [*letters]}
    require_open_letters(letters)
    filter = {name: value for name, value in make_query(letters).items() if name != "status"}
    if "index" in filter:
        filter["index"] = {field: list(texts) for field, texts in (letters.index or {}).items()}
    return {"filter": filter}


async def _decide(
    client: Client, path: Sequence[str], body: Mapping[str, Any], options: ReplayOptions
) -> Replay | DryRun:
    """Send a decision that has its own path, with the reason and the key of `options`."""
    sent = {**body, **without_none(reason=options.get("reason"))}
    key, tenant = options.get("idempotency_key"), options.get("tenant")
    found = await client.request("POST", *path, body=sent, tenant=tenant, key=key)
    return read(Replay | DryRun, found)  # type: ignore[arg-type]


_GIVEN_VALUES = ("input", "patch", "output", "skip_steps")
"""The options of a replay that hold payloads."""


async def _seal_decision(client: Client, id: str, options: Any) -> tuple[Any, tuple[Change, ...]]:
    """Return the options of a replay with their values encrypted, and the changes of the input.

    The server cannot read the input, so it is edited and checked here.
    """
    sealing, tenant = client.seals, options.get("tenant")
    if sealing is None or all(options.get(name) is None for name in _GIVEN_VALUES):
        return options, ()
    letter = await client.request("GET", "workflow-dlq", id, tenant=tenant, opens=False)
    owner, sealed = letter["tenant"], dict(options)
    changes: tuple[Change, ...] = ()
    edits = options.get("input") is not None or options.get("patch") is not None
    if edits and read_sealed_value(letter["input"]) is not None:  # the server edits an input in clear
        edited, changes = _edit_input(sealing.open_value(letter["input"]), options)
        _check_input(await _find_workflow(client, letter["workflow"], tenant), edited)
        sealed.pop("patch", None)
        sealed["input"] = sealing.seal_value(edited, owner)
    if options.get("output") is not None:
        sealed["output"] = sealing.seal_value(options["output"], owner)
    if options.get("skip_steps") is not None:
        steps = options["skip_steps"].items()
        sealed["skip_steps"] = {name: sealing.seal_value(value, owner) for name, value in steps}
    return sealed, changes


def _edit_input(original: Any, options: Mapping[str, Any]) -> tuple[Any, tuple[Change, ...]]:
    """Return the input that a replay gives, and how it differs from the one of the run, without secrets."""
    redactor, given, patch = Redactor(), options.get("input"), options.get("patch")
    if patch is None:
        edited, sent = unmask(given, original, redactor), given
    else:
        edited = merge_patch(original, unmask(patch, original, redactor))
        sent = merge_patch(redactor.redact(original), patch)
    return edited, diff_json(original, edited, redactor, sent=sent)


async def _find_workflow(client: Client, name: str, tenant: str | None) -> KnownWorkflow:
    """Return a workflow of the server's catalogue."""
    for each in read(list[KnownWorkflow], await client.request("GET", "workflows", tenant=tenant)):
        if each.name == name:
            return each
    raise NotFound(Reason(ReasonCode.WORKFLOW_NOT_FOUND, workflow=name))


def _check_input(workflow: KnownWorkflow, value: Any) -> None:
    """Refuse an input that does not fit: the server cannot check one that is encrypted."""
    if found := find_faults(value, workflow.input_schema or {}):
        what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=workflow.name)
        raise InputError(make_invalid_reason(what, [each.reason for each in found]))


class RemoteDeadLetters(DeadLetters):
    """Dead letters of a server."""

    _client: Client

    async def get(self, id: str, *, tenant: str | None = None, reveal: bool = False, by: str = "unknown") -> DeadLetter:
        if reveal:
            return read(DeadLetter, await self._client.request("POST", "workflow-dlq", id, "reveal", tenant=tenant))
        found: DeadLetter = await send(self._client, DeadLetters.get, id, tenant=tenant)
        return found

    async def groups(self, tenant: str | None = None, *, status: str | None = "OPEN", **options: Any) -> GroupList:
        found: GroupList = await send(self._client, DeadLetters.groups, tenant, status=status or "ALL", **options)
        return found

    async def replay(
        self, id: str, mode: str = "FROM_FAILED", *, dry_run: bool = False, **options: Unpack[ReplayOptions]
    ) -> Any:
        options, changes = await _seal_decision(self._client, id, options)
        if mode.upper() != ReplayMode.COMPLETE:
            made = await send(self._client, DeadLetters.replay, id, mode.upper(), dry_run=dry_run, **options)
            return replace(made, changes=changes) if changes else made
        body = {"output": options.get("output"), "dry_run": dry_run}
        return await _decide(self._client, ("workflow-dlq", id, "complete"), body, options)

    async def replay_many(
        self, letters: LetterFilter | Iterable[str], *, mode: str = "FROM_FAILED", **options: Any
    ) -> Any:
        return await send(self._client, DeadLetters.replay_many, letters, mode=mode.upper(), **options)


class RemoteTasks(Tasks):
    """Tasks of a server, which knows the caller from the token."""

    _client: Client

    async def get(self, id: str, *, tenant: str | None = None, reveal: bool = False, by: str = "unknown") -> Task:
        if reveal:
            return read(Task, await self._client.request("POST", "tasks", id, "reveal", tenant=tenant))
        found: Task = await send(self._client, Tasks.get, id, tenant=tenant)
        return found


class RemoteRuns(Runs):
    """Runs of a server."""

    _client: Client

    async def retry(
        self, run_id: str, mode: str = "from_failed", *, dry_run: bool = False, **options: Unpack[RetryOptions]
    ) -> Replay | DryRun:
        key, reason, tenant = options.get("idempotency_key"), options.get("reason"), options.get("tenant")
        mode = mode.lower()
        if mode == "rollback":
            return await self.rollback(run_id, dry_run=dry_run, reason=reason, idempotency_key=key, tenant=tenant)
        if (undo := options.pop("undo", None)) is not None:
            path = ("runs", run_id, "saga", undo, _COMPENSATION_VERBS.get(mode, mode))
            return await _decide(self._client, path, {"dry_run": dry_run}, options)
        options, changes = await _seal_decision(self._client, run_id, options)
        answer: Replay | DryRun = await send(self._client, Runs.retry, run_id, mode, dry_run=dry_run, **options)
        return replace(answer, changes=changes) if changes else answer

    async def read_histories(self, **options: Any) -> Page[History]:
        return await self.histories(**options)

    send = api_operations.keep_local(Runs.send)

    async def _send(self, request: EventRequest) -> SentEvent:
        client, payload = self._client, request.payload
        if (sealing := client.seals) is not None:
            tenant = request.tenant or await client.home()
            if tenant == ALL_TENANTS:
                tenant = (await client.request("GET", "runs", request.run_id))["tenant"]
            payload = sealing.seal_value(payload, tenant)
        path = ("runs", request.run_id, "events", request.name)
        body = RawJson(payload)
        return read(SentEvent, await client.request("POST", *path, body=body, tenant=request.tenant, key=request.key))


class RemoteStarter(RunStarter):
    """Starts runs on a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start(self, requests: Sequence[StartRequest]) -> list[StartResult]:
        def encode(request: StartRequest) -> dict[str, Any]:
            options = {name: value for name, value in request.options.items() if name != "tenant"}
            if "retry" in options:
                options["retry"] = encode_value(options["retry"])
            event = None if request.event is None else dict(zip(("stream", "id"), request.event, strict=True))
            index: dict[str, list[str]] = {}
            for field, value in request.input_index:
                index.setdefault(field, []).append(value)
            sealed = without_none(input_hash=request.input_hash, input_index=index or None)
            return without_none(workflow=request.workflow, input=dict(request.input), event=event, **sealed, **options)

        requests = [await self._seal(each) for each in requests]
        started: dict[int, StartResult] = {}
        for tenant in {each.options.get("tenant") for each in requests}:
            numbers = [n for n, each in enumerate(requests) if each.options.get("tenant") == tenant]
            body = {"runs": [encode(requests[number]) for number in numbers]}
            found = await self._client.request("POST", "runs:batch", body=body, tenant=tenant)
            made = (StartResult(public_id=run["id"], new=run["new"]) for run in found["runs"])
            started.update(zip(numbers, made, strict=True))
        return [started[number] for number in range(len(requests))]

    async def _seal(self, request: StartRequest) -> StartRequest:
        """Return a start with its input checked and encrypted, with what the server needs beside it."""
        sealing = self._client.seals
        if sealing is None or read_sealed_value(request.input) is not None:
            return request
        tenant = request.options.get("tenant") or await self._client.home()
        known = await _find_workflow(self._client, request.workflow, request.options.get("tenant"))
        _check_input(known, dict(request.input))
        text = encode_json(dict(request.input), Reason(ReasonCode.WORKFLOW_INPUT, workflow=request.workflow))
        hash = payload_hash(text) if request.event is None else event_hash(request.workflow, text)
        return sealing.seal_start(request, tenant, text, hash, extract_index_values(text, known.index))

    async def start_each(self, requests: Sequence[StartRequest]) -> list[StartResult | RedriveError]:
        found: list[StartResult | RedriveError] = []
        for request in requests:  # a server refuses a whole batch for one run that cannot be started
            try:
                found += await self.start([request])
            except (Conflict, InputError, NotFound) as error:
                found.append(error)
        return found


class RemotePolicies(Policies):
    """Stored policies of a server. Their JSON is not that of the record."""

    _client: Client

    async def set(
        self,
        policy: RetryPolicy,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> StoredPolicy:
        body = {"policy": policy.to_json(), **without_none(workflow=workflow, step=step)}
        return _read_policy(await self._client.request("PUT", "policies", body=body, tenant=tenant))

    async def get(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None
    ) -> StoredPolicy | None:
        whose = tenant or (await self._client.request("GET", "me"))["tenant"]
        target = (None if whose == ALL_TENANTS else whose, workflow, step)
        found = map(_read_policy, await self._client.request("GET", "policies", tenant=tenant))
        return next((each for each in found if (each.tenant, each.workflow, each.step) == target), None)

    async def list(self) -> list[StoredPolicy]:
        return [_read_policy(each) for each in await self._client.request("GET", "policies")]


def _read_policy(found: Mapping[str, Any]) -> StoredPolicy:
    values = {name: found[name] for name in field_names(StoredPolicy)}
    values["updated_at"] = datetime.fromisoformat(values["updated_at"])
    return StoredPolicy(**{**values, "policy": RetryPolicy.from_stored(values["policy"])})


class RemoteNotifications(Notifications):
    """The inbox and the rules of a server, which knows the reader from the token."""

    _client: Client

    async def unread(self, *, reader: str = "unknown", tenant: str | None = None, workflow: str | None = None) -> int:
        query = without_none(workflow=workflow, limit=1)
        return int((await self._client.request("GET", "notifications", query=query, tenant=tenant))["unread"])


class RemoteViews(SavedViews):
    """Saved views of a server. Shared ones have another path, and need another permission."""

    _client: Client

    async def save(
        self, of: str, name: str, query: str, *, by: str = "unknown", tenant: str | None = None, shared: bool = False
    ) -> SavedView:
        path = ("shared-views" if shared else "views", of, name)
        return read(SavedView, await self._client.request("PUT", *path, body={"query": query}, tenant=tenant))

    async def remove(
        self, of: str, name: str, *, by: str = "unknown", tenant: str | None = None, shared: bool = False
    ) -> None:
        await self._client.request("DELETE", "shared-views" if shared else "views", of, name, tenant=tenant)


class RemoteAccounts:
    """Tenants, users and tokens of a server, with the permissions of the token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def tenants(self) -> list[TenantRow]:
        return [_read_tenant(each) for each in await self._client.request("GET", "tenants")]

    async def tenant(self, name: str) -> TenantRow:
        for row in await self.tenants():
            if row.tenant == name:
                return row
        raise NotFound(Reason(ReasonCode.TENANT_NOT_FOUND, name=name))

    async def create_tenant(self, name: str) -> TenantRow:
        return _read_tenant(await self._client.request("POST", "tenants", body={"name": name}))

    async def disable_tenant(self, name: str, *, disabled: bool) -> TenantRow:
        return _read_tenant(await self._client.request("POST", "tenants", name, "disable" if disabled else "enable"))

    async def erase_tenant(self, name: str) -> int:
        return int((await self._client.request("DELETE", "tenants", name, query={"confirm": name}))["rows"])

    async def export_tenant(self, name: str) -> AsyncIterator[dict[str, Any]]:
        async for each in self._client.lines("tenants", name, "export"):
            yield each

    async def users(self, tenant: str | None) -> list[UserRow]:
        return [_read_user(each) for each in await self._client.request("GET", "users", tenant=tenant)]

    async def user(self, id: str) -> UserRow:
        return _read_user(await self._client.request("GET", "users", id))

    async def create_user(self, new: NewUser) -> tuple[UserRow, str | None]:
        made = await self._client.request("POST", "users", body=_encode_account(new), tenant=new.tenant)
        return _read_user(made), made["code"]

    async def give_role(self, id: str, tenant: str, role: Role, *, payloads: bool | None) -> tuple[UserRow, str | None]:
        body = {"role": role.value, "active": True, **without_none(may_see_payloads=payloads)}
        made = await self._client.request("POST", "users", id, "role", body=body, tenant=tenant)
        return _read_user(made), made["code"]

    async def disable_user(self, id: str, *, disabled: bool) -> UserRow:
        return _read_user(await self._client.request("POST", "users", id, "disable" if disabled else "enable"))

    async def code(self, id: str) -> str:
        return str((await self._client.request("POST", "users", id, "code"))["code"])

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        return [_read_token(each) for each in await self._client.request("GET", "tokens", tenant=tenant)]

    async def token(self, id: str) -> TokenRow:
        return _read_token(await self._client.request("GET", "tokens", id))

    async def create_token(self, new: NewToken) -> IssuedToken:
        body, tenant = _encode_account(new), None if new.tenant == ALL_TENANTS else new.tenant
        if tenant is None:
            body["all_tenants"] = True
        made = await self._client.request("POST", "tokens", body=body, tenant=tenant)
        return IssuedToken(_read_token(made), made["secret"])

    async def revoke_token(self, id: str) -> TokenRow:
        return _read_token(await self._client.request("POST", "tokens", id, "revoke"))


def _encode_account(new: NewUser | NewToken) -> dict[str, Any]:
    body = as_dict(new) | {"role": new.role.value, "may_see_payloads": new.payloads}
    return without_none(**{name: value for name, value in body.items() if name not in ("tenant", "payloads")})


def _read_row(row: type[T], found: Mapping[str, Any], **given: Any) -> T:
    """Return the row that an answer shows; `given` holds the fields that differ."""
    for name in field_names(row):
        if name in found and name not in given:
            value = found[name]
            if name.endswith("_at") and value is not None:
                value = (datetime.fromisoformat(value) - _EPOCH) // timedelta(microseconds=1)
            given[name] = Role(value) if name == "role" else value
    return row(**given)


def _read_tenant(found: Mapping[str, Any]) -> TenantRow:
    return _read_row(TenantRow, found, tenant=found["name"], disabled_at=1 if found["disabled"] else None)


def _read_user(found: Mapping[str, Any]) -> UserRow:
    members = tuple(
        _read_row(MemberRow, each, user=found["id"], payloads=each["may_see_payloads"]) for each in found["memberships"]
    )
    return _read_row(UserRow, found, disabled_at=1 if found["disabled"] else None, members=members)


def _read_token(found: Mapping[str, Any]) -> TokenRow:
    kind, names = TokenKind(found["kind"]), {name: tuple(found.get(name, ())) for name in ("workflows", "steps")}
    return _read_row(TokenRow, found, kind=kind, payloads=found["may_see_payloads"], **names)


class Remote:
    """A server, with the calls of an app that is open without a worker.

    `steps` are those of an app whose code is at hand, if there is one.
    """

    def __init__(
        self,
        url: str | Address,
        token: str | None = None,
        steps: Mapping[str, Any] | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        if isinstance(url, str):
            proxy, ca_file = (os.environ.get(ENVIRONMENT_VARIABLES[name], "") for name in ("proxy", "ca_file"))
            url = Address.read(url, proxy, ca_file)
        client = Client(url, os.environ.get(TOKEN_VARIABLE, "") if token is None else token, sealing)
        self._client = client
        self.registered_steps = steps or {}
        self.runs: Runs = self.make_runs(RemoteRuns)
        self.starter: RunStarter = RemoteStarter(client)
        self.dlq: DeadLetters = remote(RemoteDeadLetters, client)
        self.tasks: Tasks = remote(RemoteTasks, client)
        self.circuits = remote(Circuits, client)
        self.outbox = remote(Outbox, client)
        self.sinks = remote(Sinks, client)
        self.policies: Policies = remote(RemotePolicies, client)
        self.workflows: Workflows = remote(Workflows, client)
        self.schedules = remote(Schedules, client)
        self.views: SavedViews = remote(RemoteViews, client)
        self.audit = remote(Audit, client)
        self.notifications: Notifications = remote(RemoteNotifications, client)
        self.accounts = RemoteAccounts(client)

    def make_runs(self, kind: type[RemoteRuns]) -> RemoteRuns:
        """Return the runs of the server with the calls of this class."""
        return remote(kind, self._client)

    async def saga(self, run_id: str, *, tenant: str | None = None) -> Ledger:
        saga = read(Saga, await self._client.request("GET", "runs", run_id, "saga", tenant=tenant))

        async def decide(mode: ReplayMode, actor: Actor, undo: str | None) -> Replay:
            found = await self.runs.retry(run_id, mode, reason=actor.reason, undo=undo, tenant=tenant)
            assert isinstance(found, Replay)
            return found

        return Ledger(**as_dict(saga), decide=decide)

    @property
    def address(self) -> str:
        """The URL of the server, without the tenant."""
        return str(self._client.address)

    async def me(self) -> dict[str, Any]:
        """Return the owner of the token with its tenant, role and permissions."""
        found: dict[str, Any] = await self._client.request("GET", "me")
        return found

    async def home(self) -> str:
        """Return the tenant of requests that name none."""
        return await self._client.home()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Remote]:
        """Use the server, and close the connection at the end."""
        try:
            yield self
        finally:
            self._client.close()

    @property
    def settings(self) -> NoReturn:
        """Settings and runtime, which an app has and a server does not show."""
        raise ConfigurationError(
            f"this command needs a database, and {self._client.address} is a server: name the database with --url"
        )

    runtime = settings
