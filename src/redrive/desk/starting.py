"""Starting runs by the name of their workflow, with inputs as JSON: what servers do who may lack its code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from redrive.clock import Clock
from redrive.core.options import RunOptions
from redrive.core.starting import Startable, clash, for_event, new_run
from redrive.core.transition import NewRun
from redrive.desk.checks import Checker
from redrive.errors import Conflict, InputError, UnknownWorkflow
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode
from redrive.signals.traces import here
from redrive.store.port import People
from redrive.store.records import Started
from redrive.store.workers import KnownItem

__all__ = ["Caller", "Starter", "Wanted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A run that somebody wants: the options are those of `start`.

    `event` is what starts it: a stream and an id. It is its own key, so it excludes another one.
    """

    workflow: str
    event: tuple[str, str] | None = None
    input: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Caller:
    """The credential that asks for runs. Its name is None for a process that works on the store itself."""

    name: str | None = None
    sees_payloads: bool = True


@dataclass(frozen=True, slots=True)
class _Known:
    """A workflow, and the schema of its input where this process has no code to check it by."""

    workflow: Startable
    schema: Any


class Starter:
    """Starts runs. `here` finds a workflow whose code this process has; the catalogue knows the others.

    `caller` is the credential that it works for, if it does not work for this process.
    """

    def __init__(
        self,
        store: People,
        clock: Clock,
        checker: Checker,
        here: Callable[[str], Startable | None],
        on_start: Callable[[], None],
        key_keeps: int,
        caller: Caller | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._checker = checker
        self._here = here
        self._on_start = on_start
        self._key_keeps = key_keeps
        self._caller = caller or Caller()

    async def start(self, wanted: Sequence[Wanted]) -> list[Started]:
        """Accept runs, all or none of them; a key that was used for another input is a Conflict.

        A caller who may not see payloads is told so of the keys that this caller bound. Of any other key
        the answer is a Conflict for every input: with one that depends on it, inputs could be guessed.
        """
        known = await self._known({each.workflow for each in wanted})
        runs = [await self._run(known[each.workflow], each) for each in wanted]
        started = await self._store.start(runs)
        self._on_start()
        for run, answer, each in zip(runs, started, wanted, strict=True):
            if not (answer.new or self._caller.sees_payloads or answer.maker == self._caller.name):
                raise Conflict(
                    f"the idempotency key of this start is bound to run {answer.public_id} by another "
                    "credential: use that one, a credential that may see payloads, or a new key "
                    f"(workflow {run.workflow!r}, tenant {run.tenant!r})"
                )
            if answer.clash:
                raise Conflict(clash(run, answer.public_id, each.event))
        return started

    async def _run(self, known: _Known, wanted: Wanted) -> NewRun:
        if known.schema is None:
            text = await self._checker.input(wanted.workflow, dict(wanted.input))
        else:
            what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=wanted.workflow)
            text = await self._checker.fitting(dict(wanted.input), known.schema, what)
        if wanted.event is not None and "idempotency_key" in wanted.options:
            raise InputError("an event is its own idempotency key; leave idempotency_key out")
        run = new_run(
            known.workflow,
            text,
            wanted.options,
            public_id=self._clock.new_id(),
            now=self._store.now(),
            key_keeps=self._key_keeps,
            trace=here(),
        )
        if wanted.event is not None:
            run = for_event(run, wanted.event)
        return run if run.key is None else replace(run, key_maker=self._caller.name)

    async def _known(self, names: set[str]) -> dict[str, _Known]:
        found = {name: _Known(here, None) for name in names if (here := self._here(name)) is not None}
        missing = sorted(names - found.keys())
        items = await self._store.known(missing) if missing else []
        found.update({item.name: _from_catalogue(item) for item in items if item.kind == "workflow"})
        if unknown := sorted(names - found.keys()):
            raise UnknownWorkflow(Reason(ReasonCode.CODE_UNREGISTERED, kind="workflow", name=unknown[0][:60]))
        return found


def _from_catalogue(item: KnownItem) -> _Known:
    """A workflow of the catalogue; beside the options of a run that says its time limit."""
    options = RunOptions.from_json(item.options)
    workflow = Startable(
        name=item.name,
        version=item.version,
        options=options,
        text=options.to_json(),
        timeout=json.loads(item.options).get("timeout"),
    )
    return _Known(workflow, json.loads(item.schema_in or "{}"))
