"""Values that come without an annotation, as plain JSON text."""

from __future__ import annotations

from typing import Any

from redrive.core.payload.plain import write_any
from redrive.core.payload.signature import Signature


def _takes(payload: Any) -> None:
    """Stands for whoever takes a payload, so that what is wrong with one is said as for any parameter."""


_SIGNATURE = Signature.of(_takes)
_BEFORE = len('{"payload":')


def encode_any(payload: Any) -> str:
    """Compact JSON for a value of any kind, or a PayloadError that names the place in it."""
    text = write_any(payload)
    return _SIGNATURE.encode((payload,), {})[_BEFORE:-1] if text is None else text
