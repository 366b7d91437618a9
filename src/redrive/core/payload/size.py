"""How large a payload may be."""

from __future__ import annotations

from redrive.errors import PayloadTooLarge
from redrive.reasons import Reason, ReasonCode

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def check_size(text: str, limit: int, what: str | Reason) -> None:
    """Refuse `text` if it takes more than `limit` bytes as UTF-8. `what` names it in the message."""
    if len(text) * 4 <= limit or (len(text) <= limit and text.isascii()):
        return
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        sizes = _human(size), _human(limit)
        raise PayloadTooLarge(Reason(ReasonCode.PAYLOAD_TOO_LARGE, what=what, size=sizes[0], limit=sizes[1]))


def _human(size: int) -> str:
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name} ({size:,} bytes)"
    return f"{size:,} bytes"
