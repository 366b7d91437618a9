"""Putting the API and the pages together."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse

from redrive.app import Redrive
from redrive.core.addresses import API, PAGES
from redrive.server import problems
from redrive.server.asking import identify_sender
from redrive.server.document import document, document_page
from redrive.server.health import health_routes
from redrive.server.limits import Guard, Limits
from redrive.server.metrics import metrics_routes
from redrive.server.pages.site import site
from redrive.server.routes.circuits import circuit_routes
from redrive.server.routes.letters import letter_routes
from redrive.server.routes.notifications import notification_routes
from redrive.server.routes.outbox import outbox_routes
from redrive.server.routes.people import account_routes
from redrive.server.routes.runs import run_routes
from redrive.server.routes.sagas import saga_routes
from redrive.server.routes.schedules import schedule_routes
from redrive.server.routes.sets import bulk_routes
from redrive.server.routes.settings import settings_routes
from redrive.server.routes.views import view_routes
from redrive.server.service import Service

__all__ = ["build"]


ROUTES = (
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


def build(app: Redrive, *, limits: Limits | None = None, poll: float = 1.0) -> FastAPI:
    """The API and the pages of an app, which whoever serves it opens and closes."""
    limits = limits or Limits()
    api = FastAPI(title="Redrive", openapi_url=f"{API}/openapi.json", docs_url=None, redoc_url=None)
    api.state.service = Service(app, limits, poll)
    api.state.redact = api.state.service.redact
    for routes in ROUTES:
        api.include_router(routes, prefix=API)
    api.include_router(health_routes)
    api.include_router(metrics_routes)
    api.include_router(document_page)
    api.add_api_route("/", _home, include_in_schema=False)
    api.mount(PAGES, site(api.state.service))
    problems.install(api)
    api.openapi = lambda: document(api)  # type: ignore[method-assign]
    guard: Any = Guard
    api.add_middleware(
        guard,
        limits=limits,
        identify=partial(identify_sender, api.state.service),
        max_payload=app.settings.max_payload,
        strict_transport=app.settings.base_url.startswith("https:"),
    )
    return api


async def _home(request: Request) -> RedirectResponse:
    """Whoever comes to the door is shown to the pages."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PAGES}/")
