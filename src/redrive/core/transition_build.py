"""Building blocks of decisions: transitions, journal entries, and the state of a run that has not ended."""

from __future__ import annotations

from redrive.core import transitions
from redrive.core.journal import EntryRow
from redrive.core.outcomes import EntryRef, OpenEntry, RunView
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd, AttemptWrite, EntryWrite, RunWrite, Transition
from redrive.record_fields import replace

_RUNNING = RunWrite(status=RunStatus.RUNNING, release=False, diverged=False)
_COMPENSATING = RunWrite(status=RunStatus.COMPENSATING, release=False, diverged=False)


def build_transition(
    run: RunView,
    *entries: EntryWrite,
    progress: bool = False,
    change: RunWrite | None = None,
    attempts: tuple[AttemptWrite, ...] = (),
    letter: transitions.LetterWrite | None = None,
    move: transitions.LetterStatusWrite | None = None,
    ends_replay: str | None = None,
    audit: tuple[transitions.AuditWrite, ...] = (),
    messages: tuple[transitions.MessageWrite, ...] = (),
    closes: bool = False,
    samples: tuple[transitions.CircuitSampleWrite, ...] = (),
) -> Transition:
    """Return a transition of a run, guarded by its fence.

    `progress`: the run got further, which proves that it does not kill its worker and that its code fits the journal.
    """
    # Python passes more than 15 keyword arguments as a dict, which takes several times as long.
    return Transition(
        run=run.id,
        tenant=run.tenant,
        fence=run.fence,
        entries=entries,
        attempts=attempts,
        change=change,
        letter=letter,
        move=move,
        ends_replay=ends_replay,
        audit=audit,
        messages=messages,
        closes=closes,
        clears_suspicion=progress and run.deaths > 0,
        version=run.new_version if progress else None,
        samples=samples,
    )


def build_entry(
    place: EntryRef | EntryRow,
    status: StepStatus,
    *,
    attempt: int = 1,
    began_ago: int = 0,
    done: int | None = None,
    wake_in: int | None = None,
    limit_in: int | None = None,
    input: str | None = None,
    output: str | None = None,
    failure: str | None = None,
    options: str | None = None,
    new: bool = False,
) -> EntryWrite:
    """Return the new state of the journal entry at `place`."""
    return EntryWrite(
        index=place.index,
        key=place.key,
        kind=place.kind,
        name=place.name,
        status=status,
        attempt=attempt,
        began_ago=began_ago,
        done=done,
        wake_in=wake_in,
        limit_in=limit_in,
        input=input,
        output=output,
        failure=failure,
        options=options,
        new=new,
    )


def keep_attempts_open(steps: tuple[OpenEntry, ...]) -> tuple[EntryWrite, ...]:
    """Return the entries of interrupted attempts. The next worker repeats each attempt under its number."""
    return tuple(build_entry(step.place, StepStatus.RUNNING, attempt=step.attempt) for step in steps if step.executing)


def end_attempts(steps: tuple[OpenEntry, ...], end: AttemptEnd) -> tuple[AttemptWrite, ...]:
    """Return the rows of attempts that end because their run ends or changes its worker."""
    return tuple(
        AttemptWrite(index=step.place.index, attempt=step.attempt, end=end, began_ago=step.began_ago)
        for step in steps
        if step.executing
    )


def resume_run(run: RunView, resumes: bool) -> RunWrite | None:
    """Return the state of a run that was waiting and that its worker now continues; None if it was not waiting."""
    if not resumes:
        return None
    return _COMPENSATING if run.undoing else _RUNNING


def drop_passed_states(transitions: list[Transition]) -> None:
    """Drop the change of a run that continues, where a later transition of the batch changes it again.

    So a run that was waiting, continued and ended is written once.
    """
    if not any(each.change is _RUNNING for each in transitions):
        return
    later: dict[tuple[int, int], int] = {}  # by run and fence: a transition that the store keeps if it keeps this one
    for number in range(len(transitions) - 1, -1, -1):
        each = transitions[number]
        if each.change is None:
            continue
        last = later.get((each.run, each.fence)) if each.change is _RUNNING else None
        if last is not None and (change := transitions[last].change) is not None:
            transitions[number] = replace(each, change=None)
            if change.diverged is None:
                transitions[last] = replace(transitions[last], change=replace(change, diverged=_RUNNING.diverged))
        elif each.only_if is None and each.expires is None:
            later[each.run, each.fence] = number


def idle_status(run: RunView, delay: int = 0) -> RunStatus:
    """Return the status of a run that has no worker. A rollback keeps its status while it waits."""
    if run.undoing:
        return RunStatus.COMPENSATING
    return RunStatus.SLEEPING if delay else RunStatus.PENDING


def suspend_run(
    run: RunView, delay: int | None, hold: int, parked_on: str | None = None, seen: int | None = None
) -> RunWrite:
    """Return the state of a run that waits: held in its worker's memory up to `hold`, else released.

    A run that waits for events (`seen`) may continue at any time, so it is held however long it may wait.
    """
    releases = delay is None or delay > hold
    if seen is not None and parked_on is None:
        releases = not hold
    return RunWrite(
        status=idle_status(run, 1),
        # A held run that waits for events has no due time: if its worker dies, the run must look for them at once.
        wake_in=delay if releases or seen is None else None,
        seen=seen if releases else None,
        release=releases,
        take=releases,
        # Code that reached a wait fits the journal, so the time to wait for other code starts again.
        diverged=False,
        parked_on=parked_on if releases else None,
    )
