"""What is left of a run when it is over, and how that differs from another time it was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from redrive.core.options import StepOptions
from redrive.core.states import EXECUTED, RunStatus
from redrive.core.transition import AttemptEnd
from redrive.frozen import dataclass
from redrive.store.records import RunRow
from redrive.store.selection import LetterFilter, RunFilter
from redrive.testing.driver import Engine
from redrive.testing.report import RunReport

__all__ = ["Comparison", "Observed", "observe"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A journal entry: what it is, how it ended, and how often its body was called."""

    name: str
    status: str
    attempt: int
    output: str | None
    called: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A run and those it started. `entries` are keyed by run and journal key."""

    report: RunReport
    runs: Counter[tuple[str, str]]
    letters: int
    entries: dict[str, Entry]

    @property
    def outputs(self) -> dict[str, str | None]:
        """What each entry gave."""
        return {key: entry.output for key, entry in self.entries.items()}

    @property
    def end(self) -> str:
        """How the run ended, in words."""
        run = self.report.described
        why = "" if run.error is None else f" ({run.code}: {run.error})"
        return f"{run.status}{why} with {self.letters} dead letter{'' if self.letters == 1 else 's'}"


async def observe(e: Engine, report: RunReport) -> Observed:
    """Look at everything in the store."""
    runs = (await e.store.runs(RunFilter(), limit=500, cursor=None)).items
    letters = (await e.store.letters(LetterFilter(), limit=500, cursor=None)).items
    entries: dict[str, Entry] = {}
    for number, run in enumerate(sorted(runs, key=lambda run: run.id)):
        where = "" if run.public_id == report.id else f"run {number} ({run.workflow}): "
        entries |= await _entries(e, run, where)
    return Observed(
        report=report,
        runs=Counter((run.workflow, run.status.value) for run in runs),
        letters=len(letters),
        entries=entries,
    )


async def _entries(e: Engine, run: RunRow, where: str) -> dict[str, Entry]:
    return {
        f"{where}{row.key}": Entry(
            name=row.name,
            status=row.status.value,
            attempt=row.attempt,
            output=row.output,
            called=e.calls(row.name, run=run.public_id, key=row.key) if row.kind in EXECUTED else 0,
        )
        for row in await e.store.journal(run.id)
    }


class Comparison:
    """Compares runs with one that was not disturbed, except for what differs among such runs anyhow."""

    def __init__(self, clean: Observed, options: Mapping[str, StepOptions]) -> None:
        self._clean = clean
        self._once = {name for name, option in options.items() if option.at_most_once}
        self._undone = {name for name, option in options.items() if option.transactional}
        self._varying: set[str] = set()

    def allow_what_varies(self, other: Observed) -> None:
        """What differs in another undisturbed run depends on time, chance or the outside world."""
        for key, entry in self._clean.entries.items():
            same = other.entries.get(key)
            if same is not None and (same.output, same.attempt) != (entry.output, entry.attempt):
                self._varying.add(key)

    def difference(self, seen: Observed, *, deaths: int) -> str | None:
        """In words, how a run differs from the undisturbed one; None if it does not."""
        problem = self._called_too_often(seen, deaths)
        if problem is not None:
            return problem
        if self._was_cut_short(seen):  # then the run may end as it likes, if it says so
            said = (seen.report.status is RunStatus.DLQ_PENDING) == bool(seen.letters)
            return None if said else f"the run ended as {seen.end}"
        return self._other_end(seen) or self._other_journal(seen) or self._other_result(seen)

    def _called_too_often(self, seen: Observed, deaths: int) -> str | None:
        for key, entry in seen.entries.items():
            was = self._clean.entries.get(key)
            usual = 0 if was is None else was.called
            most = max(1, usual + self._repeats(entry.name, deaths))
            if entry.called > most and key not in self._varying:
                return f"the body of {key} was called {entry.called} times; at most {most} is right"
        return None

    def _repeats(self, step: str, deaths: int) -> int:
        """How often a step may be called beyond what is usual."""
        if step in self._once:
            return 0
        return 1 if step in self._undone else deaths

    def _was_cut_short(self, seen: Observed) -> bool:
        """True if a step that runs at most once may have happened."""
        return any(
            step.name in self._once and any(attempt.status == AttemptEnd.LOST for attempt in step.attempts)
            for step in seen.report.steps
        )

    def _other_end(self, seen: Observed) -> str | None:
        clean = self._clean
        if (seen.report.status, seen.letters) != (clean.report.status, clean.letters):
            return f"the run ended as {seen.end} instead of {clean.end}"
        if seen.runs != clean.runs:
            return f"there are runs {_counted(seen.runs)} instead of {_counted(clean.runs)}"
        return None

    def _other_journal(self, seen: Observed) -> str | None:
        clean = self._clean.entries
        for key in clean.keys() - seen.entries.keys():
            return f"{key} is missing from the journal"
        for key, entry in seen.entries.items():
            was = clean.get(key)
            if was is None:
                return f"{key} is an extra entry in the journal"
            if was.status != entry.status:
                return f"{key} ended as {entry.status} instead of {was.status}"
            if key in self._varying:
                continue
            if entry.attempt > was.attempt:
                return f"{key} took {entry.attempt} attempts instead of {was.attempt}"
            if entry.output != was.output:
                return f"{key} gave {entry.output} instead of {was.output}"
        return None

    def _other_result(self, seen: Observed) -> str | None:
        """The result follows from what the steps gave: where that is the same, so must the result be."""
        clean = self._clean
        if seen.outputs == clean.outputs and _result(seen) != _result(clean):
            return f"the run returned {_result(seen)!r} instead of {_result(clean)!r}"
        return None


def _result(seen: Observed) -> Any:
    return seen.report.value if seen.report.error is None else seen.report.error.details


def _counted(runs: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{count} x {workflow} {status}" for (workflow, status), count in sorted(runs.items()))
