"""How large a payload may be."""

from __future__ import annotations

from redrive.errors import PayloadTooLarge

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def check_size(text: str, limit: int, what: str) -> None:
    """Refuse `text` if it takes more than `limit` bytes as UTF-8. `what` names it in the message."""
    if len(text) * 4 <= limit or (len(text) <= limit and text.isascii()):
        return
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise PayloadTooLarge(
            f"{what} takes {_human(size)}, more than the limit of {_human(limit)}; "
            "store it elsewhere and pass a reference, or raise REDRIVE_MAX_PAYLOAD"
        )


def _human(size: int) -> str:
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name} ({size:,} bytes)"
    return f"{size:,} bytes"
