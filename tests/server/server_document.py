"""The OpenAPI document as a list of operations, with sample requests generated from their schemas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from redrive import Redrive
from redrive.core.roles import ROLE_PERMISSIONS, Role
from redrive.server import api


@dataclass(frozen=True)
class Operation:
    """A method of a path."""

    method: str
    path: str
    about: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method.upper()} {self.path.removeprefix('/api/v1')}"

    @property
    def permissions(self) -> set[str]:
        return set(self.about.get("x-permissions", ()))

    def allows(self, role: Role) -> bool:
        """Return True if the permission table allows this operation to a role that does not see payloads."""
        return self.permissions <= ROLE_PERMISSIONS[role]

    @property
    def is_open(self) -> bool:
        return bool(self.about.get("x-open"))

    def url(self, ids: dict[str, str]) -> str:
        """Return the path with the ids of a tenant, and with the query parameters that the operation requires."""
        values = {"id": ids[_KIND.get(self.path.split("/")[3].partition(":")[0], "run")], **ids}
        values |= {
            "workflow": "remind",
            "list": "letters",
            "ticket": "1.1.forged",
            "name": _NAMED.get(self.path.split("/")[3], ids["tenant"]),
        }
        return self.path.format_map(values)

    def body(self) -> Any:
        """Return the smallest valid body; None if the operation takes no body."""
        content = self.about.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        return None if schema is None else sample(schema)


_KIND = {
    "runs": "run",
    "workflow-dlq": "letter",
    "bulk-replays": "set",
    "users": "user",
    "tokens": "token",
    "tenants": "tenant",
    "outbox": "message",
}
_NAMED = {"workflows": "fulfil", "sinks": "nowhere", "schedules": "daily"}
_NAMES = {
    "workflow": "fulfil",
    "role": "VIEWER",
    "email": "new@example.org",
    "runs": [{"workflow": "fulfil", "input": {"order": "A-9"}}],
    "input": {"order": "A-9"},
    "policy": {"max_retries": 2},
    "text": "a word",
    "name": "spare",
    "output": "paid",
    "failures": 7,
    "rate": "5/s",
    "query": "code=timeout",
}


@cache
def document() -> dict[str, Any]:
    found: dict[str, Any] = api(Redrive("sqlite:///:memory:")).openapi()
    return found


def operations() -> list[Operation]:
    """Return every operation of the document."""
    return [
        Operation(method, path, about)
        for path, methods in document()["paths"].items()
        for method, about in methods.items()
    ]


def sample(schema: dict[str, Any]) -> Any:
    """Return a valid value for a schema, with the required fields only."""
    if "$ref" in schema:
        schema = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return sample(schema["anyOf"][0])
    if "default" in schema:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        needed = schema.get("required", list(properties)[: schema.get("minProperties", 0)])
        if "filter" in properties:
            return {"filter": {"code": "no such code"}}
        return {name: _NAMES.get(name) or sample(properties[name]) for name in needed}
    return {"string": "x", "integer": 1, "number": 1, "boolean": False, "array": []}.get(str(kind))
