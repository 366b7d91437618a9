"""Putting the API together."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from redrive.app import Redrive
from redrive.server import document, health, metrics, problems
from redrive.server.limits import Guard, Limits
from redrive.server.routes import circuits, letters, outbox, people, runs, sagas, sets, settings
from redrive.server.service import Service

__all__ = ["PREFIX", "build"]

PREFIX = "/api/v1"

ROUTES = (
    runs.routes,
    sagas.routes,
    sets.routes,
    letters.routes,
    circuits.routes,
    outbox.routes,
    settings.routes,
    people.routes,
)
"""In the order in which paths are tried: `/workflow-dlq/replay` is no letter's id."""


def build(app: Redrive, *, limits: Limits | None = None, poll: float = 1.0) -> FastAPI:
    """The API of an app, which whoever serves it opens and closes."""
    limits = limits or Limits()
    api = FastAPI(title="Redrive", openapi_url=f"{PREFIX}/openapi.json", docs_url=None, redoc_url=None)
    api.state.service = Service(app, limits, poll)
    api.state.redact = api.state.service.redactor.text
    for routes in ROUTES:
        api.include_router(routes, prefix=PREFIX)
    api.include_router(health.routes)
    api.include_router(metrics.routes)
    api.include_router(document.page)
    problems.install(api)
    api.openapi = lambda: document.document(api)  # type: ignore[method-assign]
    guard: Any = Guard
    api.add_middleware(guard, limits=limits)
    return api
