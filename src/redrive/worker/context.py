"""The functions that workflow and step code calls. `redrive` exports all of them, except `log_context`."""

from __future__ import annotations

import asyncio
import json
import uuid as uuid_module
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol

from redrive.clock import MICROS, SystemClock
from redrive.core.new_run import check_name
from redrive.core.payload import check_size, encode_any, signature_of_type
from redrive.core.questions import MAX_TEXT, Audience, Question, read_options, read_plan
from redrive.core.waits_and_events import MAX_UNREAD, Wait, WaitMode, check_event_declared, check_event_name
from redrive.errors import InputError, MisusedStep
from redrive.observability.decision_log import describe_run
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.time_values import Duration, parse_duration, to_datetime
from redrive.worker.attempt import Attempt, MessageId
from redrive.worker.branches import Branch, current_scope
from redrive.worker.execution import Execution
from redrive.worker.status_note import make_status_note
from redrive.worker.waits import NO_DEFAULT, Answer, WaitRequest

MAX_PATCH_NAME = 100
"""The longest name of a patch, in characters."""


class StepInfo(Protocol):
    """The current attempt, as the code of a step sees it."""

    @property
    def step(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def idempotency_key(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def correlation_id(self) -> str: ...
    def heartbeat(self, details: Any = None) -> None: ...
    def publish(self, topic: str, payload: Any, key: str | None = None) -> MessageId: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The current run, as workflow and step code sees it.

    `started_by`: the person, token or schedule that started it, or the run whose code did; None if it is not known.
    """

    run_id: str
    workflow: str
    tenant: str
    correlation_id: str
    version: str
    started_by: str | None = None


def step_info() -> StepInfo:
    """Return the current attempt of a step: its number, its idempotency key, and `heartbeat()`."""
    here = current_scope.get()
    if isinstance(here, Attempt):
        return here
    raise MisusedStep("step_info() works only in the body of a step that an engine runs")


def run_info() -> RunInfo:
    """Return the current run, in workflow code and in steps."""
    here = current_scope.get()
    if not isinstance(here, Branch | Attempt):
        raise MisusedStep("run_info() works only in code that an engine runs")
    execution: Execution = here.execution
    return RunInfo(
        run_id=execution.claimed.public_id,
        workflow=execution.claimed.workflow,
        tenant=execution.claimed.tenant,
        correlation_id=execution.correlation_id,
        version=execution.worker.version_of(execution.claimed.workflow),
        started_by=execution.view.options.started_by,
    )


def sleep(duration: Duration) -> Awaitable[None]:
    """Wait durably: the run costs nothing meanwhile and continues after a crash or a deploy.

    In a `def` workflow the call itself blocks. Outside a run it is an ordinary sleep.
    """
    wait = parse_duration(duration, "sleep")
    branch = _current_branch("redrive.sleep")
    if branch is None:
        return asyncio.sleep(wait)
    call: Any = branch.execution.calls.sleep(branch, wait)
    blocked: Awaitable[None] = branch.execution.call_from_thread(call) if branch.threaded else call
    return blocked


def wait_for(
    name: str, *, timeout: Duration | None = None, default: Any = NO_DEFAULT, type: Any = None
) -> Awaitable[Any]:
    """Wait for an event that is sent to this run, and return its payload. The run costs nothing meanwhile.

    An event that came before is returned at once. After `timeout` this raises `WaitExpired`, a `TimeoutError`, or
    returns `default` if that is given. The payload has the type that the workflow declares for the event, or `type`.
    In a `def` workflow the call itself blocks.
    """
    waiting: Awaitable[Any] = _wait(
        "wait_for", Wait(mode=WaitMode.ONE, names=_check_event_names(name)), timeout, default, type
    )
    return waiting


def wait_for_any(*names: str, timeout: Duration | None = None, default: Any = NO_DEFAULT) -> Awaitable[Any]:
    """Wait for the first event with one of these names, and return it as an `Event`. See `wait_for`."""
    waiting: Awaitable[Any] = _wait(
        "wait_for_any", Wait(mode=WaitMode.ANY, names=_check_event_names(*names)), timeout, default, None
    )
    return waiting


def receive(name: str, *, upto: int = 100, within: Duration = 0, type: Any = None) -> Awaitable[list[Any]]:
    """Wait for an event, collect more of the same name, and return the list of their payloads.

    The list has up to `upto` events that came within `within` after the first one.
    """
    if isinstance(upto, bool) or not isinstance(upto, int) or not 1 <= upto <= MAX_UNREAD:
        raise InputError(Reason(ReasonCode.WAIT_LIMITS_INVALID, field="upto", given=quote(upto), most=MAX_UNREAD))
    length = int(parse_duration(within, "within") * MICROS)
    wait = Wait(mode=WaitMode.MANY, names=_check_event_names(name), upto=upto, within=length)
    waiting: Awaitable[list[Any]] = _wait("receive", wait, None, NO_DEFAULT, type)
    return waiting


def ask(
    question: str,
    *,
    options: Iterable[str] | None = None,
    form: Any = None,
    show: Mapping[str, Any] | None = None,
    to: str | Iterable[str] | None = None,
    apart_from: str | Iterable[str | None] | None = None,
    timeout: Duration | None = None,
    escalate: Mapping[str, str | Iterable[str]] | None = None,
    notify: str | None = None,
) -> Awaitable[Answer]:
    """Ask people a question, and return the answer that one of them gives. The run costs nothing meanwhile.

    The answer is one of `options`, or a value of the type `form`. `show` is data that users see with the question.
    `to` is a role, mail addresses, or both; without it every user with the role STAFF or a higher one may answer.
    `apart_from` names people who may not. After `timeout` this raises `WaitExpired`, a `TimeoutError`. `escalate` maps
    times to more people, who may answer from then on. `notify` is a channel that is notified, beside what the rules
    say. In a `def` workflow the call itself blocks.
    """
    seconds = None if timeout is None else parse_duration(timeout, "timeout")
    if (options is None) == (form is None):
        raise InputError(Reason(ReasonCode.QUESTION_FORM_NEEDED))
    if show is not None and not isinstance(show, Mapping):
        raise InputError(Reason(ReasonCode.OBJECT_NEEDED, field="show", given=quote(show)))
    signature = None if form is None else signature_of_type(form, "answer")
    schema = read_options(options) if signature is None else json.loads(signature.get_schema_texts()[1])
    asked = Question(
        text=check_name("question", question, "", MAX_TEXT),
        schema=json.dumps(schema),
        audience=Audience.read(to),
        shown=None if show is None else encode_any(dict(show)),
        apart_from=_read_apart_from(apart_from),
        plan=read_plan(escalate, seconds),
        notify=None if notify is None else check_name("notify", notify, "").removeprefix("#"),
    )
    branch = _current_branch("redrive.ask")
    if branch is None:
        raise MisusedStep(
            "redrive.ask() works only in workflows that an engine runs: a run waits for the answer. "
            "In a unit test, use redrive.testing.engine and e.answer()"
        )
    execution = branch.execution
    check_size(asked.shown or "", execution.worker.max_payload, "what a question shows")
    wait = Wait(mode=WaitMode.TASK, names=(), schema=schema, question=question)
    request = WaitRequest(call="ask", wait=wait, types={"": signature}, timeout=seconds, question=asked)
    waiting: Any = execution.calls.waits.wait(branch, request)
    answered: Awaitable[Answer] = execution.call_from_thread(waiting) if branch.threaded else waiting
    return answered


def _read_apart_from(given: Any) -> tuple[str, ...]:
    """Return the names of callers who may not answer; None stands for no name."""
    names = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    return tuple(dict.fromkeys(check_name("apart_from", name, "").lower() for name in names if name))


def _check_event_names(*names: Any) -> tuple[str, ...]:
    # Without any name, the check of an empty one raises the error.
    return tuple(dict.fromkeys(check_event_name(name) for name in names or ("",)))


def _wait(call: str, wait: Wait, timeout: Duration | None, default: Any, kind: Any) -> Any:
    seconds = None if timeout is None else parse_duration(timeout, "timeout")
    branch = _current_branch(f"redrive.{call}")
    if branch is None:
        raise MisusedStep(
            f"redrive.{call}() works only inside a run. In a unit test, use redrive.testing.engine and e.send()"
        )
    execution = branch.execution
    declared = execution.workflow.events
    for name in wait.names:
        check_event_declared(execution.workflow.name, name, declared)
    given = None if kind is None else signature_of_type(kind)
    types = {name: given or (declared or {}).get(name) for name in wait.names}
    if wait.mode is not WaitMode.ANY and (one := types[wait.names[0]]) is not None:
        wait = replace(wait, schema=json.loads(one.get_schema_texts()[1]))
    request = WaitRequest(call=call, wait=wait, types=types, timeout=seconds, default=default)
    waiting: Any = execution.calls.waits.wait(branch, request)
    return execution.call_from_thread(waiting) if branch.threaded else waiting


def set_status(text: str, *, progress: float | None = None, **data: Any) -> None:
    """Set the status of the run, which users see while it runs: a text, a share from 0 to 1, and more data.

    Only the latest status is kept. It works in workflow code and in steps, costs no journal entry, and may be lost in
    a crash. Outside a run it does nothing.
    """
    note = make_status_note(text, progress, data)
    here = current_scope.get()
    if isinstance(here, Branch | Attempt):
        here.execution.status.set(note)


def publish(topic: str, payload: Any, key: str | None = None) -> MessageId:
    """Publish a message to all sinks that subscribe to its topic; return the message's id.

    In workflow code it is recorded: a resumed run does not publish it again. In a step it is committed with
    the step's success, and dropped if the attempt fails. Messages with equal keys arrive in order. Awaiting
    the call is allowed and has no effect.
    """
    here = current_scope.get()
    if isinstance(here, Attempt):
        return here.publish(topic, payload, key)
    if isinstance(here, Branch):
        return MessageId(here.execution.calls.publish(here, topic, payload, key))
    raise MisusedStep(
        "redrive.publish() works only in workflows and steps that an engine runs: a message is committed with "
        "its step. In a thread that the step started, use the publish() method of the step's step_info()"
    )


def now() -> datetime:
    """Return the current time (UTC) and record it: a resumed run gets the same time."""
    branch = _current_branch("redrive.now")
    if branch is None:
        return to_datetime(SystemClock().now())
    execution = branch.execution
    micros: int = execution.calls.record(branch, "redrive.now", execution.worker.backend.now)
    return to_datetime(micros)


def uuid() -> uuid_module.UUID:
    """Return a random UUID and record it: a resumed run gets the same one."""
    branch = _current_branch("redrive.uuid")
    if branch is None:
        return uuid_module.uuid4()
    calls = branch.execution.calls
    return uuid_module.UUID(calls.record(branch, "redrive.uuid", lambda: str(uuid_module.uuid4())))


def random() -> float:
    """Return a random number in [0, 1) and record it: a resumed run gets the same number."""
    branch = _current_branch("redrive.random")
    if branch is None:
        return SystemClock().draw()
    return float(branch.execution.calls.record(branch, "redrive.random", branch.execution.clock.draw))


def patched(name: str) -> bool:
    """Return True if the run takes the new code of a patch, False if it passed this place before the patch existed.

    The answer is recorded, so a run keeps its path. The tasks of a run decide each for itself, unless the code
    that created them did. Outside a run it is True.
    """
    if not (
        isinstance(name, str) and 0 < len(name) <= MAX_PATCH_NAME and name.isprintable() and not {"/", "#"} & {*name}
    ):
        raise InputError(Reason(ReasonCode.PATCH_NAME_INVALID, given=quote(name), longest=MAX_PATCH_NAME))
    branch = _current_branch("redrive.patched")
    return branch is None or branch.execution.calls.patched(branch, name)


class timeout:
    """Limit a block of workflow code, durably: raises TimeoutError inside when the time is up.

    The limit counts from when the block was first entered, over crashes and deploys. A step in flight
    is cancelled.
    """

    def __init__(self, duration: Duration) -> None:
        self._seconds = parse_duration(duration, "timeout")
        self._limit: Any = None
        self._plain: asyncio.Timeout | None = None

    async def __aenter__(self) -> None:
        branch = _current_branch("redrive.timeout")
        if branch is None:
            self._plain = asyncio.timeout(self._seconds)
            await self._plain.__aenter__()
        else:
            self._limit = branch.execution.calls.limit(branch, self._seconds)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._plain is not None:
            await self._plain.__aexit__(kind, error, trace)
            return
        if self._limit.leave(kind):
            raise TimeoutError(f"the time limit of {self._seconds:g} s passed") from error


def _current_branch(what: str) -> Branch | None:
    """Return the branch of the caller; None outside a run."""
    here = current_scope.get()
    if isinstance(here, Attempt):
        raise MisusedStep(
            f"{what} works only in workflow code, and step {here.step!r} called it; "
            "a step is repeated as a whole, so nothing inside it is recorded"
        )
    return here if isinstance(here, Branch) else None


def log_context() -> dict[str, Any]:
    """Return the run, step and attempt of the caller, for log lines; empty outside a run."""
    here = current_scope.get()
    execution = getattr(here, "execution", None)
    if execution is None:
        return {}
    about = describe_run(execution.view)
    return {**about, "step": here.step, "attempt": here.attempt} if isinstance(here, Attempt) else about
