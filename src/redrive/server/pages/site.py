"""Putting the pages together."""

from __future__ import annotations

from fastapi import FastAPI

from redrive.server.pages.accounts import members_routes, session_routes
from redrive.server.pages.activity import audit_routes, notifications_routes
from redrive.server.pages.bulk import bulk_routes
from redrive.server.pages.forms import TenantEntryLog
from redrive.server.pages.letters import letter_routes, letters_routes
from redrive.server.pages.lists import views_routes
from redrive.server.pages.operations import circuits_routes, policies_routes, workflows_routes
from redrive.server.pages.overview import health_routes, overview_routes
from redrive.server.pages.render import install_error_pages, static_routes
from redrive.server.pages.replay import replay_routes, retry_routes
from redrive.server.pages.runs import run_routes, runs_routes
from redrive.server.request import Service

PAGE_ROUTES = (
    session_routes,
    static_routes,
    overview_routes,
    letters_routes,
    replay_routes,
    letter_routes,
    bulk_routes,
    runs_routes,
    run_routes,
    retry_routes,
    circuits_routes,
    policies_routes,
    workflows_routes,
    audit_routes,
    members_routes,
    health_routes,
    notifications_routes,
    views_routes,
)


def build_pages(service: Service) -> FastAPI:
    """The pages of a server, to be mounted under `/app`."""
    pages = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    pages.state.service = service
    pages.state.redact = service.redact
    pages.state.entries = TenantEntryLog()
    for routes in PAGE_ROUTES:
        pages.include_router(routes)
    install_error_pages(pages)
    return pages
