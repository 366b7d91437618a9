"""Helpers that build decisions about letters: transitions under the run's present fence."""

from __future__ import annotations

from typing import Any

from store_kit import Kit, ends_in_letter, entry, noted, writes

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
from redrive.record_fields import replace
from redrive.store.audit import AuditRow
from redrive.store.claims import ClaimedRun
from redrive.store.filters import AuditFilter
from redrive.store.letters import DecisionCase
from redrive.store.runs import RunRow


def letter_of(run: ClaimedRun | RunRow) -> str:
    """Return the id of the run's letter."""
    return run.letter or f"dl-{run.public_id}"


def replay(run: ClaimedRun | RunRow, **more: Any) -> ReplayWrite:
    """Return a user's decision to replay."""
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
    """Return the move of a run's letter to another state."""
    return LetterStatusWrite(letter=letter_of(about), status=status, **more)


def reopens(run: ClaimedRun | RunRow, *entries: EntryWrite, **more: Any) -> Transition:
    """Return a transition that reopens the run, sets its letter to replaying, and records decision and audit line."""
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
    """Return a transition that starts a new run instead of this one, and moves the letter if that is open."""
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
    """Return a transition that ends a replay successfully and resolves its letter."""
    return writes(
        run,
        change=RunWrite(status=status, output='"done"', take=True),
        move=moved(run, LetterStatus.RESOLVED, by="redrive", resolution="replayed"),
        ends_replay=letter_of(run),
        audit=(noted("dlq.replay_succeeded", by="redrive", subject=run.public_id, letter=letter_of(run)),),
    )


def fails_again(run: ClaimedRun, **more: Any) -> Transition:
    """Return a transition that fails a replay and reopens its letter."""
    ended = ends_in_letter(run, **{"public_id": letter_of(run), **more})
    return replace(ended, ends_replay=letter_of(run))


def closes(run: RunRow, status: LetterStatus = LetterStatus.RESOLVED, **more: Any) -> Transition:
    """Return a transition that closes the letter without a replay: the run has failed."""
    return writes(
        run,
        change=RunWrite(status=RunStatus.FAILED, take=True),
        move=moved(run, status, **{"by": "ann", "resolution": "done by hand", **more}),
        audit=(noted("dlq.resolved", subject=run.public_id, letter=letter_of(run)),),
    )


async def failed(kit: Kit, **more: Any) -> tuple[int, RunRow]:
    """Create a run with a dead letter; return it with its former worker.

    Its journal: a step that succeeded, the one that failed, one that succeeded after it, one interrupted.
    """
    worker, run = await kit.held(**more)
    steps = (
        entry(0, done=0, output='"a"'),
        entry(1, StepStatus.DLQ, done=1, failure='{"message":"no"}', options="{}"),
        entry(2, done=2, output='"c"'),
        entry(3, StepStatus.CANCELLED),
    )
    ended = replace(ends_in_letter(run, step_index=1), entries=steps)
    assert (await kit.store.apply([ended], worker=worker))[0].kept
    return worker, await kit.look(run)


async def replayed(kit: Kit, worker: int, run: RunRow, **more: Any) -> ClaimedRun:
    """Reopen the run, claim it and return the claim."""
    assert (await kit.store.apply([reopens(run, **more)]))[0].kept
    return next(each for each in (await kit.claim(worker)).runs if each.id == run.id)


async def case_of(kit: Kit, id: str) -> DecisionCase:
    """Return the only case of this id."""
    (case,) = await kit.store.cases([id])
    return case


async def audited(kit: Kit, **where: Any) -> list[AuditRow]:
    """Return lines of the audit log, oldest first."""
    page = await kit.store.audit(AuditFilter(**where), limit=500, cursor=None)
    return page.items[::-1]


async def state_of(kit: Kit, run: RunRow) -> tuple[Any, ...]:
    """Return everything recorded about a run and its letter, to compare before and after."""
    letter = letter_of(run)
    return (
        *await kit.everything(run),
        await kit.store.letter(letter),
        await kit.store.cases([letter, run.public_id]),
        await audited(kit),
    )
