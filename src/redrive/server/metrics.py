"""`GET /metrics`, outside the prefix: what Prometheus reads.

It tells of all tenants at once. Whoever may manage tenants may read it, and so may a scraper that has the
token of the setting `metrics_token`, which opens nothing else.
"""

from __future__ import annotations

import hmac

from fastapi import APIRouter, Request, Response

from redrive.core.roles import Permission
from redrive.errors import NotFound
from redrive.server.asking import allow, asking_of, service_of

__all__ = ["metrics_routes"]

metrics_routes = APIRouter(include_in_schema=False)


@metrics_routes.get("/metrics")
async def metrics(request: Request) -> Response:
    """What this process counted, and how the store stands."""
    if not _has_token(request):
        allow((await asking_of(request)).principal, {"x-permissions": [Permission.MANAGE_TENANTS]})
    runtime = service_of(request).app.runtime
    if runtime.tally is None:
        raise NotFound(
            'there are no metrics here: pip install "redrive[metrics]", and REDRIVE_METRICS is not off'
        )
    from redrive.signals.metrics import registry_of, rendered

    found = await runtime.recent.get()
    body, content_type = rendered(
        registry_of(runtime.tally, lambda: found), request.headers.get("accept", "")
    )
    return Response(body, headers={"content-type": content_type})


def _has_token(request: Request) -> bool:
    wanted = service_of(request).app.settings.metrics_token
    given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())
