"""Forms that send an event to a run, on its page, made from the schemas that the workflow declares."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from redrive.core.payload.pydantic_adapters import FORMAT_EXAMPLES
from redrive.core.roles import Permission
from redrive.core.waits_and_events import Wait, WaitMode
from redrive.desk.models import Run, StepRecord
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.forms import Form, SentForm, make_page_router, redirect_to
from redrive.server.pages.render import make_view
from redrive.server.request_context import Context, RequestContext, requires
from redrive.server.routes.common import Id
from redrive.store.events import REFUSING_STATUSES

event_routes = make_page_router()
MAX_EVENTS = 50
"""The latest events that the page of a run shows."""

_FIELD_PREFIX = "f:"
_JSON_FIELD = "payload"
# As many languages write 12,50. The comma in 1,000 may separate thousands: the check of the type refuses it.
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,(?![0-9]{3}$)[0-9]+")
_KINDS = {"string": "text", "integer": "number", "number": "number", "boolean": "flag"}
_KINDS_BY_FORMAT = {"date": "date", "decimal": "decimal"}


class EventField(msgspec.Struct, frozen=True):
    """A form field for one value of a payload: text, number, decimal, date, flag, choice or JSON.

    `options` and `default` are JSON texts. `nullable`: null is a value, too. `example`: a text of the format that the
    schema asks for.
    """

    name: str
    label: str
    kind: str
    required: bool = False
    options: tuple[str, ...] = ()
    default: str | None = None
    nullable: bool = False
    example: str = ""

    @property
    def text(self) -> str:
        """The default as it stands in the field."""
        value = None if self.default is None else json.loads(self.default)
        return value if isinstance(value, str) else (self.default or "") if value is not None else ""


class EventForm(msgspec.Struct, frozen=True):
    """The form for one event; without a name the user types it. `waited`: the run waits for this event now."""

    name: str
    fields: tuple[EventField, ...]
    waited: bool = False


def takes_events(run: Run) -> bool:
    """Return True if the run takes events."""
    return run.status not in REFUSING_STATUSES


async def load_event_forms(context: RequestContext, run: Run, waits: Sequence[StepRecord]) -> tuple[EventForm, ...]:
    """Return the forms of a run: of the declared events, or of those that it waits for and of any other."""
    schemas = await _load_schemas(context, run.workflow)
    names = list(dict.fromkeys(name for step in waits for name in _list_awaited_names(step)))
    if schemas is None:
        return (*(_make_form(name, {}, waited=True) for name in names), _make_form("", {}))
    ordered = sorted(schemas, key=lambda name: (name not in names, name))
    return tuple(_make_form(name, schemas[name], waited=name in names) for name in ordered)


async def _load_schemas(context: RequestContext, workflow: str) -> dict[str, Any] | None:
    for item in await context.view.known([workflow]):
        if item.kind == "workflow" and item.events is not None:
            schemas: dict[str, Any] = json.loads(item.events)
            return schemas
    return None


def _list_awaited_names(step: StepRecord) -> Sequence[str]:
    try:
        wait = msgspec.convert(step.input, type=Wait, strict=False)
        return () if wait.mode in (WaitMode.RUN, WaitMode.TASK) else wait.names
    except msgspec.ValidationError:  # the input is hidden or unreadable
        return ()


def _make_form(name: str, schema: Mapping[str, Any], *, waited: bool = False) -> EventForm:
    return EventForm(name, make_fields(schema), waited)


def make_fields(schema: Mapping[str, Any]) -> tuple[EventField, ...]:
    """Return a field for each property of an object with plain values, one field for a plain value, else JSON."""
    named = schema.get("$defs", {})
    plain, nullable = _simplify(schema, named)
    properties = plain.get("properties")
    if plain.get("type") == "object" and properties and isinstance(properties, Mapping) and not nullable:
        required = plain.get("required", ())
        return tuple(
            _make_field(_FIELD_PREFIX + name, name, each, named, name in required) for name, each in properties.items()
        )
    if {"type", "enum", "const"} & plain.keys():
        return (_make_field(_FIELD_PREFIX, "", schema, named, True),)
    return (EventField(_JSON_FIELD, "", "json", True),)


def _simplify(schema: Any, named: Any) -> tuple[Mapping[str, Any], bool]:
    """Return the schema that a reference stands for, and True if it also allows null. Other values allow anything."""
    if not isinstance(schema, Mapping):
        return {}, False
    if isinstance(name := schema.get("$ref"), str):
        found = named.get(name.rpartition("/")[2]) if isinstance(named, Mapping) else None
        return (found, False) if isinstance(found, Mapping) else ({}, False)
    branches = schema.get("anyOf")
    others = [each for each in branches if each != {"type": "null"}] if isinstance(branches, list) else []
    if len(others) == 1 and isinstance(branches, list) and len(branches) == 2:
        return _simplify(others[0], named)[0], True
    return schema, False


def _make_field(name: str, label: str, schema: Any, named: Any, required: bool) -> EventField:
    plain, nullable = _simplify(schema, named)
    given = schema if isinstance(schema, Mapping) else {}
    options = [plain["const"]] if "const" in plain else plain.get("enum")
    kind, format = _KINDS.get(str(plain.get("type")), "json"), plain.get("format")
    kind = _KINDS_BY_FORMAT.get(format, kind) if isinstance(format, str) else kind
    if kind == "flag" and nullable:
        options = [True, False]
    if isinstance(options, list) and options:
        kind = "choice"
    return EventField(
        name,
        label,
        kind,
        required,
        tuple(_to_json(each) for each in options) if isinstance(options, list) else (),
        _to_json(given["default"]) if "default" in given else None,
        nullable,
        FORMAT_EXAMPLES[format][1] if isinstance(format, str) and format in FORMAT_EXAMPLES else "",
    )


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_payload(form: Form, fields: Sequence[EventField]) -> Any:
    """Return the payload that was typed into a form. An empty field is left out, so that the schema names it."""
    if [field.name for field in fields] in ([_JSON_FIELD], [_FIELD_PREFIX]):
        return _read_value(form, fields[0])
    found = {}
    for field in fields:
        is_shown = form.raw(field.name) is not None
        keeps_empty = field.kind == "text" and not field.example and field.text and not field.nullable and is_shown
        if field.kind == "flag" or form.get(field.name) or keeps_empty:
            found[field.label] = _read_value(form, field)
        elif field.nullable and (field.required or (is_shown and field.default not in (None, "null"))):
            found[field.label] = None  # left out, it would get its default
    return found


def _read_value(form: Form, field: EventField) -> Any:
    text = form.raw(field.name) or ""
    if field.kind == "flag":
        return text == "yes"
    if not text.strip() and not (field.kind == "text" and field.label):
        return None
    if field.kind in ("number", "decimal"):
        text = text.strip()
        if _DECIMAL_COMMA.fullmatch(text):
            text = text.replace(",", ".")
    if field.kind in ("text", "date", "decimal"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        if field.kind == "number":
            return text  # the check of the type names the field
        what = field.label or "payload"
        raise InputError(Reason(ReasonCode.NOT_JSON, what=what, why=str(error))) from None


@event_routes.post("/runs/{id}/events", **requires(Permission.START))
async def send_event(request: Request, context: Context, id: Id, form: SentForm) -> Response:
    """Send the event of a form to the run. The form's own id is the key, so a repeated click sends one event."""
    run = await context.desk.runs.get(id)
    name = form.get("event") or form.get("name")
    schemas = await _load_schemas(context, run.workflow)
    schema = {} if schemas is None else schemas.get(name, {})
    payload = read_payload(form, make_fields(schema))
    await context.desk.runs.send(id, name, payload, key=form.maybe("once"), by=context.by)
    return redirect_to(make_view(request).url(f"/runs/{run.id}") + "#events")
