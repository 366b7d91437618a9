"""Putting the pages together."""

from __future__ import annotations

from fastapi import FastAPI

from redrive.server.pages.accounts import members_routes, session_routes
from redrive.server.pages.activity import audit_routes, notifications_routes
from redrive.server.pages.bulk import sets_routes
from redrive.server.pages.forms import Entries
from redrive.server.pages.letters import letter_routes, letters_routes
from redrive.server.pages.lists import views_routes
from redrive.server.pages.operations import circuits_routes, policies_routes, workflows_routes
from redrive.server.pages.overview import health_routes, overview_routes
from redrive.server.pages.render import files_routes, install
from redrive.server.pages.replay import replaying_routes, retrying_routes
from redrive.server.pages.runs import run_routes, runs_routes
from redrive.server.request import Service

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
