"""Validation of what callers send: ids, names, texts, flags, payloads by type or by schema; and of who may answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from redrive.clock import MICROS
from redrive.core.json_schema import find_faults
from redrive.core.payload import Signature, check_size
from redrive.core.questions import Audience
from redrive.core.redact import MASK, find_masked_paths
from redrive.core.roles import Role
from redrive.core.secret_and_sealed_text import read_sealed_value, sealed_limit
from redrive.errors import InputError, NotAllowed, PayloadError, UnknownWorkflow
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import as_dict, is_record
from redrive.store.accounts import find_people
from redrive.store.port import DeskStore
from redrive.store.questions import QuestionRow
from redrive.store.workers import CatalogueRow, WorkerRow, live_workers

T = TypeVar("T")
LARGE_SIZE = 64 * 1024
"""Values of at least so many characters are handled in a thread: a megabyte takes a tenth of a second."""

_MAX_SHORT_TEXT = 255  # a name is part of the keys of indexes, and of lines of the log
_MAX_LONG_TEXT = 10_000  # a letter is always loaded together with all of its comments and reasons
_MAX_FAULTS = 5
_OVERSIZE_FACTOR = 2  # a text may be so many times too long before it is checked: types may shorten it
_REGISTRATION_TRUST = MICROS  # how long a found workflow is cached: a bulk action asks for each letter
_NUMBERS = (int, float, type(None))
_SIZE_PER_VALUE = 8  # characters that a number, an object or a list counts as


def is_id(value: object) -> bool:
    """Return True for a value that can be an id; no store is asked for any other."""
    return isinstance(value, str) and len(value) <= _MAX_SHORT_TEXT and value.isascii() and value.isprintable()


def require_text(what: str, value: Any) -> str:
    """Return a short text, such as a name."""
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_SHORT_TEXT or not value.isprintable():
        given = quote(value)
        raise InputError(Reason(ReasonCode.SHORT_TEXT_NEEDED, field=what, longest=_MAX_SHORT_TEXT, given=given))
    return value


def require_long_text(what: str, value: Any) -> str:
    """Return a long text that every database can store."""
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_LONG_TEXT:
        given = quote(value)
        raise InputError(Reason(ReasonCode.LONG_TEXT_NEEDED, field=what, longest=_MAX_LONG_TEXT, given=given))
    if "\x00" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise InputError(Reason(ReasonCode.TEXT_UNSTORABLE, field=what))
    return value


def require_bool(what: str, value: Any) -> bool:
    """Return a flag; a value that is only truthy is refused."""
    if not isinstance(value, bool):
        raise InputError(Reason(ReasonCode.FLAG_NEEDED, field=what, given=quote(value)))
    return value


async def require_channel(store: DeskStore, name: str, is_here: Callable[[str], bool]) -> None:
    """Refuse the name of a channel that neither this process nor a worker has registered."""
    if not is_here(name) and not any(item.kind == "channel" for item in await store.known([name])):
        raise InputError(Reason(ReasonCode.CHANNEL_UNKNOWN, channel=name))


async def in_thread_if_large(work: Callable[[], T], size: int) -> T:
    """Call `work`, in a thread if its values are large, and return the result."""
    return work() if size < LARGE_SIZE else await asyncio.to_thread(work)


def measure_size(*parts: Any) -> int:
    """Count the characters of values, rows, or lists of them, up to LARGE_SIZE: the event loop waits for it."""
    found = 0
    pending = list(parts)
    while pending and found < LARGE_SIZE:
        part = pending.pop()
        if isinstance(part, str):
            found += len(part)
            continue
        found += _SIZE_PER_VALUE
        if isinstance(part, _NUMBERS):  # most fields of a row
            continue
        if isinstance(part, tuple | list):
            found += len(part)
            if found < LARGE_SIZE:
                pending.extend(part)
        elif isinstance(part, dict):
            found += len(part)
            if found < LARGE_SIZE:
                pending.extend(part)
                pending.extend(part.values())
        elif is_record(part):
            pending.extend(as_dict(part).values())
    return found


class PayloadChecker:
    """Checks and encodes inputs of workflows and outputs of steps.

    `workflow` and `step` find the signatures of what this process registered. The catalogue has the schemas of
    what others registered; their workers check the value again by type. `workers` loads all workers.
    """

    def __init__(
        self,
        store: DeskStore,
        *,
        workflow: Callable[[str], Signature | None],
        step: Callable[[str], Signature | None],
        workers: Callable[[], Awaitable[list[WorkerRow]]],
        max_payload: int,
    ) -> None:
        self._store = store
        self._workflow = workflow
        self._step = step
        self._workers = workers
        self._max_payload = max_payload
        self._seen: dict[str, int] = {}  # when a workflow was last found to be registered

    async def encode_input(self, workflow: str, value: Any) -> str:
        """Return the input of a workflow as it is stored; InputError names every invalid field."""
        what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=workflow)
        signature = self._workflow(workflow)
        if signature is None:
            schema = (await self._find_catalogue_item("workflow", workflow)).schema_in
            return await self.encode_by_schema(value, json.loads(schema), what)

        def check() -> str:
            _, (args, kwargs) = self._decode(signature.decode, value, what)
            return self._limit_size(signature.encode(args, kwargs), what)

        return await in_thread_if_large(check, measure_size(value))

    def check_sealed(self, text: str, what: Reason) -> str:
        """Return an encrypted value; its sender has checked the value itself. Only its size is checked here."""
        check_size(text, sealed_limit(self._max_payload), what)
        return text

    async def encode_output(self, step: str, value: Any) -> str:
        """Return the output of a step as it is stored."""
        what = Reason(ReasonCode.STEP_OUTPUT, step=step)
        signature = self._step(step)
        if (sealed := read_sealed_value(value)) is not None:
            return self.check_sealed(sealed, what)
        await self._refuse_masked(value, what)
        if signature is None:
            schema = (await self._find_catalogue_item("step", step)).schema_out
            return await self.encode_by_schema(value, json.loads(schema), what)

        def check() -> str:
            text, _ = self._decode(signature.decode_result, value, what)
            return self._limit_size(text, what)

        return await in_thread_if_large(check, measure_size(value))

    async def encode_answer(self, what: Reason, schema: Any, value: Any) -> str:
        """Return the answer of a wait that a user gives, as it is stored."""
        if (sealed := read_sealed_value(value)) is not None:
            return self.check_sealed(sealed, what)
        await self._refuse_masked(value, what)
        return await self.encode_by_schema(value, schema, what)

    async def _refuse_masked(self, value: Any, what: Reason) -> None:
        if masked := await in_thread_if_large(partial(find_masked_paths, value), measure_size(value)):
            paths = tuple(masked[:_MAX_FAULTS])
            raise InputError(Reason(ReasonCode.MASKED_OUTPUT, paths=paths, mask=MASK, what=what))

    async def encode_value(self, signature: Signature, value: Any, what: Reason) -> str:
        """Return a value of a type as it is stored: an instance of the type, or JSON that fits it."""

        def check() -> str:
            try:
                text = signature.encode_result(value)
            except PayloadError:
                text, _ = self._decode(signature.decode_result, value, what)
            return self._limit_size(text, what)

        return await in_thread_if_large(check, measure_size(value))

    async def require_registered(self, workflow: str) -> None:
        """Refuse a workflow that no worker would execute: no code registered it, or no live worker has it."""
        now = self._store.now()
        if self._workflow(workflow) is not None or now - self._seen.get(workflow, 0) < _REGISTRATION_TRUST:
            return
        if not any(item.kind == "workflow" for item in await self._store.known([workflow])):
            raise UnknownWorkflow(Reason(ReasonCode.WORKFLOW_UNREGISTERED, workflow=workflow))
        if await self.is_abandoned(workflow):
            raise UnknownWorkflow(Reason(ReasonCode.WORKFLOW_ABANDONED, workflow=workflow))
        self._seen[workflow] = now

    async def is_abandoned(self, workflow: str) -> bool:
        """Return True if workers are alive and none has this workflow. Without any worker, one may still start."""
        if self._workflow(workflow) is not None:
            return False
        alive = live_workers(await self._workers(), self._store.now())
        theirs = [each.workflows for each in alive if each.workflows]
        return bool(theirs) and not any(workflow in workflows for workflows in theirs)

    async def _find_catalogue_item(self, kind: str, name: str) -> CatalogueRow:
        for item in await self._store.known([name]):
            if item.kind == kind:
                return item
        raise UnknownWorkflow(Reason(ReasonCode.CODE_UNREGISTERED, kind=kind, name=name))

    async def encode_by_schema(self, value: Any, schema: Any, what: Reason) -> str:
        """Return a value as it is stored, if it fits a schema; InputError names the invalid fields."""

        def check() -> str:
            text = self._encode(value, what)
            if found := find_faults(value, schema):
                raise InputError(make_invalid_reason(what, [each.reason for each in found]))
            return self._limit_size(text, what)

        return await in_thread_if_large(check, measure_size(value))

    def _decode(self, decode: Callable[[str], T], value: Any, what: Reason) -> tuple[str, T]:
        """Return a value as text and as its type has it; InputError names every invalid field."""
        text = self._encode(value, what)
        try:
            return text, decode(text)
        except PayloadError as error:
            reason = Reason.of_error(error)
            faults, more = reason.params.get("faults", (reason,)), reason.params.get("more")
            raise InputError(Reason(ReasonCode.VALUE_INVALID, what=what, faults=faults, more=more)) from None

    def _encode(self, value: Any, what: Reason) -> str:
        """Encode a value, and refuse one that is far too large before it is checked."""
        text = encode_json(value, what)
        check_size(text, _OVERSIZE_FACTOR * self._max_payload, what)
        return text

    def _limit_size(self, text: str, what: Reason) -> str:
        check_size(text, self._max_payload, what)
        return text


def make_invalid_reason(what: Reason, faults: Sequence[Reason]) -> Reason:
    """Return the reason for refusing a value; it names the first faults and counts the others."""
    more = len(faults) - _MAX_FAULTS
    named = tuple(faults[:_MAX_FAULTS])
    return Reason(ReasonCode.VALUE_INVALID, what=what, faults=named, more=more if more > 0 else None)


def encode_json(value: Any, what: str | Reason) -> str:
    """Return a value as JSON; InputError if JSON or a database cannot hold it."""
    encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        # The encoder in C holds the GIL until it has written everything, so the event loop would wait even for
        # a thread. Encoding in pieces is slower, but other threads run meanwhile.
        large = measure_size(value) >= LARGE_SIZE
        text = "".join(encoder.iterencode(value)) if large else encoder.encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(Reason(ReasonCode.NOT_JSON, what=what, why=str(error))) from None
    return text


class AudienceCheck:
    """Refuses callers who may not answer.

    `whole`: the store of all tenants, because a token may act in several. `role`: that of the caller.
    """

    def __init__(self, whole: DeskStore, role: Role) -> None:
        self._whole = whole
        self._role = role

    async def find_apart(self, rows: Sequence[QuestionRow], by: str) -> set[str]:
        """Return the ids of the tasks that the caller may not answer, as the same person as one who is kept apart."""
        found: set[str] = set()
        people: dict[str, set[str]] = {}
        for row in rows:
            apart = json.loads(row.apart_from)
            for name in (by, *apart) if apart else ():
                if name not in people:
                    people[name] = await find_people(self._whole.accounts, name)
            if any(people[by] & people[name] for name in apart):
                found.add(row.public_id)
        return found

    def require(self, row: QuestionRow, by: str, apart: Collection[str]) -> bool:
        """Refuse a caller who may not answer. Return True for an OWNER outside the audience, who may."""
        if row.public_id in apart:
            # With its colons, the name of a token looks like a secret, which errors do not show.
            raise NotAllowed(Reason(ReasonCode.TASK_APART, by=by.replace(":", " ")))
        role = None if row.role is None else Role(row.role)
        audience = Audience(role=role, people=tuple(json.loads(row.people)))
        if audience.includes(by, self._role):
            return False
        if self._role is not Role.OWNER:
            raise NotAllowed(Reason(ReasonCode.TASK_NOT_YOURS, audience=str(audience)))
        return True
