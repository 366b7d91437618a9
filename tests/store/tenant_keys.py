"""Keys without a tenant, of tables that have one, each with the reason why two tenants cannot collide in it.

A key that users choose contains the tenant, because two tenants may choose the same. The keys listed here
are created by Redrive.
"""

from __future__ import annotations

NUMBER = "a number that the store gives out once"
RANDOM = "an id that Redrive makes, unique by itself; who knows it still needs its tenant"
OF_RUN = "begins with the number of a run, which has one tenant"
OF_ROW = "begins with the number or id of a row that has one tenant"

APART: dict[tuple[str, tuple[str, ...]], str] = {
    **{(table, ("id",)): NUMBER for table in (
        "runs", "letters", "audit", "letter_feed", "bulk_actions", "circuits", "messages", "notices", "notifications",
        "questions",
    )},
    **{(table, ("public_id",)): RANDOM for table in (
        "runs", "letters", "bulk_actions", "messages", "notices", "notifications", "questions",
    )},
    ("questions", ("run", "idx")): OF_RUN,
    ("inputs", ("run",)): OF_RUN,
    ("results", ("run",)): OF_RUN,
    ("run_events", ("run", "seq")): OF_RUN,
    ("run_events", ("run", "key")): OF_RUN,
    ("waits", ("run", "idx", "subject")): OF_RUN,
    ("step_tasks", ("run", "idx")): OF_RUN,
    ("run_notes", ("run",)): OF_RUN,
    ("letter_texts", ("letter",)): OF_ROW,
    ("entries", ("run", "idx")): OF_RUN,
    ("attempts", ("run", "idx", "attempt", "fence")): OF_RUN,
    ("circuit_samples", ("run", "idx", "attempt", "fence")): OF_RUN,
    ("run_index", ("field", "value", "run")): "ends with the number of a run, which has one tenant",
    ("bulk_items", ("bulk", "number")): OF_ROW,
    ("deliveries", ("message", "sink")): OF_ROW,
    ("bundles", ("id", "sink")): OF_ROW,
    ("replays", ("letter", "number")): OF_ROW,
    ("notification_reads", ("notification", "reader")): OF_ROW,
    ("audit", ("token",)): RANDOM,
    ("access_tokens", ("id",)): RANDOM,
    ("remote_workers", ("worker",)): NUMBER,
    ("access_sessions", ("hash",)): "the hash of a random secret",
}  # fmt: skip


def without_tenant(keys: set[tuple[str, tuple[str, ...]]]) -> set[tuple[str, tuple[str, ...]]]:
    """Return the keys in which two tenants could collide."""
    return {key for key in keys if "tenant" not in key[1] and key not in APART}
