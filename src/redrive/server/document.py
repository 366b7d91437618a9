"""The OpenAPI document, and a page that shows it to people without a request to anybody else's server."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse

from redrive.core.addresses import API
from redrive.server.problems import MEDIA, Problem

__all__ = ["document", "document_page"]

document_page = APIRouter(include_in_schema=False)

_PROBLEM = {"$ref": "#/components/schemas/Problem"}
_BEARER = {"type": "http", "scheme": "bearer", "description": "An API key or a signed token."}
_COOKIE = {
    "type": "apiKey",
    "in": "cookie",
    "name": "__Host-redrive_session",
    "description": "Set by `POST /login`. Over plain http its name is `redrive_session_` and the port.",
}
_TENANT = {
    "name": "tenant",
    "in": "query",
    "required": False,
    "description": "For owners: the tenant to work in; `*` means all. Each use is noted in the audit log.",
    "schema": {"type": "string", "maxLength": 255},
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same request with the same key is carried out once, and answered alike.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
}


def document(api: FastAPI) -> dict[str, Any]:
    """The document: every route with its permission, and problems in place of FastAPI's own errors."""
    if api.openapi_schema is None:
        made = get_openapi(
            title="Redrive",
            version="1",
            summary="Durable workflows whose speciality is failure.",
            routes=api.routes,
        )
        schemas = made["components"]["schemas"]
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schemas["Problem"].pop("$defs", {}))
        made["components"]["securitySchemes"] = {"token": _BEARER, "session": _COOKIE}
        for path in made["paths"].values():
            for method, operation in path.items():
                _finish(method, operation)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        api.openapi_schema = made
    return api.openapi_schema


def _finish(method: str, operation: dict[str, Any]) -> None:
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = {
        "description": "A problem: what was wrong, and what to do.",
        "content": {MEDIA: {"schema": _PROBLEM}},
    }
    parameters = operation.setdefault("parameters", [])
    if not operation.get("x-open"):
        operation["security"] = [{"token": []}, {"session": []}]
        parameters.append(_TENANT)
    if method == "post" and not any(each["name"].lower() == "idempotency-key" for each in parameters):
        parameters.append(_KEY)


_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
html { background: Canvas; color: CanvasText; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid; text-transform: capitalize; }
article { margin: 1.5rem 0; }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
h3 { margin: 0; font-size: 1rem; }
p { margin: .2rem 0; }
small { opacity: .75; }
"""


@document_page.get("/api/docs")
async def show(request: Request) -> HTMLResponse:
    """The document for people."""
    made = document(request.app)
    groups: dict[str, list[str]] = {}
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append(_entry(method, path, operation))
    parts = [f"<h2>{escape(tag)}</h2>{''.join(entries)}" for tag, entries in groups.items()]
    root = escape(request.scope.get("root_path", ""))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>Redrive API</title><link rel="stylesheet" href="{root}/api/docs.css">'
    )
    intro = f'<h1>Redrive API</h1><p>The whole of it: <a href="{root}{API}/openapi.json">OpenAPI 3.1</a>.</p>'
    main = f"<main>{intro}{''.join(parts)}</main>"
    html = f'<!doctype html><html lang="en"><head>{head}</head><body>{main}</body></html>'
    policy = "default-src 'none'; style-src 'self'; frame-ancestors 'none'"
    return HTMLResponse(html, headers={"Content-Security-Policy": policy})


@document_page.get("/api/docs.css")
async def style() -> Response:
    """How the page looks."""
    return Response(_STYLE, media_type="text/css")


def _entry(method: str, path: str, operation: dict[str, Any]) -> str:
    names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    needs = ", ".join(operation.get("x-permissions", ()))
    asks = f"<p><small>permission: {escape(needs)}</small></p>" if needs else ""
    takes = f"<p><small>query: {escape(', '.join(names))}</small></p>" if names else ""
    said = escape(operation.get("description", ""))
    return (
        f"<article><h3><code>{method.upper()} {escape(path)}</code></h3><p>{said}</p>{asks}{takes}</article>"
    )
