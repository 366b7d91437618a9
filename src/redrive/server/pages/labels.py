"""Words for states, codes, modes and lengths of time: what a person reads in place of a constant.

A state has a tone (for its colour) and an icon, so that it is told by three things and not by colour alone.
"""

from __future__ import annotations

from redrive.core.states import EntryKind
from redrive.frozen import dataclass
from redrive.server.pages.words import N, Words

__all__ = [
    "CODES",
    "FILTERS",
    "KINDS",
    "MODES",
    "RATES",
    "ROLES",
    "STAGES",
    "STATES",
    "UNITS",
    "WHY",
    "Label",
    "distance",
    "span",
    "state",
]


@dataclass(frozen=True, slots=True)
class Label:
    """A state in words, its tone and its icon."""

    text: str
    tone: str
    icon: str


STATES = {
    "PENDING": Label(N("Waiting"), "wait", "clock"),
    "RUNNING": Label(N("Running"), "work", "play"),
    "SLEEPING": Label(N("Sleeping"), "wait", "moon"),
    "COMPENSATING": Label(N("Rolling back"), "work", "undo"),
    "SUCCESS": Label(N("Succeeded"), "good", "check"),
    "PARTIAL": Label(N("Partly done"), "warn", "half"),
    "FAILED": Label(N("Failed"), "bad", "cross"),
    "DLQ_PENDING": Label(N("Dead letter"), "bad", "letter"),
    "TIMED_OUT": Label(N("Timed out"), "bad", "clock"),
    "CANCELLED": Label(N("Cancelled"), "off", "ban"),
    "COMPENSATED": Label(N("Rolled back"), "off", "undo"),
    "RETRYING": Label(N("Retrying"), "warn", "again"),
    "DLQ": Label(N("Dead letter"), "bad", "letter"),
    "SKIPPED": Label(N("Skipped"), "off", "skip"),
    "OPEN": Label(N("Open"), "bad", "alert"),
    "REPLAYING": Label(N("Being replayed"), "work", "again"),
    "RESOLVED": Label(N("Resolved"), "good", "check"),
    "IGNORED": Label(N("Ignored"), "off", "ban"),
    "EXPIRED": Label(N("Expired"), "off", "clock"),
    "DELIVERED": Label(N("Delivered"), "good", "check"),
    "DEAD": Label(N("Not delivered"), "bad", "cross"),
    "CLOSED": Label(N("Closed"), "good", "check"),
    "HALF_OPEN": Label(N("Letting probes through"), "warn", "half"),
    "DONE": Label(N("Done"), "good", "check"),
    "STOPPED": Label(N("Stopped"), "off", "ban"),
    "PAUSED": Label(N("Paused"), "wait", "pause"),
    "LOST": Label(N("Worker lost"), "warn", "cross"),
    "RELEASED": Label(N("Given back"), "off", "undo"),
    "PARKED": Label(N("Held back"), "wait", "pause"),
}

ROLES = {
    "OWNER": N("Owner"),
    "ADMIN": N("Administrator"),
    "STAFF": N("Staff"),
    "VIEWER": N("Viewer"),
}

STAGES = {
    "input": N("reading the input"),
    "fetch": N("loading the code"),
    "exec": N("doing the work"),
    "output": N("keeping the result"),
    "commit": N("writing it down"),
}

CODES = {
    "compensation_failed": N("undoing failed"),
    "infrastructure_failure": N("machine failed"),
    "parse_error": N("unreadable input"),
    "validation_failed": N("wrong data"),
    "policy_violation": N("not allowed"),
    "timeout": N("took too long"),
    "exhausted_retries": N("tried too often"),
    "dependency_unavailable": N("service down"),
    "non_retryable": N("will not mend by itself"),
}

WHY = {
    "compensation_failed": N("Undoing what was done failed as well."),
    "infrastructure_failure": N("Workers died with it, or the store under it failed."),
    "parse_error": N("Its input cannot be read."),
    "validation_failed": N("Some of its data is not as it must be. Correcting the input may mend it."),
    "policy_violation": N("Its code or its data is not what it may be. A developer must look."),
    "timeout": N("It took longer than it may."),
    "exhausted_retries": N("It was tried as often as it may be, and failed each time."),
    "dependency_unavailable": N("A service that it needs did not answer."),
    "non_retryable": N("The error is of a kind that trying again does not mend."),
}

MODES: dict[str, tuple[str, str]] = {
    "FROM_FAILED": (
        N("Go on at the failed step"),
        N("What succeeded before stays. The failed step is tried again, then the rest follows."),
    ),
    "FROM_STEP": (
        N("Go on from an earlier step"),
        N("Results before that step stay. From there on everything is done again."),
    ),
    "STEP_ONLY": (
        N("Do the failed step alone"),
        N("Only that step is done again. The rest waits for another decision."),
    ),
    "FULL": (
        N("Begin anew"),
        N("A new run does everything from the first step. The old one stays as it is."),
    ),
    "SKIP": (
        N("Leave the step out"),
        N("You say what the failed step should have given, and the run goes on without doing it."),
    ),
    "COMPLETE": (
        N("It was done by hand"),
        N("You did the failed step yourself and say what came of it. The run goes on with that."),
    ),
    "ROLLBACK": (N("Undo what was done"), N("What the run did is undone, the last step first.")),
}

FILTERS = {
    "code": N("Reason"),
    "stage": N("Stage"),
    "category": N("Category"),
    "workflow": N("Workflow"),
    "step": N("Step"),
    "fingerprint": N("one cause"),
    "owner": N("Looked after by"),
    "tag": N("Tag"),
    "text": N("Text of the error"),
    "index": N("Field of the input"),
    "since": N("since"),
    "until": N("until"),
}
"""What a list of letters is narrowed by, for people."""

RATES = {
    "s": N("at most {n} a second"),
    "m": N("at most {n} a minute"),
    "h": N("at most {n} an hour"),
}
"""How many dead letters may be decided on, by the unit of a rate."""

UNITS = {"s": N("a second"), "m": N("a minute"), "h": N("an hour")}

KINDS = {
    EntryKind.SLEEP: N("pause"),
    EntryKind.TIMER: N("time limit"),
    EntryKind.NOTE: N("note"),
    EntryKind.START: N("start of a run"),
    EntryKind.PUBLISH: N("message"),
}
"""What a run keeps beside the steps of its author."""

_UNITS = ((86_400, N("{n} d")), (3_600, N("{n} h")), (60, N("{n} min")), (1, N("{n} s")))


def state(name: str) -> Label:
    """What a state is called; one that nobody thought of keeps its name."""
    return STATES.get(str(name), Label(str(name), "off", "dot"))


def span(t: Words, seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return t("{n} ms", n=max(0, round(seconds * 1000)))
    if seconds < 10:
        return t("{n} s", n=f"{seconds:.1f}".rstrip("0").rstrip("."))
    left, parts = round(seconds), []
    for size, text in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(t(text, n=count))
        elif parts:
            break
    return " ".join(parts[:2])


def distance(t: Words, seconds: float) -> str:
    """How long ago something was, roughly; negative is yet to come."""
    size = abs(seconds)
    if size < 5:
        return t("now")
    amount = next(t(text, n=int(size // unit)) for unit, text in _UNITS if size >= unit)
    return t("{span} ago", span=amount) if seconds > 0 else t("in {span}", span=amount)
