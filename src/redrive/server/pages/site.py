"""Putting the pages together."""

from __future__ import annotations

from fastapi import FastAPI

from redrive.server.pages import (
    audit,
    circuits,
    faults,
    files,
    health,
    letter,
    letters,
    members,
    notifications,
    overview,
    policies,
    replaying,
    retrying,
    run,
    runs,
    session,
    sets,
    views,
    workflows,
)
from redrive.server.pages.entering import Entries
from redrive.server.service import Service

__all__ = ["site"]

ROUTES = (
    session.routes,
    files.routes,
    overview.routes,
    letters.routes,
    replaying.routes,
    letter.routes,
    sets.routes,
    runs.routes,
    run.routes,
    retrying.routes,
    circuits.routes,
    policies.routes,
    workflows.routes,
    audit.routes,
    members.routes,
    health.routes,
    notifications.routes,
    views.routes,
)


def site(service: Service) -> FastAPI:
    """The pages of a server, to be mounted under `/app`."""
    pages = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    pages.state.service = service
    pages.state.redact = service.redact
    pages.state.entries = Entries()
    for routes in ROUTES:
        pages.include_router(routes)
    faults.install(pages)
    return pages
