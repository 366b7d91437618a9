"""The names and labels of the audit log."""

from __future__ import annotations

import msgspec
import pytest

from redrive.core.audit import EVENT_LABELS, AuditEvent, EventLabel, event_label

AGREED = {
    "error.recorded",
    "error.retry_scheduled",
    "error.retry_exhausted",
    "dlq.created",
    "dlq.retry",
    "dlq.resolved",
    "dlq.skipped",
    "dlq.reopened",
    "circuit.opened",
    "circuit.closed",
    "execution.rollback",
    "dlq.replay_succeeded",
    "dlq.replay_failed",
    "dlq.expired",
    "dlq.assigned",
    "dlq.commented",
    "dlq.tagged",
    "dlq.completed",
    "dlq.revealed",
    "worker.registered",
    "dlq.bulk_started",
    "dlq.bulk_stopped",
    "dlq.bulk_paused",
    "dlq.bulk_resumed",
    "dlq.bulk_rate_changed",
    "view.shared",
    "view.removed",
    "run.cancelled",
    "run.retried",
    "run.event_sent",
    "run.histories_exported",
    "run.moved",
    "worker.drained",
    "worker.retired",
    "task.answered",
    "task.assigned",
    "task.commented",
    "task.escalated",
    "task.revealed",
    "policy.set",
    "policy.deleted",
    "notify.set",
    "notify.deleted",
    "workflow.paused",
    "workflow.resumed",
    "schedule.paused",
    "schedule.resumed",
    "schedule.removed",
    "schedule.requested",
    "dlq.escalated",
    "dlq.group_assigned",
    "dlq.group_commented",
    "dlq.group_muted",
    "dlq.group_unmuted",
    "payload.reencrypted",
    "circuit.half_opened",
    "circuit.reset",
    "circuit.set",
    "circuit.unset",
    "saga.resumed",
    "saga.skipped",
    "saga.marked_done",
    "outbox.dead",
    "outbox.retried",
    "outbox.skipped",
    "outbox.sink_removed",
    "user.created",
    "user.changed",
    "user.signed_in",
    "user.refused",
    "token.created",
    "token.revoked",
    "tenant.created",
    "tenant.changed",
    "tenant.entered",
    "tenant.exported",
    "tenant.erased",
}
"""Names as they are stored and exported: a name may be added, never changed."""


def test_the_names_are_the_agreed_ones() -> None:
    assert {event.value for event in AuditEvent} == AGREED


def test_every_event_has_a_label_and_every_label_an_event() -> None:
    assert EVENT_LABELS.keys() == set(AuditEvent)


@pytest.mark.parametrize("language", EventLabel.__struct_fields__)
def test_labels_exist_and_are_unique(language: str) -> None:
    labels = [getattr(each, language) for each in EVENT_LABELS.values()]
    assert all(text and text == text.strip() for text in labels)
    assert len(set(labels)) == len(EVENT_LABELS)
    technical = ("dead letter", "replay", "compensation", "kompensac", "token")
    assert not [text for text in labels if any(word in text.lower() for word in technical)]


def test_no_label_was_left_untranslated() -> None:
    assert not [name for name, each in EVENT_LABELS.items() if len(set(msgspec.structs.astuple(each))) < 2]


def test_a_label_is_found_by_name_and_language() -> None:
    assert event_label("dlq.skipped") == "A failure was ignored"
    assert event_label(AuditEvent.LETTER_IGNORED, "pl") == "Zignorowano sprawę"
    assert event_label("dlq.skipped", "de") == event_label("dlq.skipped")


@pytest.mark.parametrize("language", ["en", "pl"])
def test_an_unknown_event_is_its_own_label(language: str) -> None:
    assert event_label("moon.landed", language) == "moon.landed"
