"""Pages and alert rules: they name all metrics that exist, and no others; the runbook's tables agree with the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from engines import OnStore

from redrive import LetterFilter, Redrive, RunFilter
from redrive.core.failure_reason import LetterCode, Stage
from redrive.desk.models import Run
from redrive.observability.logs import RUN_FIELDS
from redrive.observability.metrics import METRICS
from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.texts import STAGES
from redrive.settings import ENVIRONMENT_VARIABLES, Settings
from redrive.time_values import parse_duration

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
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


def test_the_runbook_names_settings_with_their_defaults() -> None:
    table = page("operations/runbook.md").partition("## Settings to decide on")[2].partition("\n## ")[0]
    named = re.findall(r"`([A-Z_]+)(?:=\w+)?`(?: \(([^)]+)\))?", " ".join(re.findall(r"^\| (`.+?) \|", table, re.M)))
    assert len(named) > 8
    settings, names = Settings.load({}, {}), {variable: name for name, variable in ENVIRONMENT_VARIABLES.items()}
    for variable, default in named:
        value = getattr(settings, names[variable])
        assert not default or parse_duration(default.replace(" ", "")) == value, variable


def test_the_runbook_names_the_fields_of_the_error_record() -> None:
    table = page("operations/runbook.md").partition("| log | run | other queues | content |")[2].partition("\n\n")[0]
    rows = [[re.findall(r"`(\w+)`", cell) for cell in row.split("|")[1:3]] for row in table.splitlines()[2:]]
    assert len(rows) > 5
    assert {name for log, _ in rows for name in log} <= {"message", *RUN_FIELDS}
    assert {name for _, run in rows for name in run} <= {field.name for field in fields(Run)}


def log_formats() -> Iterator[tuple[str, str]]:
    """Yield the level and the format of each line that the code logs."""
    yield "ERROR", str(Reason(ReasonCode.RUN_FAILED_AFTER, n=3, error="x"))
    levels = {"warning": "WARNING", "error": "ERROR", "exception": "ERROR", "log": ""}
    for path in sorted((ROOT / "src/redrive").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in levels:
                for text in node.args[:2]:
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield levels[node.func.attr], text.value


def test_the_runbook_quotes_messages_that_the_code_logs() -> None:
    table = page("operations/runbook.md").partition("| message begins with |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(.+?)` \| (\w+) \|", table, re.MULTILINE)
    assert len(rows) > 8
    known = [(level, re.sub("%[a-z]", fill, text)) for level, text in log_formats() for fill in ("", " for good")]
    for message, level in rows:
        begins = ".*".join(map(re.escape, message.split("...")))
        assert [text for found, text in known if found in (level, "") and re.match(begins, text)], message


async def test_a_run_is_in_the_queue_that_the_runbook_names(on_store: OnStore) -> None:
    runbook = page("operations/runbook.md").partition("## Processes")[2].partition("\n## ")[0]
    app = Redrive()

    @app.workflow
    async def ask() -> None:
        raise LookupError

    async with on_store(app) as e:
        run = await e.run(ask)
        assert f"`{run.described.queue}`" in runbook
        emails = await e.run(ask, queue="emails")
        assert [each.id for each in (await app.runs.list(RunFilter(queue="emails"))).items] == [emails.id]
        assert len((await app.dlq.list(LetterFilter(status="OPEN"))).items) == 2, (
            "one list has the failures of all queues"
        )


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
