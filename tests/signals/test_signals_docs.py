"""Every metric is on its page, and no other is."""

from __future__ import annotations

import re
from pathlib import Path

from redrive.signals.metrics import METRICS

ROOT = Path(__file__).parents[2]


def test_the_page_names_every_metric_and_no_other() -> None:
    text = (ROOT / "docs/observability.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(workflow_\w+)` \| [^|]*\| (.*) \|$", text, re.MULTILINE))
    assert rows == METRICS
