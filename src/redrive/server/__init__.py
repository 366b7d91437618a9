"""The HTTP API: `redrive server`, or mounted in an ASGI application of one's own.

    from redrive.server import api

    web = FastAPI()
    web.mount("/redrive", api(app))          # app: a Redrive; it is opened and closed by whoever mounts it

Nothing here is imported by the engine. `redrive.server.auth` needs the extra `auth`, all else `web` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redrive.errors import ConfigurationError

if TYPE_CHECKING:
    from redrive.app import Redrive

__all__ = ["api"]


def api(app: Redrive, **options: Any) -> Any:
    """The API of an open app as an ASGI application."""
    try:
        from redrive.server.app import build_api
    except ModuleNotFoundError as error:
        raise ConfigurationError(f'the API needs {error.name}: pip install "redrive[web,auth]"') from None
    return build_api(app, **options)
