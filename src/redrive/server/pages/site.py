"""Putting the pages together."""

from __future__ import annotations

from fastapi import FastAPI

from redrive.server.pages.audit import audit_routes
from redrive.server.pages.circuits import circuits_routes
from redrive.server.pages.entering import Entries
from redrive.server.pages.faults import install
from redrive.server.pages.files import files_routes
from redrive.server.pages.health import health_routes
from redrive.server.pages.letter import letter_routes
from redrive.server.pages.letters import letters_routes
from redrive.server.pages.members import members_routes
from redrive.server.pages.notifications import notifications_routes
from redrive.server.pages.overview import overview_routes
from redrive.server.pages.policies import policies_routes
from redrive.server.pages.replaying import replaying_routes
from redrive.server.pages.retrying import retrying_routes
from redrive.server.pages.run import run_routes
from redrive.server.pages.runs import runs_routes
from redrive.server.pages.session import session_routes
from redrive.server.pages.sets import sets_routes
from redrive.server.pages.views import views_routes
from redrive.server.pages.workflows import workflows_routes
from redrive.server.service import Service

__all__ = ["site"]

ROUTES = (
    session_routes,
    files_routes,
    overview_routes,
    letters_routes,
    replaying_routes,
    letter_routes,
    sets_routes,
    runs_routes,
    run_routes,
    retrying_routes,
    circuits_routes,
    policies_routes,
    workflows_routes,
    audit_routes,
    members_routes,
    health_routes,
    notifications_routes,
    views_routes,
)


def site(service: Service) -> FastAPI:
    """The pages of a server, to be mounted under `/app`."""
    pages = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    pages.state.service = service
    pages.state.redact = service.redact
    pages.state.entries = Entries()
    for routes in ROUTES:
        pages.include_router(routes)
    install(pages)
    return pages
