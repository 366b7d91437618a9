"""Run all checks: `python run.py [URL] [--full]`."""

from __future__ import annotations

import changed_code
import child_letter
import child_rollback
import event_before_worker
import kills
import kit
import one_key_one_event
import sealed
import two_answers
import wait_limit

CHECKS = (
    *(event_before_worker, one_key_one_event, child_letter, child_rollback, two_answers, sealed, changed_code),
    *(kills, wait_limit),
)

if __name__ == "__main__":
    kit.main(*(each.check for each in CHECKS))
