"""The form of the protocol of remote workers. Golden files hold version 1: later code must read and write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.clock import MICROS, SystemClock
from redrive.core import outcomes
from redrive.core.circuit import Admission, AdmittedCall, CircuitStatus
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.journal import EntryRow
from redrive.core.outcomes import EntryRef, Outcome, RunView
from redrive.core.questions import Audience, PlannedStep, Question
from redrive.core.roles import Role
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd, EventUse, MessageWrite, NewRun, StatusNoteWrite
from redrive.reasons import Reason, ReasonCode
from redrive.remote import step_worker_protocol as step_protocol
from redrive.remote import worker_protocol
from redrive.remote.backend import RemoteClock
from redrive.store.children import AwaitedRun, Child, RunEnd
from redrive.store.circuits import CircuitRow, Permit, PermitRequest, SuccessCount
from redrive.store.claims import ClaimedRun, Lane
from redrive.store.events import EventRow, Mailbox
from redrive.store.questions import AskedQuestion, RecordedAnswer
from redrive.store.runs import AttemptRow, StartResult
from redrive.store.workers import Catalogue, CatalogueItem
from redrive.worker.backend import RollbackCause

GOLDEN = Path(__file__).parent / "wire_v1"
VIEW = RunView(id=7, public_id="run-7", tenant="acme", workflow="w", fence=3, input="null", options=RunOptions())
AT = EntryRef(2, "/pay#0", EntryKind.STEP, "pay")
FAILURE = Failure.of(Category.TIMEOUT, "too slow")
END = RunEnd(
    run_id="run-9",
    tenant="acme",
    workflow="w",
    subject="run-8",
    status=RunStatus.SUCCESS,
    output="1",
    failure=None,
    open_letter=False,
)
ENDING = FailureReason(
    failure=FAILURE, code=LetterCode.NON_RETRYABLE, reason=Reason(ReasonCode.TIMED_OUT), stage=Stage.EXEC
)
CALL = AdmittedCall("bank", "{}", 4, True)
OPEN = outcomes.OpenEntry(place=AT, attempt=2, began_ago=9)
MESSAGE = MessageWrite(
    public_id="msg-run-7-2-0", topic="t.x", payload="{}", run_id="run-7", correlation_id="c", key="k"
)

OUTCOMES: list[Outcome] = [
    outcomes.WaitStarted(
        run=VIEW, place=AT, delay=5, input="{}", subjects=("paid",), seen=1, idle=True, hold=9
    ),
    outcomes.QuestionAsked(
        run=VIEW, place=AT, delay=5, input="{}", subjects=("tk-1",), seen=1, idle=True, hold=9, kind="task",
        question=Question(
            text="Go?", schema='{"enum":["yes"]}', audience=Audience(role=Role.ADMIN, people=("ann@example.org",)),
            shown="{}", apart_from=("bob",), plan=(PlannedStep(after=3, to=Audience(role=Role.OWNER)),), notify="ops",
        ),
    ),
    outcomes.WaitAnswered(
        run=VIEW, place=AT, done=4, input="{}", output="1", uses=(EventUse(seq=2, index=2),), resumes=True
    ),
    outcomes.WaitTimedOut(run=VIEW, place=AT, done=4, seen=1, limit=5),
    outcomes.WaitFailed(run=VIEW, place=AT, done=4, input="{}", ending=ENDING, resumes=True),
    outcomes.EventsRefused(run=VIEW, place=AT, uses=(EventUse(seq=2, index=2, refused="{}"),)),
    outcomes.StatusNoted(run=VIEW, note=StatusNoteWrite(text="packing", progress=0.5, data="{}")),
    outcomes.AttemptStarted(run=VIEW, place=AT, attempt=1, input="{}", options="{}", limit=5, began_ago=2),
    outcomes.AttemptSucceeded(
        run=VIEW, place=AT, attempt=2, began_ago=5, done=6, input="{}", output="1", admitted=CALL, messages=(MESSAGE,)
    ),
    outcomes.AttemptFailed(
        run=VIEW, place=AT, attempt=2, began_ago=5, first_ago=8, done=6, input="{}", failure=FAILURE,
        step=StepOptions(), end=AttemptEnd.TIMED_OUT, idle=True, hold=9, cause=LetterCode.POLICY_VIOLATION,
        stage=Stage.OUTPUT,
        why=Reason(ReasonCode.TIMED_OUT), admitted=CALL,
    ),
    outcomes.StepParked(run=VIEW, place=AT, made=1, input="{}", options="{}", circuit="bank", noted=False, idle=True),
    outcomes.EntryCancelled(run=VIEW, place=AT, attempt=2, began_ago=4, resumes=True),
    outcomes.ValueRecorded(run=VIEW, place=AT, output="5", done=3, messages=(MESSAGE,)),
    outcomes.SleepStarted(run=VIEW, place=AT, delay=5, idle=True, hold=6),
    outcomes.SleepEnded(run=VIEW, place=AT, done=4, resumes=True),
    outcomes.RunIdle(run=VIEW, delay=None, hold=5, parked_on="bank"),
    outcomes.WorkflowReturned(run=VIEW, output='{"a":1}'),
    outcomes.WorkflowFailed(run=VIEW, ending=ENDING, place=AT, attempt=4, rolls_back=True),
    outcomes.StepReplayEnded(run=VIEW, step="pay"),
    outcomes.CodeDiverged(run=VIEW, difference=Reason(ReasonCode.JOURNAL_NOTHING), wait=outcomes.CodeWait.FOR_CODE),
    outcomes.FollowUpsPlanned(
        run=VIEW, plan=(outcomes.PlannedFollowUp(place=AT, input="{}", options="{}", runs=False),)
    ),
    outcomes.ManualActionRequested(run=VIEW, place=AT, instructions="call the bank"),
    outcomes.RollbackEnded(
        run=msgspec.structs.replace(VIEW, letter_unwritten=True), ending=ENDING, ends_as=RunStatus.COMPENSATED,
        fresh=True, count=2, uncertain=("pay",), left=("run-8",), succeeded=True,
    ),
    outcomes.ChildAwaited(run=VIEW, place=AT, subject="run-8"),
    outcomes.ChildUndone(run=VIEW, place=AT, output="{}", left=True),
    outcomes.RunReleased(run=VIEW, open=(OPEN,), delay=4),
    outcomes.DeadlinePassed(run=VIEW, open=(OPEN,)),
]  # fmt: skip

ENTRY = EntryRow(
    2, "/pay#0", EntryKind.STEP, "pay", StepStatus.SUCCESS, 1, 6, 1, 2, 3, None, None, "{}", "1", None, "{}"
)
RUN = ClaimedRun(
    7, "run-7", "acme", "w", 3, "v1", "{}", "{}", None, 0, None, None, 0, 5, None, letter="dl-1", journal=(ENTRY,)
)
CIRCUIT = CircuitRow(
    id=1, tenant="acme", key="bank", status=CircuitStatus.OPEN, generation=4, version=5, until=6, wave=0,
    next_wave_at=7, settings="{}", override=None, why=None, changed_by=None, changed_at=8,
)  # fmt: skip
ITEM = CatalogueItem(name="w", options="{}", schema_in="{}", schema_out="{}")
ATTEMPT = AttemptRow(
    index=2, attempt=1, fence=3, end=AttemptEnd.FAILED, began_at=1, ended_at=2, category="timeout", failure="{}",
    decision="{}", next_at=None, worker=9,
)  # fmt: skip
NEW = NewRun(
    public_id="run-8", tenant="acme", workflow="w", input="{}", options="{}", key="idem_job:acme:w:k", key_hash="h"
)
RECORDS: dict[str, Any] = {
    "registration": worker_protocol.Registration(
        name="host:1", protocols=(1,), lease=30 * MICROS, queues=("a",), previous=8,
        catalogue=Catalogue(version="v1", workflows=(ITEM,), steps=(ITEM,)),
    ),
    "registered": worker_protocol.Registered(
        worker=9, protocol=1, now=5, lease=30 * MICROS, wait=20 * MICROS,
        limits=worker_protocol.WorkerLimits(payload=1, body=2, batch=3, claim=4), features=(worker_protocol.GZIP,),
    ),
    "claim": worker_protocol.ClaimCall(capacity=5, suspect=True, after=Lane("acme", "default", 0, "w")),
    "claims": worker_protocol.ClaimReply(runs=[RUN], now=5, next_in=6, after=Lane("acme", "default", 0, "w")),
    "wait": worker_protocol.WaitCall(wait=MICROS),
    "waited": worker_protocol.WaitReply(due=True, now=5),
    "answers": worker_protocol.Answers(
        number=3, now=5,
        answers=[
            worker_protocol.Answer(kept=False),
            worker_protocol.Answer(
                kept=True,
                change=worker_protocol.ChangeAnswer(status=RunStatus.SLEEPING, wake_in=5, release=False, failure="{}"),
                entry=worker_protocol.EntryAnswer(
                    status=StepStatus.RETRYING, attempt=2, wake_in=5, done=4, failure="{}"
                ),
                clears=True, samples=(("bank", "{}"),),
            ),
        ],
    ),
    "beat": worker_protocol.BeatCall(steps=(worker_protocol.StepHeartbeat(run=7, index=2, details="half"),)),
    "beaten": worker_protocol.BeatReply(alive=True, held=[7], now=5),
    "held": [worker_protocol.HeldReply(id=7, public_id="run-7", tenant="acme", workflow="w", fence=3)],
    "history": worker_protocol.History(
        journal=[ENTRY], attempts=[ATTEMPT], cause=RollbackCause(failure="{}", has_letter=True, letter_code="c"),
        children=[Child("run-8", "w", True)],
    ),
    "mailbox": worker_protocol.MailboxReply(mailbox=Mailbox(2, 3, (EventRow(2, 5, "acme", "paid", "k", "ann", "1"),))),
    "awaited": worker_protocol.AwaitedCall(run_id="run-9", ends=True, undo=True),
    "awaiting": worker_protocol.AwaitedReply(awaited=AwaitedRun(wakeups=2, fence=3, end=END)),
    "ask": worker_protocol.AskedCall(index=2),
    "asked": worker_protocol.AskedReply(
        asked=AskedQuestion(
            wakeups=2, fence=3, answer=RecordedAnswer(tenant="acme", by="ann", at=5, answer='"yes"', note="fine")
        )
    ),
    "wakeups": worker_protocol.WakeupsCall(runs=(7,)),
    "woken": worker_protocol.WakeupsReply(wakeups=((7, 2),)),
    "start": worker_protocol.StartCall(runs=[NEW], claim=True),
    "started": [StartResult("run-8", True, claimed=RUN)],
    "permit": PermitRequest(tenant="acme", key="bank", settings="{}", run=7, fence=3, index=2),
    "permitted": Permit(admission=Admission.PROBE, row=CIRCUIT),
    "circuit": worker_protocol.CircuitCall(tenant="acme", key="bank", settings="{}"),
    "circuits": worker_protocol.CircuitsCall(since=5, number=3, successes=(SuccessCount("acme", "bank", "{}", 4, 5),)),
    "version": worker_protocol.VersionCall(version="v1"),
    "version_answer": worker_protocol.VersionReply(alive=True),
    "done": worker_protocol.Done(now=5),
    "retire": worker_protocol.RetireCall(),
    "step_poll": step_protocol.TaskPoll(queue="node", steps=("render",), capacity=5, wait_ms=20_000, begin=False),
    "step_tasks": step_protocol.TaskPollReply(
        tasks=[
            step_protocol.OfferedTask(
                ticket="7-2-1-5f", run_id="run-7", workflow="w", step="render", attempt=1,
                input=msgspec.Raw(b'{"a":1}'), idempotency_key="k", timeout_ms=30_000,
                tenant="acme", correlation_id="c", heartbeat_timeout_ms=10_000,
            )
        ],
        now=5,
    ),
    "step_begun": step_protocol.BeginReply(should_execute=False, now=5, cached_result="done"),
    "steps_begin": step_protocol.BeginCall(tickets=("7-2-1-0a",)),
    "steps_begun": step_protocol.BeginReplies(answers=[step_protocol.BeginReply(should_execute=True, now=5)]),
    "step_heartbeat": step_protocol.TaskHeartbeatCall(details=msgspec.Raw(b'{"pages":2}')),
    "step_heard": step_protocol.TaskHeartbeatReply(cancelled=True, now=5),
    "step_output": step_protocol.TaskOutput(output=msgspec.Raw(b'"a.pdf"')),
    "step_error": step_protocol.TaskError(error={"type": "E", "status": 503}, non_retryable=True, retry_after_ms=5),
    "step_settle": step_protocol.StepSettlement(
        answers=[
            step_protocol.TicketReport(ticket="7-2-1-5f", output=msgspec.Raw(b"1")),
            step_protocol.TicketReport(ticket="8-0-1-5f", error="no paper"),
        ]
    ),
    "step_settled": step_protocol.SettlementReply(
        answers=[
            step_protocol.ReportReply(status="RETRYING", next_in_ms=5, ticket="7-2-1-5f"),
            step_protocol.ReportReply(status="FAILED", problem="p", ticket="8-0-1-5f"),
        ],
        now=5,
    ),
}  # fmt: skip


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: worker_protocol.OUTCOME_NAMES[type(outcome)])
def test_outcomes_keep_their_form_and_come_back_equal(outcome: Outcome) -> None:
    text = worker_protocol.encode_outcome(outcome)
    kept = golden(f"outcome_{worker_protocol.OUTCOME_NAMES[type(outcome)]}")
    assert json.loads(text) == json.loads(kept)
    read = worker_protocol.decode_outcome(json.dumps({**json.loads(kept), "newer": 1}).encode())
    assert (read.run, read.fence) == (7, 3)
    assert read.complete(VIEW) == outcome


def test_every_outcome_of_a_worker_has_a_golden_file() -> None:
    assert {type(outcome) for outcome in OUTCOMES} == set(worker_protocol.OUTCOME_NAMES)
    files = {path.stem for path in GOLDEN.glob("*.json")}
    assert files == {f"outcome_{name}" for name in worker_protocol.OUTCOME_NAMES.values()} | set(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_records_keep_their_form_and_come_back_equal(name: str) -> None:
    record = RECORDS[name]
    text = msgspec.json.encode(record)
    kept = golden(name)
    assert json.loads(text) == json.loads(kept)
    if name.startswith("step_"):  # their raw JSON is compared as it is written
        assert msgspec.json.encode(msgspec.json.decode(kept, type=type(record))) == text
        return
    kind = list[type(record[0])] if isinstance(record, list) else type(record)  # type: ignore[misc]
    assert msgspec.json.decode(kept, type=kind) == record


def test_what_only_the_engine_or_users_report_cannot_be_sent() -> None:
    for kind in ("lost", "cancelled", "closed", "reopened"):
        with pytest.raises(ValueError, match="Invalid value"):
            worker_protocol.decode_outcome(json.dumps({"k": kind, "run": 1, "fence": 1}).encode())
    taken = json.loads(golden("outcome_raised")) | {"taken": True, "others": [1]}
    assert "taken" not in worker_protocol.decode_outcome(json.dumps(taken).encode()).fields


def test_the_clock_of_a_worker_may_be_wrong() -> None:
    clock = SystemClock()
    time = RemoteClock(clock)
    tomorrow = clock.now() + 86_400 * MICROS
    time.learn(tomorrow, clock.monotonic())
    assert abs(time.now() - tomorrow) < 5 * MICROS
    time.learn(tomorrow + 3600 * MICROS, clock.monotonic() - 10)  # a slow answer says less than the quick one
    assert abs(time.now() - tomorrow) < 5 * MICROS
