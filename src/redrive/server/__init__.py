"""The HTTP API and the dashboard: `redrive server`, or mounted in another ASGI application.

    from redrive.server import api

    web = FastAPI()
    web.mount("/redrive", api(app))          # app: a Redrive, which the caller opens and closes

The engine imports nothing of this package. `redrive.server.auth` needs the extra `auth`, the rest also needs `web`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.app import Redrive

__all__ = ["api"]


def api(app: Redrive, **options: Any) -> Any:
    """Return the API and the dashboard of an open app as an ASGI application."""
    try:
        from redrive.server.app import build_api
    except ModuleNotFoundError as error:
        raise ConfigurationError(f'the API needs {error.name}: pip install "redrive[web,auth]"') from None
    return build_api(app, **options)
