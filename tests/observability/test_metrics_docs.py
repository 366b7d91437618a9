"""Pages and alert rules: they name all metrics that exist, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from redrive.core.failure_reason import LetterCode, Stage
from redrive.observability.logs import RUN_FIELDS
from redrive.observability.metrics import METRICS
from redrive.server.pages.labels import STAGES

DOCS = Path(__file__).parents[2] / "docs"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DOCS / "operations/alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_names_every_metric_and_no_other() -> None:
    rows = dict(
        re.findall(r"^\| `(workflow_\w+)` \| [^|]*\| (.*) \|$", page("operations/observability.md"), re.MULTILINE)
    )
    assert rows == METRICS


def test_the_runbook_says_what_to_do_when_a_metric_moves() -> None:
    told = re.findall(r"^\| `(workflow_\w+)` \| .+ \|$", page("operations/runbook.md"), re.MULTILINE)
    assert sorted(told) == sorted(METRICS)


def test_the_runbook_knows_every_code_and_the_page_every_field() -> None:
    runbook = page("operations/runbook.md")
    assert set(re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", runbook, re.MULTILINE)) >= set(LetterCode)
    stages = runbook.partition("| stage | what failed |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", stages, re.MULTILINE) == [*Stage] == [*STAGES]
    logs = page("operations/observability.md").partition("## Logs")[2]
    assert [field for field in RUN_FIELDS if f"`{field}`" not in logs] == []


def test_alert_rules_ask_for_metrics_that_exist() -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    assert all(name.startswith("workflow:") for name in recorded)
    for rule in RULES:
        names = set(re.findall(r"workflow[_:][\w:]+", rule["expr"]))
        assert names, rule
        known = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in names}
        assert known - recorded <= METRICS.keys(), rule


def test_every_alert_leads_to_its_part_of_the_runbook() -> None:
    known = anchors(page("operations/runbook.md"))
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) >= 10
    for rule in ALERTS:
        name, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (name, anchor in known) == ("runbook.md", True), rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("page", "ticket")
