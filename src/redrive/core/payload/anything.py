"""Values that come without an annotation, as plain JSON text."""

from __future__ import annotations

from functools import cache
from typing import Any

from redrive.core.payload.plain import write_any
from redrive.core.payload.signature import Signature


def _takes(payload: Any) -> None:
    """Stands for whoever takes a payload, so that what is wrong with one is said as for any parameter."""


_BEFORE = len('{"payload":')


@cache
def _signature() -> Signature:
    # Not when this is imported: it takes longer than importing, and nearly every value is plain.
    return Signature.of(_takes)


def encode_any(payload: Any) -> str:
    """Compact JSON for a value of any kind, or a PayloadError that names the place in it."""
    text = write_any(payload)
    return _signature().encode((payload,), {})[_BEFORE:-1] if text is None else text
