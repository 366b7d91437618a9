"""Whether a value that a person typed fits: by type where the code is at hand, else by its schema."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from redrive.clock import MICROS
from redrive.core.audit import ENGINE_ACTOR
from redrive.core.json_schema import find_faults
from redrive.core.payload import Signature, check_size
from redrive.core.redact import MASK, find_masked_paths
from redrive.desk.presenter import LARGE_SIZE, in_thread_if_large, measure_size
from redrive.errors import InputError, PayloadError, UnknownWorkflow
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.port import DeskStore
from redrive.store.workers import CatalogueRow, WorkerRow, live_workers

_MAX_FAULTS = 5
_MAX_SHORT_TEXT, _MAX_LONG_TEXT = 255, 10_000
_OVERSIZE_FACTOR = 2  # times the largest payload that a text may have before it is checked: types may shorten it
_REGISTRATION_TRUST = MICROS  # how long it is believed that somebody has a workflow: a set asks for each of its letters


class PayloadChecker:
    """Checks and encodes inputs of workflows and outputs of steps.

    `workflow` and `step` find the signatures of what this process registered; what others registered is
    known from the catalogue, and their workers check it once more by type. `workers` are all that are known.
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
        self._seen: dict[str, int] = {}  # when it was found that somebody has a workflow

    async def input(self, workflow: str, value: Any) -> str:
        """A workflow's input as it is stored; InputError names every field that does not fit."""
        what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=workflow)
        signature = self._workflow(workflow)
        if signature is None:
            schema = (await self._find_catalogue_item("workflow", workflow)).schema_in
            return await self.fitting(value, json.loads(schema), what)
        return await in_thread_if_large(partial(self._check_typed_input, signature, value, what), measure_size(value))

    async def output(self, step: str, value: Any) -> str:
        """A step's output as it is stored."""
        what = Reason(ReasonCode.STEP_OUTPUT, step=step)
        signature = self._step(step)
        if masked := await in_thread_if_large(partial(find_masked_paths, value), measure_size(value)):
            paths = tuple(masked[:_MAX_FAULTS])
            raise InputError(Reason(ReasonCode.MASKED_OUTPUT, paths=paths, mask=MASK, what=what))
        if signature is None:
            schema = (await self._find_catalogue_item("step", step)).schema_out
            return await self.fitting(value, json.loads(schema), what)
        return await in_thread_if_large(partial(self._check_typed_output, signature, value, what), measure_size(value))

    async def registered(self, workflow: str) -> None:
        """Refuse a workflow that nobody would execute: no code ever registered it, or none does any more."""
        now = self._store.now()
        if self._workflow(workflow) is not None or now - self._seen.get(workflow, 0) < _REGISTRATION_TRUST:
            return
        if not any(item.kind == "workflow" for item in await self._store.known([workflow])):
            raise UnknownWorkflow(Reason(ReasonCode.WORKFLOW_UNREGISTERED, workflow=workflow))
        if await self.is_abandoned(workflow):
            raise UnknownWorkflow(Reason(ReasonCode.WORKFLOW_ABANDONED, workflow=workflow))
        self._seen[workflow] = now

    async def is_abandoned(self, workflow: str) -> bool:
        """True if workers live and none of them has this workflow. Where nobody lives, somebody may come."""
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

    async def fitting(self, value: Any, schema: Any, what: Reason) -> str:
        """A value as it is stored, if it fits a schema; InputError says where it does not."""
        return await in_thread_if_large(partial(self._check_schema, value, schema, what), measure_size(value))

    def _check_typed_input(self, signature: Signature, value: Any, what: Reason) -> str:
        text = self._encode(value, what)
        try:
            args, kwargs = signature.decode(text)
        except PayloadError as error:
            raise InputError(_make_decode_reason(what, error)) from None
        return self._limit_size(signature.encode(args, kwargs), what)

    def _check_typed_output(self, signature: Signature, value: Any, what: Reason) -> str:
        text = self._encode(value, what)
        try:
            signature.decode_result(text)
        except PayloadError as error:
            raise InputError(_make_decode_reason(what, error)) from None
        return self._limit_size(text, what)

    def _check_schema(self, value: Any, schema: Any, what: Reason) -> str:
        text = self._encode(value, what)
        found = find_faults(value, schema)
        if found:
            raise InputError(make_invalid_reason(what, [each.reason for each in found]))
        return self._limit_size(text, what)

    def _encode(self, value: Any, what: Reason) -> str:
        """Write a value, and refuse one that is far too large before anything looks into it."""
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


def _make_decode_reason(what: Reason, error: PayloadError) -> Reason:
    """Return the reason for refusing a value that a codec cannot read."""
    reason = Reason.of_error(error)
    faults, more = reason.params.get("faults", (reason,)), reason.params.get("more")
    return Reason(ReasonCode.VALUE_INVALID, what=what, faults=faults, more=more)


def encode_json(value: Any, what: str | Reason) -> str:
    """A value as it is stored; InputError if JSON or a database cannot hold it."""
    encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        # The encoder in C holds the interpreter's lock until it has written everything, so that the event
        # loop would wait for a thread as it would for itself. In pieces it is slower, and others run.
        large = measure_size(value) >= LARGE_SIZE
        text = "".join(encoder.iterencode(value)) if large else encoder.encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(Reason(ReasonCode.NOT_JSON, what=what, why=str(error))) from None
    return text


def is_id(value: object) -> bool:
    """False for what no store could be asked for, or nobody would have as an id."""
    return isinstance(value, str) and len(value) <= _MAX_SHORT_TEXT and value.isascii() and value.isprintable()


def require_text(what: str, value: Any) -> str:
    """A name of somebody or something."""
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_SHORT_TEXT or not value.isprintable():
        given = quote(value)
        raise InputError(Reason(ReasonCode.SHORT_TEXT_NEEDED, field=what, longest=_MAX_SHORT_TEXT, given=given))
    return value


def require_actor(by: Any) -> str:
    """Who does something. The engine's own name is nobody else's."""
    if isinstance(by, str) and unicodedata.normalize("NFKC", by).strip().casefold() == ENGINE_ACTOR:
        raise InputError(Reason(ReasonCode.ENGINE_NAME_TAKEN, name=ENGINE_ACTOR))
    return require_text("by", by)


def require_long_text(what: str, value: Any) -> str:
    """What somebody says in words: every database can store it."""
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_LONG_TEXT:
        given = quote(value)
        raise InputError(Reason(ReasonCode.LONG_TEXT_NEEDED, field=what, longest=_MAX_LONG_TEXT, given=given))
    if "\x00" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise InputError(Reason(ReasonCode.TEXT_UNSTORABLE, field=what))
    return value


def check_reason(reason: Any) -> str | None:
    """Why somebody does something, if they said so."""
    return None if reason is None else require_long_text("reason", reason)


def require_bool(what: str, value: Any) -> bool:
    """True or False; a word that happens to be true does not count."""
    if not isinstance(value, bool):
        raise InputError(Reason(ReasonCode.FLAG_NEEDED, field=what, given=quote(value)))
    return value
