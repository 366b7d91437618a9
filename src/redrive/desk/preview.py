"""Dry runs of replays: the steps that would run again, the results that would be reused, and warnings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redrive.core.circuit import CircuitStatus
from redrive.core.journal import EntryRow, generation_of_call
from redrive.core.json_edit import Change
from redrive.core.keys_and_ids import flow_key
from redrive.core.replay_plan import ReplayMode, find_answer, resolve_step_key
from redrive.core.run_options import StepOptions
from redrive.core.saga import find_started_runs
from redrive.core.states import EXECUTED_KINDS, EntryKind, StepStatus
from redrive.desk.presenter import Presenter, parse_changes, present_row
from redrive.desk.replays import PreparedReplay, Replay, Replayer, ReplayOrder
from redrive.desk.validation import in_thread_if_large, measure_size
from redrive.reasons import Reason, ReasonCode
from redrive.store.port import DeskStore
from redrive.store.workers import CatalogueRow
from redrive.time_values import to_datetime

_STEPS_FOLLOW = "and whatever follows"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A recorded step in a dry run. `idempotency_key` is the key that outside services would receive."""

    index: int
    key: str
    name: str
    kind: EntryKind
    status: StepStatus
    output: Any
    effect: str | None
    idempotency_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """A preview of a replay.

    `again`: recorded steps that run again. `reused`: results that are kept; `computed_before_the_edit` says
    that they were computed from the original input. `given`: steps whose result the user gives. Steps that follow
    have no record, so they are not listed. `unregistered`: names that no code here has any more. `undoes`: it is a
    rollback, and `again` are the compensations. `warnings` are the English sentences for `warning_reasons`.
    """

    letter_id: str
    run_id: str
    mode: str
    new_run: bool
    again: tuple[PlannedStep, ...]
    reused: tuple[PlannedStep, ...]
    given: tuple[str, ...]
    changes: tuple[Change, ...]
    computed_before_the_edit: bool
    unregistered: tuple[str, ...]
    recorded_version: str
    newest_version: str | None
    open_circuits: tuple[str, ...]
    warnings: tuple[str, ...]
    warning_reasons: tuple[dict[str, Any], ...] = ()
    undoes: bool = False
    then: str = _STEPS_FOLLOW

    @property
    def effects(self) -> tuple[PlannedStep, ...]:
        """Steps with an outside effect that would run again."""
        return tuple(step for step in self.again if step.effect is not None)


class Previewer:
    """Makes dry runs from prepared replays."""

    def __init__(self, store: DeskStore, replayer: Replayer, presenter: Presenter) -> None:
        self._store = store
        self._replayer = replayer
        self._presenter = presenter

    async def preview(self, id: str, order: ReplayOrder, *, tenant: str | None = None) -> DryRun | Replay:
        """Return what a decision would do; it is refused for the same reasons as the decision itself.

        For a decision that was made before, return its answer: repeating it does nothing.
        """
        case = await self._replayer.load_case(id, tenant=tenant)
        before = await self._replayer.find_earlier_answer(case, order)
        return before or await self._present_dry_run(await self._replayer.prepare(case, order))

    async def _present_dry_run(self, prepared: PreparedReplay) -> DryRun:
        case, decision = prepared.case, prepared.decision
        plan, request = decision.plan, decision.request
        names = {entry.name for entry in (*case.journal, *plan.again) if entry.kind in EXECUTED_KINDS}
        known = await self._store.known([case.run.workflow, *sorted(names)])
        again = await self._present_steps(prepared, _select_rerun_entries(prepared), known)
        code = next((item for item in known if (item.kind, item.name) == ("workflow", case.run.workflow)), None)
        newest = None if code is None else code.code_version
        abandoned = newest is not None and await self._replayer.is_abandoned(case)
        # A step that was interrupted has no result to reuse.
        ended = [entry for entry in (*plan.kept, *plan.loose) if entry.ended_at is not None]
        # Skipping a compensation, or marking it as done, gives a result, too.
        is_about_undo = plan.undo is not None and request.mode is not ReplayMode.FROM_FAILED
        gives_result = decision.output is not None or is_about_undo
        by_hand = (plan.failed.name,) if plan.failed is not None and gives_result else ()
        # Names that no code has any more.
        there = {item.name for item in known if item.kind == "step" and code and item.version == code.version}
        unregistered = [case.run.workflow] if newest is None or abandoned else []
        warnings = list(_collect_warnings(prepared, again, newest, abandoned=abandoned))
        return DryRun(
            letter_id=case.subject,
            run_id=case.run.public_id,
            mode=request.mode.value,
            new_run=request.mode is ReplayMode.FULL,
            again=again,
            reused=await self._present_steps(prepared, _exclude_given(prepared, ended), known),
            given=(*by_hand, *decision.skipped),
            changes=parse_changes(decision.changes),
            computed_before_the_edit=request.edits and bool(plan.kept or plan.loose),
            unregistered=(*unregistered, *sorted(names - there)),
            recorded_version=case.run.version,
            newest_version=newest,
            open_circuits=await self._find_open_circuits(prepared, known),
            warnings=tuple(map(str, warnings)),
            warning_reasons=tuple(each.to_json() for each in warnings),
            undoes=plan.rolls_back or plan.undo is not None,
            then="and that is all" if plan.rolls_back or plan.undo else _STEPS_FOLLOW,
        )

    async def _find_open_circuits(self, prepared: PreparedReplay, known: list[CatalogueRow]) -> tuple[str, ...]:
        """Return the keys of open circuits of steps that ran in this run or may follow."""
        run = prepared.case.run
        texts = {item.name: item.options for item in known if item.kind == "step"}
        texts |= {entry.name: entry.options for entry in prepared.case.journal if entry.options}
        passed = [StepOptions.from_json(text).build_admitted_call(run.workflow, name) for name, text in texts.items()]
        keys = sorted({admitted.key for admitted in passed if admitted is not None})
        rows = [(await self._store.circuit(run.tenant, key)).row for key in keys]
        return tuple(row.key for row in rows if row.status is not CircuitStatus.CLOSED)

    async def _present_steps(
        self, prepared: PreparedReplay, entries: Iterable[EntryRow], known: list[CatalogueRow]
    ) -> tuple[PlannedStep, ...]:
        options = {item.name: item.options for item in known if item.kind == "step"}
        executed = [entry for entry in entries if entry.kind in EXECUTED_KINDS]

        run, request = prepared.case.run, prepared.decision.request

        def present(entry: EntryRow) -> PlannedStep:
            generation = run.generation + request.new_operation
            if not request.new_operation and request.mode is not ReplayMode.FULL:  # a new run has only its own
                generation = generation_of_call(prepared.case.journal, entry.key, run.generation)
            text = entry.options or options.get(entry.name)
            return present_row(
                PlannedStep,
                entry,
                output=self._presenter.payload(entry.output),
                effect=None if text is None else StepOptions.from_json(text).effect,
                idempotency_key=flow_key(run.tenant, run.root or run.public_id, entry.key, generation),
            )

        return await in_thread_if_large(lambda: tuple(map(present, executed)), measure_size(executed))


def _select_rerun_entries(prepared: PreparedReplay) -> Iterable[EntryRow]:
    """Return the entries that run again; a replay of one step alone continues no interrupted ones."""
    plan, mode = prepared.decision.plan, prepared.decision.request.mode
    if mode is ReplayMode.STEP_ONLY and plan.failed is not None:
        return (plan.failed,)
    if plan.undo is not None and mode is not ReplayMode.FROM_FAILED:
        return [entry for entry in plan.again if entry is not plan.undo]
    cut_short = [entry for entry in (*plan.kept, *plan.loose) if entry.ended_at is None]
    return _exclude_given(prepared, (*plan.again, *cut_short))


def _exclude_given(prepared: PreparedReplay, entries: Iterable[EntryRow]) -> Iterable[EntryRow]:
    failed, decision = prepared.decision.plan.failed, prepared.decision
    given = {resolve_step_key(name) for name in decision.skipped}
    if failed is not None and decision.output is not None:
        given.add(failed.key)
    return [entry for entry in entries if entry.key not in given]


def _collect_warnings(
    prepared: PreparedReplay, again: Iterable[PlannedStep], newest: str | None, *, abandoned: bool
) -> Iterable[Reason]:
    request, run = prepared.decision.request, prepared.case.run
    if newest is not None and newest != run.version:
        yield Reason(ReasonCode.VERSION_CHANGED, version=run.version, newest=newest)
    if newest is None:
        yield Reason(ReasonCode.WORKFLOW_NEVER_REGISTERED, workflow=run.workflow)
    if abandoned:
        yield Reason(ReasonCode.WORKFLOW_HAS_NO_WORKER, workflow=run.workflow)
    if request.edits and (prepared.decision.plan.kept or prepared.decision.plan.loose):
        yield Reason(ReasonCode.RESULTS_FROM_ORIGINAL_INPUT)
        for entry in (*prepared.decision.plan.kept, *prepared.decision.plan.loose):
            if (answer := find_answer(entry)) is not None:
                at = to_datetime(answer["at"]).isoformat()
                yield Reason(ReasonCode.ANSWER_FOR_ORIGINAL_INPUT, by=answer["by"], at=at)
    if request.edits and not request.new_operation and (names := tuple(step.name for step in again)):
        yield Reason(ReasonCode.SAME_IDEMPOTENCY_KEY, n=len(names), names=names)
    if request.new_operation:
        yield Reason(ReasonCode.NEW_IDEMPOTENCY_KEYS)
    for run_id in prepared.children:
        yield Reason(ReasonCode.CHILD_REPLAYED, run=run_id)
    if prepared.decision.plan.rolls_back and (count := len(find_started_runs(prepared.case.journal))):
        yield Reason(ReasonCode.CHILD_ROLLED_BACK, n=count)
    for step in again:
        if step.status is StepStatus.RUNNING:
            yield Reason(ReasonCode.STEP_MAY_HAVE_HAPPENED, step=step.name)
        if step.status is StepStatus.SUCCESS and step.effect is not None:
            yield Reason(ReasonCode.STEP_ACTS_AGAIN, step=step.name, effect=step.effect)
