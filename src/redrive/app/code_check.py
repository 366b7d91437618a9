"""Checks of the code of an app against what runs recorded: in a store, on a server, or in a file of histories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from redrive.core.journal import History
from redrive.errors import Conflict, InputError
from redrive.reasons import Reason, ReasonCode
from redrive.store.encryption.keyring import Keyring
from redrive.store.result_page import iterate_pages
from redrive.worker.dry_execution import HistoryCheck, HistoryChecker

if TYPE_CHECKING:
    from redrive.app.app import Redrive
    from redrive.desk.runs import Runs

_PAGE = 50
_SHOWN = 20  # runs that a failed check names


async def check_code(app: Redrive, runs: Runs, *, sample: int | None = None) -> AsyncIterator[HistoryCheck]:
    """Yield for each open run whether its record fits the code of an app; with `sample`, up to so many per workflow.

    No step is called and nothing is written. `runs` are those of a store or of a server.
    """
    counts: dict[str, int] = {}
    async with _make_checker(app) as checker:
        async for history in iterate_pages(lambda cursor: runs.read_histories(limit=_PAGE, cursor=cursor)):
            counts[history.workflow] = count = counts.get(history.workflow, 0) + 1
            if sample is None or count <= sample:
                yield await checker.check(history)


async def check_history(app: Redrive, history: History, version: str) -> None:
    """Raise Conflict if the app has this version of a workflow, and a history does not fit it."""
    workflow = app.registered_workflows.get(history.workflow)
    if workflow is None or version != (workflow.definition.version or app.version):
        return
    async with _make_checker(app) as checker:
        check = await checker.check(history)
    if not check.fits:
        raise Conflict(Reason(ReasonCode.RUN_DOES_NOT_FIT, run=history.run_id, version=version, why=check.reason))


async def select_histories(runs: Runs, workflows: Iterable[str], per_workflow: int, by: str) -> AsyncIterator[History]:
    """Yield histories of each workflow: of open runs, newest first, then of ended ones, up to a number in all."""
    for workflow in workflows:
        left = per_workflow
        for ended in (False, True):
            cursor: str | None = None
            while left > 0:
                read = partial(runs.histories, workflow=workflow, ended=ended, by=by)
                page = await read(limit=min(left, _PAGE), cursor=cursor)
                for history in page.items:
                    yield history
                left, cursor = left - len(page.items), page.next
                if cursor is None:
                    break


async def replay_histories(app: Redrive, path: str | Path) -> list[HistoryCheck]:
    """Walk the code of an app through a file of histories; AssertionError names each run that does not fit, and why.

    `redrive runs export --histories` writes the file. An empty one is refused. Sealed lines are opened with the
    encryption keys of the app. No step is called.
    """
    histories = _read_histories(app, Path(path))
    async with _make_checker(app) as checker:
        checks = [await checker.check(history) for history in histories]
    wrong = [check for check in checks if not check.fits]
    if wrong:
        left = f"\n… and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        head = f"{len(wrong)} of {len(checks)} histories do not fit the code:"
        raise AssertionError("\n".join([head, *map(str, wrong[:_SHOWN])]) + left)
    return checks


def _read_histories(app: Redrive, path: Path) -> list[History]:
    ring = Keyring.parse(app.settings.encryption_keys, app.settings.secret_key)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise InputError(Reason(ReasonCode.HISTORIES_EMPTY, path=str(path)))
    return [History.from_line(line if ring is None else ring.open(line, None)) for line in lines]


def _make_checker(app: Redrive) -> HistoryChecker:
    definitions = {name: workflow.definition for name, workflow in app.registered_workflows.items()}
    return HistoryChecker(definitions, rules=app.rules, max_payload=app.settings.max_payload)
