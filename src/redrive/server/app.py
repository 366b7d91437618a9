"""The ASGI application: the API, the dashboard, health checks, metrics and the OpenAPI document."""

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
from redrive.reasons import Reason, ReasonCode
from redrive.server import problem_responses
from redrive.server.limits import Limits
from redrive.server.pages.accounts import members_routes, session_routes
from redrive.server.pages.audit_notifications import activity_routes
from redrive.server.pages.bulk import bulk_routes as bulk_pages
from redrive.server.pages.causes import cause_routes
from redrive.server.pages.circuits_policies_outbox import operations_routes
from redrive.server.pages.error_pages import install_error_pages, install_missing_page
from redrive.server.pages.event_forms import event_routes
from redrive.server.pages.forms import TenantEntryLog
from redrive.server.pages.letters import letter_routes as letter_pages
from redrive.server.pages.lists import list_routes
from redrive.server.pages.overview import health_page_routes, overview_routes
from redrive.server.pages.render import static_routes
from redrive.server.pages.replay import replay_routes
from redrive.server.pages.runs import run_routes as run_pages
from redrive.server.pages.search import search_routes
from redrive.server.pages.tasks import task_pages
from redrive.server.pages.workflows import workflow_routes
from redrive.server.problem_responses import PROBLEM_MEDIA_TYPE, Problem
from redrive.server.request_context import Service, check_permissions, get_context, get_service, identify_sender
from redrive.server.request_guard import RequestGuard
from redrive.server.routes.accounts import account_routes
from redrive.server.routes.desk import (
    circuit_routes,
    notification_routes,
    outbox_routes,
    schedule_routes,
    settings_routes,
    task_routes,
    view_routes,
)
from redrive.server.routes.letters import bulk_routes, letter_routes
from redrive.server.routes.runs import run_routes, saga_routes
from redrive.server.routes.workers import WorkerDoor, worker_routes
from redrive.settings import API_PREFIX, PAGES_PREFIX

health_routes = APIRouter(tags=["health"])
metrics_routes = APIRouter(include_in_schema=False)


class Health(BaseModel):
    """The state of the server."""

    status: Literal["ok"] = "ok"


@health_routes.get("/healthz", openapi_extra={"x-open": True})
async def health() -> Health:
    """Answer if the process is alive."""
    return Health()


@health_routes.get("/readyz", openapi_extra={"x-open": True})
async def readiness(request: Request) -> Health:
    """Answer if the process is alive and the store responds."""
    await get_service(request).app.runtime.store.paused()
    return Health()


@metrics_routes.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return the counters of this process and the state of the store, for Prometheus."""
    app = get_service(request).app
    token = app.settings.metrics_token
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    if not token or not hmac.compare_digest(given.encode(), token.encode()):
        check_permissions((await get_context(request)).principal, {"x-permissions": [Permission.MANAGE_TENANTS]})
    if app.runtime.counters is None:
        raise NotFound(Reason(ReasonCode.METRICS_OFF))
    from redrive.observability.metrics import make_registry, render_metrics

    found = await app.runtime.stats_cache.get()
    registry = make_registry(app.runtime.counters, lambda: found)
    body, content_type = render_metrics(registry, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


document_routes = APIRouter(include_in_schema=False)
_PROBLEM_RESPONSE = {
    "description": "A problem: what was wrong, and what to do.",
    "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_BEARER_SCHEME = {"type": "http", "scheme": "bearer", "description": "An API key or a signed token."}
_COOKIE_SCHEME = {
    "type": "apiKey",
    "in": "cookie",
    "name": "__Host-redrive_session",
    "description": (
        "Set by `POST /login`. Without https the name has no `__Host-`. It ends in `_` and the port, unless that is "
        "443 or 80."
    ),
}
_TENANT_PARAMETER = {
    "name": "tenant",
    "in": "query",
    "required": False,
    "description": "For owners: the tenant to work in; `*` means all. Each use is written to the audit log.",
    "schema": {"type": "string", "maxLength": 255},
}
_KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same request with the same key is carried out once and gets the same response.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
}


def make_openapi_document(api: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the permission of each route, and problems instead of FastAPI's errors."""
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
                schemas.update(operation.pop("x-schemas", {}))
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = _PROBLEM_RESPONSE
                parameters = operation.setdefault("parameters", [])
                if not operation.get("x-open"):
                    operation["security"] = [{"token": []}, {"session": []}]
                    if operation["tags"] != worker_routes.tags:
                        parameters.append(_TENANT_PARAMETER)
                if (
                    method == "post"
                    and operation["tags"] != worker_routes.tags
                    and not any(each["name"].lower() == "idempotency-key" for each in parameters)
                ):
                    parameters.append(_KEY_PARAMETER)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        api.openapi_schema = made
    return api.openapi_schema


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
    """Show the OpenAPI document as a page that loads nothing from other servers."""
    groups: dict[str, list[str]] = {}
    for path, methods in make_openapi_document(request.app)["paths"].items():
        for method, operation in methods.items():
            description = escape(operation.get("description", ""))
            text = f"<h3><code>{method.upper()} {escape(path)}</code></h3><p>{description}</p>"
            names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
            for label, values in (("permission", operation.get("x-permissions")), ("query", names)):
                if values:
                    text += f"<p><small>{label}: {escape(', '.join(values))}</small></p>"
            groups.setdefault(operation["tags"][0], []).append(f"<article>{text}</article>")
    parts = [f"<h2>{escape(tag)}</h2>{''.join(entries)}" for tag, entries in groups.items()]
    root = escape(request.scope.get("root_path", ""))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>Redrive API</title><link rel="stylesheet" href="{root}/api/docs.css">'
    )
    intro = f'<h1>Redrive API</h1><p>Full document: <a href="{root}{API_PREFIX}/openapi.json">OpenAPI 3.1</a>.</p>'
    main = f"<main>{intro}{''.join(parts)}</main>"
    html = f'<!doctype html><html lang="en"><head>{head}</head><body>{main}</body></html>'
    policy = "default-src 'none'; style-src 'self'; frame-ancestors 'none'"
    return HTMLResponse(html, headers={"Content-Security-Policy": policy})


@document_routes.get("/api/docs.css")
async def send_document_style() -> Response:
    return Response(_DOCUMENT_STYLE, media_type="text/css")


API_ROUTES = (
    *(run_routes, saga_routes, task_routes, bulk_routes, letter_routes, circuit_routes, outbox_routes, settings_routes),
    *(schedule_routes, view_routes, notification_routes, account_routes, worker_routes),
)
"""The routes of the API. Paths are tried in this order: `/workflow-dlq/replay` comes before `/workflow-dlq/{id}`."""

PAGE_ROUTES = (
    *(
        session_routes,
        static_routes,
        overview_routes,
        cause_routes,
        letter_pages,
        replay_routes,
        bulk_pages,
        run_pages,
        task_pages,
    ),
    *(event_routes, operations_routes, workflow_routes, activity_routes, members_routes, list_routes, search_routes),
    health_page_routes,
)


def build_api(app: Redrive, *, limits: Limits | None = None, poll: float = 1.0) -> FastAPI:
    """Return the API and the dashboard of an app. The caller opens and closes the app."""
    limits = limits or Limits()
    service = Service(app, limits, poll)
    api = FastAPI(title="Redrive", openapi_url=f"{API_PREFIX}/openapi.json", docs_url=None, redoc_url=None)
    pages = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for each in (api, pages):
        each.state.service = service
        each.state.redact = service.redact
    pages.state.entries = TenantEntryLog()
    # `include_router` would build every route once more, during the first request.
    for routes in (*API_ROUTES, health_routes, metrics_routes, document_routes):
        api.router.routes.extend(routes.routes)
    for routes in PAGE_ROUTES:
        pages.router.routes.extend(routes.routes)
    install_error_pages(pages)
    api.add_api_route("/", _redirect_to_pages, include_in_schema=False)
    api.mount(PAGES_PREFIX, pages)
    problem_responses.install_error_handlers(api)
    install_missing_page(api, pages)
    api.openapi = lambda: make_openapi_document(api)  # type: ignore[method-assign]
    guard: Any = RequestGuard
    door: Any = WorkerDoor
    api.add_middleware(door)
    rules = {"max_payload": app.settings.max_payload, "strict_transport": app.settings.base_url.startswith("https:")}
    api.add_middleware(guard, limits=limits, identify=partial(identify_sender, service), **rules)
    return api


async def _redirect_to_pages(request: Request) -> RedirectResponse:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PAGES_PREFIX}/")
