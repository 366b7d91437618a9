"""Texts of the dashboard in English and Polish: translations, labels of states and codes, and formats of values.

An English text is its own key; the Polish one stands in `words/pl`. `t("{n} run|{n} runs", n=3)` chooses a form
by number: two in English, three in Polish. A state has a text, a tone (its colour) and an icon, so that it is not
shown by colour alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup, escape

from redrive.core.states import EntryKind
from redrive.desk.models import AttemptRecord
from redrive.reasons import ENGLISH
from redrive.reasons.reason import POLISH
from redrive.server.pages.replay_form import list_form_fields

LANGUAGES = {"en": "English", "pl": "Polski"}
CATALOGUES = {"en": ENGLISH, "pl": POLISH}


def format_number(number: float, language: str) -> str:
    """Return a number with the marks of a language: 5,000 and 1.5 in English, 5 000 and 1,5 in Polish."""
    return CATALOGUES[language].localize(f"{number:,}" if type(number) is int else f"{number:g}")


def N(text: str) -> str:
    """Mark a text that a template translates."""
    return text


@cache
def load_catalogue(language: str) -> Mapping[str, str]:
    """Return the translations of a language by English text; English has none."""
    found: dict[str, str] = {}
    for file in sorted((Path(__file__).parent / "words" / language).glob("*.json")):
        found |= json.loads(file.read_text(encoding="utf-8"))
    return found


def choose_language(chosen: str | None, accepted: str) -> str:
    """Return the language that the user chose, or else the best one of an Accept-Language header."""
    if chosen in LANGUAGES:
        return chosen
    best, found = 0.0, "en"
    for part in accepted.split(",")[:20]:
        name, _, weight = part.strip().partition(";q=")
        try:
            quality = float(weight or 1)
        except ValueError:
            continue
        if name[:2].lower() in LANGUAGES and quality > best:
            best, found = quality, name[:2].lower()
    return found


class Translator:
    """Translates texts into one language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._texts = load_catalogue(language)

    def __call__(self, text: str, **values: Any) -> Markup:
        """Return the text in this language, with the values escaped and filled in."""
        # Only a text of the catalogue is trusted: a test checks that none of those contains markup.
        if text not in load_catalogue("pl"):
            return escape(text)
        translated = self._texts.get(text, text)
        if "|" in translated:
            translated = translated.split("|")[CATALOGUES[self.language].form(values.get("n", 0))]
        shown = {name: self._format_value(value) for name, value in values.items()}
        return Markup(translated).format(**shown) if shown else Markup(translated)  # nosec B704

    def _format_value(self, value: Any) -> Any:
        return format_number(value, self.language) if type(value) in (int, float) else value


class StateLabel(msgspec.Struct, frozen=True, gc=False):
    """The text, tone and icon of a state."""

    text: str
    tone: str
    icon: str


STATES = {
    "PENDING": StateLabel(N("Queued"), "wait", "clock"),
    "RUNNING": StateLabel(N("Running"), "work", "play"),
    "SLEEPING": StateLabel(N("Waiting"), "wait", "moon"),
    "UNREAD": StateLabel(N("Unread"), "wait", "clock"),
    "TAKEN": StateLabel(N("Taken"), "good", "check"),
    "SET_ASIDE": StateLabel(N("Set aside"), "bad", "alert"),
    "COMPENSATING": StateLabel(N("Rolling back"), "work", "undo"),
    "SUCCESS": StateLabel(N("Succeeded"), "good", "check"),
    "PARTIAL": StateLabel(N("Partly done"), "warn", "half"),
    "FAILED": StateLabel(N("Failed"), "bad", "cross"),
    "DLQ_PENDING": StateLabel(N("Needs attention"), "bad", "letter"),
    "TIMED_OUT": StateLabel(N("Timed out"), "bad", "clock"),
    "CANCELLED": StateLabel(N("Cancelled"), "off", "ban"),
    "COMPENSATED": StateLabel(N("Rolled back"), "off", "undo"),
    "RETRYING": StateLabel(N("Retrying"), "warn", "again"),
    "DLQ": StateLabel(N("Failed"), "bad", "letter"),
    "SKIPPED": StateLabel(N("Skipped"), "off", "skip"),
    "LEFT": StateLabel(N("Effects stay"), "warn", "alert"),
    "UNCERTAIN": StateLabel(N("Outcome unknown"), "warn", "alert"),
    "OPEN": StateLabel(N("Unresolved"), "bad", "alert"),
    "REPLAYING": StateLabel(N("Retrying"), "work", "again"),
    "RESOLVED": StateLabel(N("Resolved"), "good", "check"),
    "IGNORED": StateLabel(N("Ignored"), "off", "ban"),
    "EXPIRED": StateLabel(N("Expired"), "off", "clock"),
    "DELIVERED": StateLabel(N("Delivered"), "good", "check"),
    "DEAD": StateLabel(N("Not delivered"), "bad", "cross"),
    "CLOSED": StateLabel(N("Closed"), "good", "check"),
    "HALF_OPEN": StateLabel(N("Testing"), "warn", "half"),
    "DONE": StateLabel(N("Done"), "good", "check"),
    "DRAINING": StateLabel(N("Draining"), "warn", "clock"),
    "STOPPED": StateLabel(N("Stopped"), "off", "ban"),
    "PAUSED": StateLabel(N("Paused"), "wait", "pause"),
    "CRASHED": StateLabel(N("Crashed"), "bad", "alert"),
    "LOST": StateLabel(N("Worker crashed"), "warn", "cross"),
    "RELEASED": StateLabel(N("Returned to queue"), "off", "undo"),
    "PARKED": StateLabel(N("On hold"), "wait", "pause"),
}
DELIVERY_STATES = {
    "DEAD": N("Not delivered"),
    "PENDING": N("Waiting"),
    "DELIVERED": N("Delivered"),
    "SKIPPED": N("Skipped"),
}
TASK_STATES = {
    "OPEN": ("PENDING", N("Waiting for an answer")),
    "ANSWERED": ("SUCCESS", N("Answered")),
    "EXPIRED": ("EXPIRED", N("Expired")),
    "WITHDRAWN": ("CANCELLED", N("Withdrawn")),
}
"""The state whose look the state of a task has, and its text."""

CIRCUIT_STATES = {"CLOSED": N("Closed"), "OPEN": N("Open"), "HALF_OPEN": N("Testing")}
CIRCUIT_SETTINGS = {
    "failures": N("Errors before opening"),
    "window": N("Time window"),
    "open_for": N("Stays open for"),
    "probes": N("Test calls at a time"),
    "on_open": N("Runs while open"),
}
FIELD_RULES = {
    **dict.fromkeys(("decimal_parsing", "decimal_type", "float_parsing", "float_type"), N("Enter a number.")),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), N("Enter a whole number.")),
    **dict.fromkeys(("bool_parsing", "bool_type"), N("Enter true or false.")),
    **dict.fromkeys(
        ("date_parsing", "date_type", "date_from_datetime_parsing", "date_from_datetime_inexact"),
        N("Enter a date such as 2026-01-31."),
    ),
    **dict.fromkeys(
        ("datetime_parsing", "datetime_type", "datetime_from_date_parsing"),
        N("Enter a date and time such as 2026-01-31T09:30."),
    ),
    "string_type": N("Enter a text."),
    "missing": N("A value is missing."),
}
"""What to enter in a field that breaks a rule of its type; the other rules have a text of pydantic."""
_DURATION_HINT = N("Enter a duration such as 30s, 5m or 1h30m.")
_CATEGORIES_HINT = N("Enter kinds of errors such as timeout or network, separated by commas.")
SETTING_HINTS = {
    "max_retries": N("Enter a whole number, or -1 for no limit."),
    **dict.fromkeys(("base_delay", "max_delay", "max_elapsed", "window", "open_for"), _DURATION_HINT),
    "delays": N("Enter durations such as 20s, 5m, separated by commas."),
    "factor": N("Enter a number from 1 to 1,000."),
    "jitter": N("Enter a number from 0 to 1."),
    **dict.fromkeys(("retry_on", "never_retry_on"), _CATEGORIES_HINT),
    "failures": N("Enter a whole number from 1 to 1,000."),
    "probes": N("Enter a whole number from 1 to 100."),
}
"""What to enter where the text of a setting is wrong."""
TOKEN_KINDS = {"key": N("API key"), "jwt": N("Signed token"), "code": N("Code")}
ROLES = {
    "OWNER": N("Owner"),
    "ADMIN": N("Administrator"),
    "STAFF": N("Staff"),
    "VIEWER": N("Viewer"),
    "WORKER": N("Remote worker"),
}
STAGES = {
    "input": N("Reading the input"),
    "fetch": N("Loading code and data"),
    "exec": N("Running the step"),
    "output": N("Saving the result"),
    "commit": N("Committing"),
}
CODES = {
    "compensation_failed": N("Rollback failed"),
    "infrastructure_failure": N("Worker crashed"),
    "parse_error": N("Unreadable input"),
    "validation_failed": N("Invalid data"),
    "policy_violation": N("Rule violated"),
    "timeout": N("Timed out"),
    "exhausted_retries": N("Retries exhausted"),
    "dependency_unavailable": N("Service down"),
    "non_retryable": N("Not retryable"),
}
CODE_EXPLANATIONS = {
    "compensation_failed": N("The rollback failed as well."),
    "infrastructure_failure": N("The worker crashed, or the database failed."),
    "parse_error": N("The input cannot be read."),
    "validation_failed": N("Some of the data is invalid. Correct it and retry."),
    "policy_violation": N("The code or the data broke a rule. Ask a developer."),
    "timeout": N("It exceeded its time limit."),
    "exhausted_retries": N("The only attempt failed.|All {n} attempts failed."),
    "dependency_unavailable": N("A service it depends on did not respond."),
    "non_retryable": N("Retrying will not help with this error."),
}
MODES: dict[str, tuple[str, str]] = {
    "FROM_FAILED": (
        N("Resume from the failed step"),
        N("Completed steps are kept. The failed step runs again, then the remaining steps."),
    ),
    "FROM_STEP": (
        N("Resume from an earlier step"),
        N("Results before that step are kept. All steps from there on run again."),
    ),
    "STEP_ONLY": (
        N("Run only the failed step"),
        N("Only the failed step runs. The remaining steps need another decision."),
    ),
    "FULL": (N("Start over as a new run"), N("A new run executes all steps. This run stays as it is.")),
    "SKIP": (
        N("Skip this step"),
        N("Enter the result this step should have returned. The run continues without running it."),
    ),
    "COMPLETE": (
        N("Mark as done manually"),
        N("Enter the result of the work you did manually. The run continues with it."),
    ),
    "ROLLBACK": (
        N("Roll back"),
        N("Completed steps are rolled back in reverse order. The run can no longer be retried."),
    ),
}
RESUME_RUN = (N("Resume the run"), N("Completed steps are kept. The run continues after them."))
"""The label and the explanation of FROM_FAILED for a run that failed outside of its steps."""

FILTERS = {
    "status": N("State"),
    "kind": N("State"),
    "code": N("Reason"),
    "stage": N("Stage"),
    "category": N("Category"),
    "workflow": N("Workflow"),
    "step": N("Step"),
    "fingerprint": N("Cause"),
    "owner": N("Assignee"),
    "escalated": N("Escalated to"),
    "tag": N("Tag"),
    "text": N("Error message"),
    "index": N("Input field"),
    "since": N("From"),
    "until": N("Until"),
    "correlation_id": N("Reference"),
    "idempotency_key": N("Idempotency key"),
    "queue": N("Queue"),
    "waits_for": N("Waits for event"),
    "parent": N("Started by run"),
    "event": N("Event type"),
    "by": N("User"),
    "subject": N("Item"),
}
"""The labels of the fields by which lists are filtered."""

RATES = {"s": N("at most {n} per second"), "m": N("at most {n} per minute"), "h": N("at most {n} per hour")}
"""The texts of a rate limit, by its unit."""

UNITS = {"s": N("second"), "m": N("minute"), "h": N("hour")}
KINDS = {
    EntryKind.SLEEP: N("pause"),
    EntryKind.TIMER: N("time limit"),
    EntryKind.NOTE: N("note"),
    EntryKind.PATCH: N("patch"),
    EntryKind.START: N("start of a run"),
    EntryKind.PUBLISH: N("message"),
    EntryKind.WAIT: N("waiting"),
    EntryKind.SEND: N("event to another run"),
}
"""The labels of journal entries that are not steps."""


def find_state_label(name: str) -> StateLabel:
    """Return the label of a state; a state without one keeps its name."""
    return STATES.get(str(name), StateLabel(str(name), "off", "dot"))


class AttemptMessage(msgspec.Struct, frozen=True):
    """An error message of a step, with the attempts that had it. `latest` is the last of them."""

    text: str
    numbers: str
    count: int
    latest: AttemptRecord


def list_attempt_messages(attempts: Sequence[AttemptRecord]) -> list[AttemptMessage]:
    """Return each distinct error message of a step once, in order of time."""
    found: dict[str, list[AttemptRecord]] = {}
    for each in attempts:
        if each.message:
            found.setdefault(each.message, []).append(each)
    return [
        AttemptMessage(text, _join_numbers([each.attempt for each in same]), len(same), same[-1])
        for text, same in found.items()
    ]


def _join_numbers(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, such as `1–3, 5`."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0][1]) if len(run) == 1 else f"{run[0][1]}\u2013{run[-1][1]}" for run in runs)


def list_step_names(steps: Iterable[Any]) -> list[tuple[str, int]]:
    """Return the names of steps in order; a step that is repeated in a row once, with its number."""
    return [(name, len(list(same))) for name, same in groupby(step.name for step in steps)]


MAX_SHOWN = 20_000
"""Characters of a payload that a page shows."""

_MAX_CELL_LENGTH = 200  # characters of a list that is shown in one cell
_LONGEST_WORD = 24  # characters of a word that a cell of a table keeps on one line
_TIME_UNITS = ((86_400, N("{n} d")), (3_600, N("{n} h")), (60, N("{n} min")), (1, N("{n} s")))


def format_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


class JsonExcerpt(msgspec.Struct, frozen=True, gc=False):
    """Indented JSON; `cut` if only its beginning is there."""

    text: str
    cut: bool


def excerpt_json(value: Any) -> JsonExcerpt:
    """Return the JSON of a payload up to `MAX_SHOWN` characters, without writing the rest of a large one."""
    parts: list[str] = []
    left = MAX_SHOWN
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=str).iterencode(value):
        parts.append(part[:left])
        left -= len(part)
        if left < 0:
            return JsonExcerpt("".join(parts), cut=True)
    return JsonExcerpt("".join(parts), cut=False)


def name_word_class(text: Any) -> str:
    """Return the class of a table cell whose words are short enough for one line: one `word`, or several."""
    words = str(text or "").split()
    if max(map(len, words), default=0) > _LONGEST_WORD:
        return ""
    return "word" if len(words) == 1 else "words"


def list_labelled_texts(value: Any) -> list[tuple[str, str]] | None:
    """Return the labels and texts of an object for a table; None if it is too large or too deep for one."""
    found = list_form_fields(value)
    if found is None or any(field.kind == "json" and len(field.text) > _MAX_CELL_LENGTH for field in found):
        return None
    return [(field.label, "null" if field.value is None else field.text) for field in found]


def format_utc(when: datetime) -> str:
    """Return a time in UTC for people."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_iso(when: datetime) -> str:
    """Return a time in UTC for programs."""
    return f"{when.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def format_span(t: Translator, seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return t("{n} ms", n=max(0, round(seconds * 1000)))
    if seconds < 10:
        return t("{n} s", n=round(float(seconds), 1))
    left, parts = round(seconds), []
    for size, text in _TIME_UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(t(text, n=count))
        elif parts:
            break
    return " ".join(parts[:2])


def format_relative_time(t: Translator, seconds: float) -> str:
    """Return roughly how many seconds ago something was; negative seconds are in the future."""
    size = abs(seconds)
    if size < 5:
        return t("now")
    amount = next(t(text, n=int(size // unit)) for unit, text in _TIME_UNITS if size >= unit)
    return t("{span} ago", span=amount) if seconds > 0 else t("in {span}", span=amount)
