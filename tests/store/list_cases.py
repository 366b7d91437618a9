"""Every filter of a list with the index that serves it, and rows that mislead planners.

All rows belong to one tenant and are equal, and the planner has statistics of that. Whichever index it
chooses, it expects that every row matches. Other tenants and states have no rows.
"""

from __future__ import annotations

import base64
from typing import Any

from redrive.store.filters import AuditFilter, LetterFilter, OutboxFilter, RunFilter

ROWS = 10_000
PLACES = (None, f"<{ROWS // 2}", f">{ROWS // 2}")

Filter = RunFilter | LetterFilter | AuditFilter | OutboxFilter

# The conditions of a filter beside the tenant, and the index for them; none if rows have to be searched.
ASKED: dict[type[Any], list[tuple[dict[str, Any], str | None]]] = {
    RunFilter: [
        ({}, None),
        ({"queue": "q"}, None),
        ({"workflow": "w"}, "runs_of_workflow"),
        ({"status": "SUCCESS"}, "runs_succeeded"),
        ({"status": "FAILED"}, "runs_by_status"),
        ({"status": "RUNNING"}, "runs_held"),
        ({"status": ["PENDING", "SLEEPING"]}, "runs_by_status"),
        ({"correlation_id": "c"}, "runs_correlated"),
        ({"idempotency_key": "k"}, "idempotency_given"),
        ({"handler_for": "r"}, "runs_handling"),
        ({"parent": "r"}, "runs_children"),
        ({"index": {"order": "A-1"}}, "run_index"),
    ],
    LetterFilter: [
        ({}, None),
        ({"status": "OPEN"}, "letters_by_status"),
        ({"status": "RESOLVED"}, "letters_by_status"),
        ({"code": "timeout"}, None),
        ({"stage": "exec"}, None),
        ({"stage": "output"}, "letters_by_stage"),
        ({"category": "timeout"}, None),
        ({"workflow": "w"}, "letters_of_workflow"),
        ({"step": "s"}, None),
        ({"fingerprint": "f"}, "letters_by_fingerprint"),
        ({"owner": "ann"}, "letters_owned"),
        ({"tag": "x"}, "letters_tagged"),
        ({"text": "nowhere"}, None),
        ({"index": {"order": "A-1"}}, "run_index"),
    ],
    AuditFilter: [
        ({}, None),
        ({"event": "dlq.retry"}, "audit_by_event"),
        ({"event": "dlq."}, None),
        ({"by": "ann"}, "audit_by_actor"),
        ({"by": "redrive"}, None),
        ({"people": True}, "audit_people"),
        ({"subject": "r"}, "audit_of_subject"),
        ({"letter": "l"}, "audit_of_letter"),
    ],
    OutboxFilter: [
        ({}, None),
        ({"topic": "order.placed"}, None),
        ({"topic": "order.*"}, None),
        ({"key": "k"}, None),
        ({"run_id": "r"}, "messages_public_id"),
        ({"sink": "s"}, None),
        ({"status": "DEAD"}, "deliveries_dead"),
        ({"status": "PENDING"}, None),
        ({"sink": "s", "status": "DEAD"}, None),
    ],
}
OWN = {
    RunFilter: "runs_of_tenant",
    LetterFilter: "letters_of_tenant_by_status",
    AuditFilter: "audit_of_tenant",
    OutboxFilter: "messages_of_tenant",
}
OWN_OF = {"audit_people": "audit_of_people"}  # used instead, where a tenant's rows are in two indexes

# Texts of letters, which SQLite stores in a separate table.
TEXTS = {"texts": ", failure, input, options", "none": ", '', '', ''"}
NO_TEXTS = dict.fromkeys(TEXTS, "")

# `redrive.` stands for the schema on PostgreSQL and for nothing on SQLite; {numbers} gives n from 1 on.
FILL = (
    "INSERT INTO redrive.runs (id, public_id, tenant, workflow, queue, rank, status, created_at, "
    "finished_at) SELECT n, 'r' || n, 'a', 'w', 'q', 0, 'SUCCESS', n, n FROM {numbers}",
    "INSERT INTO redrive.letters (id, public_id, tenant, run, run_id, workflow, status, code, stage, "
    "category, reason, fingerprint, payload_hash, attempts, version, created_at, failed_at, "
    "expires_at{texts}) SELECT n, 'l' || n, 'a', n, 'r' || n, 'w', 'OPEN', 'timeout', 'exec', 'timeout', "
    "'why', 'f', '', 1, '', n, n, n{none} FROM {numbers}",
    "INSERT INTO redrive.audit (id, tenant, at, event, by, subject) "
    "SELECT n, 'a', n, 'dlq.created', 'redrive', 'r' || n % 10 FROM {numbers}",
    "INSERT INTO redrive.messages (id, created_at, public_id, tenant, topic, key, run_id, correlation_id, "
    "payload) SELECT n, n, 'm' || n, 'a', 'order.placed', 'k', 'r' || n, '', '' FROM {numbers}",
)


def cursor(place: str | None) -> str | None:
    """Return the cursor that a page at this position would have."""
    return None if place is None else base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def allowed(kind: type[Any], index: str | None, tenant: str | None) -> set[str]:
    """Return the indexes along which this list may be read."""
    own = {OWN_OF.get(index, OWN[kind])} if tenant is not None else set()
    return own | ({index} if index is not None else set()) or {"pkey"}
