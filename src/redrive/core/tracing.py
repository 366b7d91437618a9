"""The trace that a run belongs to, as W3C Trace Context writes it: `00-<trace id>-<span id>-<flags>`.

It stands at the beginning of the run's options, at a fixed length, so that what all runs of a workflow have
in common can be read once for all of them.
"""

from __future__ import annotations

import re

__all__ = ["checked", "split", "trace_id", "with_trace"]

_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_HEAD = '{"trace":"'
_END = len(_HEAD) + 55


def checked(traceparent: str | None) -> str | None:
    """A traceparent of the known form; None for anything else, which is to be ignored."""
    return traceparent if traceparent is not None and _FORM.fullmatch(traceparent) else None


def with_trace(options: str, traceparent: str | None) -> str:
    """The options of a run that belongs to a trace."""
    return options if traceparent is None else f'{_HEAD}{traceparent}",{split(options)[1][1:]}'


def split(options: str) -> tuple[str | None, str]:
    """The trace, and the options that do not speak of it."""
    if not options.startswith(_HEAD):
        return None, options
    return options[len(_HEAD) : _END], "{" + options[_END + 2 :]


def trace_id(traceparent: str | None) -> str | None:
    """The id that all spans of the trace share."""
    return None if traceparent is None else traceparent[3:35]
