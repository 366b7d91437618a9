"""Short ways to say what people decide about letters: transitions under the run's present fence."""

from __future__ import annotations

from typing import Any

from store_kit import Kit, buried, entry, noted, writes

from redrive.core.states import LetterStatus, RunStatus, StepStatus
from redrive.core.transitions import (
    EntryWrite,
    LetterStatusWrite,
    NewRun,
    ReopenWrite,
    ReplayWrite,
    RunWrite,
    Transition,
)
from redrive.records import replace
from redrive.store.filters import AuditFilter
from redrive.store.letters import AuditRow, DecisionCase
from redrive.store.runs import RunRow
from redrive.store.workers import ClaimedRun


def letter_of(run: ClaimedRun | RunRow) -> str:
    """The id of the run's letter."""
    return run.letter or f"dl-{run.public_id}"


def replay(run: ClaimedRun | RunRow, **more: Any) -> ReplayWrite:
    """Somebody's decision to replay."""
    given: dict[str, Any] = {
        "letter": letter_of(run),
        "mode": "FROM_FAILED",
        "digest": "d1",
        "request": '{"mode":"FROM_FAILED"}',
        "run_id": run.public_id,
        "by": "ann",
    }
    return ReplayWrite(**{**given, **more})


def moved(about: ClaimedRun | RunRow, status: LetterStatus, **more: Any) -> LetterStatusWrite:
    """The letter of a run in another state."""
    return LetterStatusWrite(letter=letter_of(about), status=status, **more)


def reopens(run: ClaimedRun | RunRow, *entries: EntryWrite, **more: Any) -> Transition:
    """The run goes on, its letter is being replayed, the decision and its audit line are kept."""
    return writes(
        run,
        *entries,
        change=RunWrite(status=RunStatus.PENDING, wake_in=0, take=True, deaths=0, diverged=False),
        reopens=ReopenWrite(letter=letter_of(run), **more),
        move=moved(run, LetterStatus.REPLAYING),
        replay=replay(run),
        audit=(noted("dlq.retry", tenant=run.tenant, subject=run.public_id, letter=letter_of(run)),),
    )


def restarts(run: RunRow, new: NewRun, *, moves: bool = True) -> Transition:
    """A new run takes the run's place, and its letter, if that is open."""
    status = RunStatus.FAILED if run.status is RunStatus.DLQ_PENDING else run.status
    return writes(
        run,
        change=RunWrite(status=status, take=True),
        starts=(replace(new, letter=letter_of(run) if moves else None, replay_of=run.public_id),),
        move=moved(run, LetterStatus.REPLAYING, run=new.public_id) if moves else None,
        replay=replay(run, mode="FULL", run_id=new.public_id),
        audit=(noted("dlq.retry", subject=run.public_id, letter=letter_of(run)),),
    )


def answers(run: ClaimedRun, status: RunStatus = RunStatus.SUCCESS) -> Transition:
    """The replay ended well: its letter is resolved."""
    return writes(
        run,
        change=RunWrite(status=status, output='"done"', take=True),
        move=moved(run, LetterStatus.RESOLVED, by="redrive", resolution="replayed"),
        ends_replay=letter_of(run),
        audit=(noted("dlq.replay_succeeded", by="redrive", subject=run.public_id, letter=letter_of(run)),),
    )


def fails_again(run: ClaimedRun, **more: Any) -> Transition:
    """The replay failed: its letter is open again."""
    ended = buried(run, **{"public_id": letter_of(run), **more})
    return replace(ended, ends_replay=letter_of(run))


def closes(run: RunRow, status: LetterStatus = LetterStatus.RESOLVED, **more: Any) -> Transition:
    """Somebody closes the letter without a replay: the run has failed for good."""
    return writes(
        run,
        change=RunWrite(status=RunStatus.FAILED, take=True),
        move=moved(run, status, **{"by": "ann", "resolution": "done by hand", **more}),
        audit=(noted("dlq.resolved", subject=run.public_id, letter=letter_of(run)),),
    )


async def failed(kit: Kit, **more: Any) -> tuple[int, RunRow]:
    """A run in the dead letters, and the worker that had it.

    Its journal: a step that succeeded, the one that failed, one that succeeded after it, one cut off.
    """
    worker, run = await kit.held(**more)
    steps = (
        entry(0, done=0, output='"a"'),
        entry(1, StepStatus.DLQ, done=1, failure='{"message":"no"}', options="{}"),
        entry(2, done=2, output='"c"'),
        entry(3, StepStatus.CANCELLED),
    )
    ended = replace(buried(run, step_index=1), entries=steps)
    assert (await kit.store.apply([ended], worker=worker))[0].kept
    return worker, await kit.look(run)


async def replayed(kit: Kit, worker: int, run: RunRow, **more: Any) -> ClaimedRun:
    """The run again, reopened and claimed."""
    assert (await kit.store.apply([reopens(run, **more)]))[0].kept
    return next(each for each in (await kit.claim(worker)).runs if each.id == run.id)


async def case_of(kit: Kit, id: str) -> DecisionCase:
    """The one case of this id."""
    (case,) = await kit.store.cases([id])
    return case


async def audited(kit: Kit, **where: Any) -> list[AuditRow]:
    """Lines of the audit log, oldest first."""
    page = await kit.store.audit(AuditFilter(**where), limit=500, cursor=None)
    return page.items[::-1]


async def state_of(kit: Kit, run: RunRow) -> tuple[Any, ...]:
    """All that is recorded about a run and its letter, to compare before and after."""
    letter = letter_of(run)
    return (
        *await kit.everything(run),
        await kit.store.letter(letter),
        await kit.store.cases([letter, run.public_id]),
        await audited(kit),
    )
