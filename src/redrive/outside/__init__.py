"""Calls to other people's machines, at addresses that anybody may have written.

`guard` says where a URL leads and refuses what is not public; `http` sends a request there and nowhere else.
"""

from redrive.outside.guard import Target, inspect, resolve
from redrive.outside.http import BadStatus, HttpClient, HttpRequest, HttpResponse, Redirected

__all__ = [
    "BadStatus",
    "HttpClient",
    "HttpRequest",
    "HttpResponse",
    "Redirected",
    "Target",
    "inspect",
    "resolve",
]
