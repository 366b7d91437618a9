"""The first page: is anything on fire?"""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from redrive.core.roles import Permission
from redrive.server.asking import Asked, needs
from redrive.server.pages.drawing import show
from redrive.server.pages.forms import pages

__all__ = ["routes"]

routes = pages()


@routes.get("/", **needs(Permission.LOOK))
async def overview(request: Request, asked: Asked) -> Response:
    """What is failing now, and since when."""
    groups = await asked.desk.dlq.groups(asked.one_tenant, limit=10)
    return await show(request, "overview.html", groups=groups)
