"""Putting the API and the pages together."""

from __future__ import annotations

import hmac
from functools import partial
from html import escape
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel

from redrive.app import Redrive
from redrive.core.roles import Permission
from redrive.errors import NotFound
from redrive.server import problems
from redrive.server.limits import Limits, RequestGuard
from redrive.server.pages.site import build_pages
from redrive.server.problems import PROBLEM_MEDIA_TYPE, Problem
from redrive.server.request import Service, check_permissions, get_context, get_service, identify_sender
from redrive.server.routes.accounts import account_routes
from redrive.server.routes.letters import bulk_routes, letter_routes
from redrive.server.routes.operations import circuit_routes, notification_routes, outbox_routes, schedule_routes
from redrive.server.routes.runs import run_routes, saga_routes
from redrive.server.routes.settings import settings_routes, view_routes
from redrive.settings import API_PREFIX, PAGES_PREFIX

# -- Whether the server lives, and whether it can work. Outside the prefix, without a credential ---------


health_routes = APIRouter(tags=["health"])


class Health(BaseModel):
    """The state of the server."""

    status: Literal["ok"] = "ok"


@health_routes.get("/healthz", openapi_extra={"x-open": True})
async def health() -> Health:
    """Whether the process answers."""
    return Health()


@health_routes.get("/readyz", openapi_extra={"x-open": True})
async def readiness(request: Request) -> Health:
    """Whether the store answers, too."""
    await get_service(request).app.runtime.store.paused()
    return Health()


# -- `GET /metrics`, outside the prefix: what Prometheus reads -------------------------------------------


metrics_routes = APIRouter(include_in_schema=False)


@metrics_routes.get("/metrics")
async def metrics(request: Request) -> Response:
    """What this process counted, and how the store stands."""
    if not _has_metrics_token(request):
        check_permissions((await get_context(request)).principal, {"x-permissions": [Permission.MANAGE_TENANTS]})
    runtime = get_service(request).app.runtime
    if runtime.tally is None:
        raise NotFound('there are no metrics here: pip install "redrive[metrics]", and REDRIVE_METRICS is not off')
    from redrive.observability.metrics import make_registry, render_metrics

    found = await runtime.recent.get()
    body, content_type = render_metrics(make_registry(runtime.tally, lambda: found), request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


def _has_metrics_token(request: Request) -> bool:
    wanted = get_service(request).app.settings.metrics_token
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())


# -- The OpenAPI document, and a page that shows it to people without a request to anybody else's se -----


document_routes = APIRouter(include_in_schema=False)
_PROBLEM_SCHEMA = {"$ref": "#/components/schemas/Problem"}
_BEARER_SCHEME = {"type": "http", "scheme": "bearer", "description": "An API key or a signed token."}
_COOKIE_SCHEME = {
    "type": "apiKey",
    "in": "cookie",
    "name": "__Host-redrive_session",
    "description": "Set by `POST /login`. Over plain http its name is `redrive_session_` and the port.",
}
_TENANT_PARAMETER = {
    "name": "tenant",
    "in": "query",
    "required": False,
    "description": "For owners: the tenant to work in; `*` means all. Each use is noted in the audit log.",
    "schema": {"type": "string", "maxLength": 255},
}
_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same request with the same key is carried out once, and answered alike.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
}


def make_openapi_document(api: FastAPI) -> dict[str, Any]:
    """The document: every route with its permission, and problems in place of FastAPI's own errors."""
    if api.openapi_schema is None:
        made = get_openapi(
            title="Redrive", version="1", summary="Durable workflows whose speciality is failure.", routes=api.routes
        )
        schemas = made["components"]["schemas"]
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schemas["Problem"].pop("$defs", {}))
        made["components"]["securitySchemes"] = {"token": _BEARER_SCHEME, "session": _COOKIE_SCHEME}
        for path in made["paths"].values():
            for method, operation in path.items():
                _complete_operation(method, operation)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        api.openapi_schema = made
    return api.openapi_schema


def _complete_operation(method: str, operation: dict[str, Any]) -> None:
    operation["responses"].pop("422", None)
    operation["responses"]["default"] = {
        "description": "A problem: what was wrong, and what to do.",
        "content": {PROBLEM_MEDIA_TYPE: {"schema": _PROBLEM_SCHEMA}},
    }
    parameters = operation.setdefault("parameters", [])
    if not operation.get("x-open"):
        operation["security"] = [{"token": []}, {"session": []}]
        parameters.append(_TENANT_PARAMETER)
    if method == "post" and not any(each["name"].lower() == "idempotency-key" for each in parameters):
        parameters.append(_KEY_PARAMETER)


_DOCUMENT_STYLE = """
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


@document_routes.get("/api/docs")
async def show_document(request: Request) -> HTMLResponse:
    """The document for people."""
    made = make_openapi_document(request.app)
    groups: dict[str, list[str]] = {}
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append(_render_operation(method, path, operation))
    parts = [f"<h2>{escape(tag)}</h2>{''.join(entries)}" for tag, entries in groups.items()]
    root = escape(request.scope.get("root_path", ""))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>Redrive API</title><link rel="stylesheet" href="{root}/api/docs.css">'
    )
    intro = f'<h1>Redrive API</h1><p>The whole of it: <a href="{root}{API_PREFIX}/openapi.json">OpenAPI 3.1</a>.</p>'
    main = f"<main>{intro}{''.join(parts)}</main>"
    html = f'<!doctype html><html lang="en"><head>{head}</head><body>{main}</body></html>'
    policy = "default-src 'none'; style-src 'self'; frame-ancestors 'none'"
    return HTMLResponse(html, headers={"Content-Security-Policy": policy})


@document_routes.get("/api/docs.css")
async def send_document_style() -> Response:
    """How the page looks."""
    return Response(_DOCUMENT_STYLE, media_type="text/css")


def _render_operation(method: str, path: str, operation: dict[str, Any]) -> str:
    names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    needs = ", ".join(operation.get("x-permissions", ()))
    asks = f"<p><small>permission: {escape(needs)}</small></p>" if needs else ""
    takes = f"<p><small>query: {escape(', '.join(names))}</small></p>" if names else ""
    said = escape(operation.get("description", ""))
    return f"<article><h3><code>{method.upper()} {escape(path)}</code></h3><p>{said}</p>{asks}{takes}</article>"


# -- Putting the API and the pages together --------------------------------------------------------------


API_ROUTES = (
    run_routes,
    saga_routes,
    bulk_routes,
    letter_routes,
    circuit_routes,
    outbox_routes,
    settings_routes,
    schedule_routes,
    view_routes,
    notification_routes,
    account_routes,
)
"""In the order in which paths are tried: `/workflow-dlq/replay` is no letter's id."""


def build_api(app: Redrive, *, limits: Limits | None = None, poll: float = 1.0) -> FastAPI:
    """The API and the pages of an app, which whoever serves it opens and closes."""
    limits = limits or Limits()
    api = FastAPI(title="Redrive", openapi_url=f"{API_PREFIX}/openapi.json", docs_url=None, redoc_url=None)
    api.state.service = Service(app, limits, poll)
    api.state.redact = api.state.service.redact
    for routes in API_ROUTES:
        api.include_router(routes, prefix=API_PREFIX)
    api.include_router(health_routes)
    api.include_router(metrics_routes)
    api.include_router(document_routes)
    api.add_api_route("/", _redirect_to_pages, include_in_schema=False)
    api.mount(PAGES_PREFIX, build_pages(api.state.service))
    problems.install_error_handlers(api)
    api.openapi = lambda: make_openapi_document(api)  # type: ignore[method-assign]
    guard: Any = RequestGuard
    api.add_middleware(
        guard,
        limits=limits,
        identify=partial(identify_sender, api.state.service),
        max_payload=app.settings.max_payload,
        strict_transport=app.settings.base_url.startswith("https:"),
    )
    return api


async def _redirect_to_pages(request: Request) -> RedirectResponse:
    """Whoever comes to the door is shown to the pages."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PAGES_PREFIX}/")
