"""Whether the server lives, and whether it can work. Outside the prefix, without a credential."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from redrive.server.asking import service_of

__all__ = ["health_routes"]

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
    await service_of(request).app.runtime.store.paused()
    return Health()
