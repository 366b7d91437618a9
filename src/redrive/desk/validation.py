"""Whether a value that a person typed fits: by type where the code is at hand, else by its schema."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from redrive.clock import MICROS
from redrive.core.audit import ENGINE
from redrive.core.json_schema import problems
from redrive.core.payload import Signature, check_size
from redrive.core.redact import MASK, masked_paths
from redrive.desk.presenter import LARGE, aside, length
from redrive.errors import InputError, PayloadError, UnknownWorkflow
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.port import People
from redrive.store.workers import KnownItem, WorkerRow, living

__all__ = [
    "Checker",
    "a_flag",
    "as_json",
    "invalid",
    "is_id",
    "long_text",
    "person",
    "reason_given",
    "short_text",
]


_NAMED = 5
_SHORT, _LONG = 255, 10_000
_FAR = 2  # times the largest payload that a text may have before it is checked: types may shorten it
_TRUSTED = MICROS  # how long it is believed that somebody has a workflow: a set asks for each of its letters


class Checker:
    """Checks and encodes inputs of workflows and outputs of steps.

    `workflow` and `step` find the signatures of what this process registered; what others registered is
    known from the catalogue, and their workers check it once more by type. `workers` are all that are known.
    """

    def __init__(
        self,
        store: People,
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
            schema = (await self._known("workflow", workflow)).schema_in
            return await self.fitting(value, json.loads(schema), what)
        return await aside(partial(self._typed_input, signature, value, what), length(value))

    async def output(self, step: str, value: Any) -> str:
        """A step's output as it is stored."""
        what = Reason(ReasonCode.STEP_OUTPUT, step=step)
        signature = self._step(step)
        if masked := await aside(partial(masked_paths, value), length(value)):
            paths = tuple(masked[:_NAMED])
            raise InputError(Reason(ReasonCode.MASKED_OUTPUT, paths=paths, mask=MASK, what=what))
        if signature is None:
            schema = (await self._known("step", step)).schema_out
            return await self.fitting(value, json.loads(schema), what)
        return await aside(partial(self._typed_output, signature, value, what), length(value))

    async def registered(self, workflow: str) -> None:
        """Refuse a workflow that nobody would execute: no code ever registered it, or none does any more."""
        now = self._store.now()
        if self._workflow(workflow) is not None or now - self._seen.get(workflow, 0) < _TRUSTED:
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
        alive = living(await self._workers(), self._store.now())
        theirs = [each.workflows for each in alive if each.workflows]
        return bool(theirs) and not any(workflow in workflows for workflows in theirs)

    async def _known(self, kind: str, name: str) -> KnownItem:
        for item in await self._store.known([name]):
            if item.kind == kind:
                return item
        raise UnknownWorkflow(Reason(ReasonCode.CODE_UNREGISTERED, kind=kind, name=name))

    async def fitting(self, value: Any, schema: Any, what: Reason) -> str:
        """A value as it is stored, if it fits a schema; InputError says where it does not."""
        return await aside(partial(self._fitting, value, schema, what), length(value))

    def _typed_input(self, signature: Signature, value: Any, what: Reason) -> str:
        text = self._text(value, what)
        try:
            args, kwargs = signature.decode(text)
        except PayloadError as error:
            raise InputError(_unfitting(what, error)) from None
        return self._sized(signature.encode(args, kwargs), what)

    def _typed_output(self, signature: Signature, value: Any, what: Reason) -> str:
        text = self._text(value, what)
        try:
            signature.decode_result(text)
        except PayloadError as error:
            raise InputError(_unfitting(what, error)) from None
        return self._sized(text, what)

    def _fitting(self, value: Any, schema: Any, what: Reason) -> str:
        text = self._text(value, what)
        found = problems(value, schema)
        if found:
            raise InputError(invalid(what, [each.reason for each in found]))
        return self._sized(text, what)

    def _text(self, value: Any, what: Reason) -> str:
        """Write a value, and refuse one that is far too large before anything looks into it."""
        text = as_json(value, what)
        check_size(text, _FAR * self._max_payload, what)
        return text

    def _sized(self, text: str, what: Reason) -> str:
        check_size(text, self._max_payload, what)
        return text


def invalid(what: Reason, faults: Sequence[Reason]) -> Reason:
    """Return the reason for refusing a value; it names the first faults and counts the others."""
    more = len(faults) - _NAMED
    named = tuple(faults[:_NAMED])
    return Reason(ReasonCode.VALUE_INVALID, what=what, faults=named, more=more if more > 0 else None)


def _unfitting(what: Reason, error: PayloadError) -> Reason:
    """Return the reason for refusing a value that a codec cannot read."""
    reason = Reason.of_error(error)
    faults, more = reason.params.get("faults", (reason,)), reason.params.get("more")
    return Reason(ReasonCode.VALUE_INVALID, what=what, faults=faults, more=more)


def as_json(value: Any, what: str | Reason) -> str:
    """A value as it is stored; InputError if JSON or a database cannot hold it."""
    encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        # The encoder in C holds the interpreter's lock until it has written everything, so that the event
        # loop would wait for a thread as it would for itself. In pieces it is slower, and others run.
        large = length(value) >= LARGE
        text = "".join(encoder.iterencode(value)) if large else encoder.encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(Reason(ReasonCode.NOT_JSON, what=what, why=str(error))) from None
    return text


def is_id(value: object) -> bool:
    """False for what no store could be asked for, or nobody would have as an id."""
    return isinstance(value, str) and len(value) <= _SHORT and value.isascii() and value.isprintable()


def short_text(what: str, value: Any) -> str:
    """A name of somebody or something."""
    if not isinstance(value, str) or not value.strip() or len(value) > _SHORT or not value.isprintable():
        given = quote(value)
        raise InputError(Reason(ReasonCode.SHORT_TEXT_NEEDED, field=what, longest=_SHORT, given=given))
    return value


def person(by: Any) -> str:
    """Who does something. The engine's own name is nobody else's."""
    if isinstance(by, str) and unicodedata.normalize("NFKC", by).strip().casefold() == ENGINE:
        raise InputError(Reason(ReasonCode.ENGINE_NAME_TAKEN, name=ENGINE))
    return short_text("by", by)


def long_text(what: str, value: Any) -> str:
    """What somebody says in words: every database can store it."""
    if not isinstance(value, str) or not value.strip() or len(value) > _LONG:
        given = quote(value)
        raise InputError(Reason(ReasonCode.LONG_TEXT_NEEDED, field=what, longest=_LONG, given=given))
    if "\x00" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise InputError(Reason(ReasonCode.TEXT_UNSTORABLE, field=what))
    return value


def reason_given(reason: Any) -> str | None:
    """Why somebody does something, if they said so."""
    return None if reason is None else long_text("reason", reason)


def a_flag(what: str, value: Any) -> bool:
    """True or False; a word that happens to be true does not count."""
    if not isinstance(value, bool):
        raise InputError(Reason(ReasonCode.FLAG_NEEDED, field=what, given=quote(value)))
    return value
