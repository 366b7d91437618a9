"""Keys and ids: idempotency keys, derived ids and hashes, which are different for different things.

    idem_job:<tenant>:<workflow>:<key>                      the start of a run
    idem_evt:<tenant>:<stream>:<event id>                   the consumption of an event
    idem_flow:<tenant>:<root run>:<step key>:<generation>   the outside effect of a step
    idem_cron:<tenant>:<workflow>:<schedule>:<fire time>    a start by a schedule

Parts are joined with `:`. Inside a part, `:`, `%` and characters that a database or a log cannot hold (control
characters, lone surrogates) are written as `%XX`. So ordinary keys stay readable, and `("a:b", "c")` cannot be
mistaken for `("a", "b:c")`.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from redrive.id_text import format_id
from redrive.time_values import to_datetime

_UNSAFE = re.compile("[%:\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPES = re.compile(r"(?:%[0-9A-F]{2})+")


def encode_key(kind: str, *parts: str) -> str:
    """Return a text for a kind and its parts. No other kind and parts have the same text."""
    return ":".join(_UNSAFE.sub(_escape, part) for part in (kind, *parts))


def decode_key(key: str) -> tuple[str, tuple[str, ...]]:
    """Return the kind and the parts of a key; raise ValueError if `encode_key` did not make it."""
    kind, *parts = (_ESCAPES.sub(_unescape, part) for part in key.split(":"))
    if encode_key(kind, *parts) != key:
        raise ValueError(f"{key!r} is not an encoded key")
    return kind, tuple(parts)


def job_key(tenant: str, workflow: str, key: str) -> str:
    """Return the key under which a run is started at most once."""
    return encode_key("idem_job", tenant, workflow, key)


def event_key(tenant: str, stream: str, event_id: str) -> str:
    """Return the key under which an event is consumed at most once."""
    return encode_key("idem_evt", tenant, stream, event_id)


def flow_key(tenant: str, root_run: str, step_key: str, generation: int) -> str:
    """Return the key that a step sends to outside services, the same for each of its attempts."""
    return encode_key("idem_flow", tenant, root_run, step_key, str(generation))


def schedule_key(tenant: str, workflow: str, name: str, at: int) -> str:
    """Return the key under which a schedule starts its workflow at most once for one of its times."""
    time = to_datetime(at).isoformat().replace("+00:00", "Z")
    return encode_key("idem_cron", tenant, workflow, name, time)


def letter_id(run_id: str) -> str:
    """Return the id of a run's dead letter. A run has at most one, so the id is derived from the run's."""
    return f"dl-{run_id}"


def run_id_of_letter(letter_id: str) -> str:
    """Return the id of the run for which a dead letter was first written."""
    return letter_id.removeprefix("dl-")


def handler_run_id(run_id: str, fence: int, workflow: str, now: int) -> str:
    """Return the id of the run that handles a failure. Each decision on the same failure gives the same id."""
    digest = payload_hash(encode_key("handler", run_id, str(fence), workflow))
    return format_id(now // 1000, int(digest[:20], 16))


def event_hash(workflow: str, text: str) -> str:
    """Return the hash of the workflow that an event starts, and of its input."""
    return payload_hash(encode_key("event", workflow, text))


def message_id(run_id: str, index: int, number: int) -> str:
    """Return the id of the `number`-th message of a journal entry. A repeated attempt gives the same id."""
    return f"msg-{run_id}-{index}-{number}"


def payload_hash(text: str) -> str:
    """Return the SHA-256 of canonical JSON text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def keyed_payload_hash(text: str, key: bytes) -> str:
    """Return the keyed SHA-256 of canonical JSON text, in hexadecimal.

    Equal payloads of a tenant have equal hashes. Without the key, no guess of a payload can be checked.
    """
    return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()


def _escape(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "surrogatepass")
