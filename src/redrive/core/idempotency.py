"""Idempotency keys: text in which different things never look alike.

    idem_job:<tenant>:<workflow>:<key>                      starting a run
    idem_evt:<tenant>:<stream>:<event id>                   consuming an event
    idem_flow:<tenant>:<root run>:<step key>:<generation>   a step's outside effect
    idem_cron:<tenant>:<workflow>:<schedule>:<fire time>    what a schedule starts

Parts are joined with `:`. Inside a part, `:` and `%` and whatever a database or a log could not hold
(control characters, lone surrogates) are written as `%XX`, so ordinary keys stay readable and
`("a:b", "c")` cannot be mistaken for `("a", "b:c")`.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta

from redrive.records import format_id

_UNSAFE = re.compile("[%:\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPES = re.compile(r"(?:%[0-9A-F]{2})+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode_key(kind: str, *parts: str) -> str:
    """One text for a kind and its parts; no other kind and parts have the same."""
    return ":".join(_UNSAFE.sub(_escape, part) for part in (kind, *parts))


def decode_key(key: str) -> tuple[str, tuple[str, ...]]:
    """The kind and parts that `encode` made the key from; ValueError if it did not make it."""
    kind, *parts = (_ESCAPES.sub(_unescape, part) for part in key.split(":"))
    if encode_key(kind, *parts) != key:
        raise ValueError(f"{key!r} is not a key as encode() writes them")
    return kind, tuple(parts)


def job_key(tenant: str, workflow: str, key: str) -> str:
    """The key under which a run is started at most once."""
    return encode_key("idem_job", tenant, workflow, key)


def event_key(tenant: str, stream: str, event_id: str) -> str:
    """The key under which an event is consumed at most once."""
    return encode_key("idem_evt", tenant, stream, event_id)


def flow_key(tenant: str, root_run: str, step_key: str, generation: int) -> str:
    """The key a step gives to the outside world, the same however often the step runs."""
    return encode_key("idem_flow", tenant, root_run, step_key, str(generation))


def schedule_key(tenant: str, workflow: str, name: str, at: int) -> str:
    """The key under which a schedule starts its workflow at most once for one of its times."""
    time = (_EPOCH + timedelta(microseconds=at)).isoformat().replace("+00:00", "Z")
    return encode_key("idem_cron", tenant, workflow, name, time)


def letter_id(run_id: str) -> str:
    """A run has at most one dead letter of its own, so its id follows from the run's."""
    return f"dl-{run_id}"


def run_id_of_letter(letter_id: str) -> str:
    """The run for which a letter was first written."""
    return letter_id.removeprefix("dl-")


def handler_run_id(run_id: str, fence: int, workflow: str, now: int) -> str:
    """The id of the run that handles the failure of a run. It is the same whenever the same failure is
    decided on, and begins with the time of that like every other id."""
    digest = payload_hash(encode_key("handler", run_id, str(fence), workflow))
    return format_id(now // 1000, int(digest[:20], 16))


def event_hash(workflow: str, text: str) -> str:
    """What an event stands for: the workflow that it starts, and with which input."""
    return payload_hash(encode_key("event", workflow, text))


def message_id(run_id: str, index: int, number: int) -> str:
    """The id of the `number`-th message of a journal entry: whoever records it again names the same one."""
    return f"msg-{run_id}-{index}-{number}"


def payload_hash(text: str) -> str:
    """The SHA-256 of canonical JSON text, in hexadecimal."""
    return hashlib.sha256(_to_bytes(text)).hexdigest()


def _escape(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in _to_bytes(found[0]))


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "surrogatepass")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
