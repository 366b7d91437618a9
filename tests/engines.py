"""Engines on every database, for behaviour that must be the same on each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any

import cluster
import empty_schema
import pytest

from redrive import Redrive
from redrive.testing import Engine, engine, simulation

KINDS = ["sqlite", *cluster.ENOUGH]
REMOTE = "remote"
"""SQLite, and a worker that reaches it through a server."""

OnStore = Callable[..., AbstractAsyncContextManager[Engine]]


def paired(on_sqlite: str, on_postgres: str) -> list[Any]:
    """Return pairs of a database and one of two values: each value once; `./dev prove` adds the other pairs."""
    normal = [("sqlite", on_sqlite), *((kind, on_postgres) for kind in cluster.POSTGRES[-1:])]
    every = [(kind, value) for kind in ("sqlite", *cluster.POSTGRES) for value in (on_sqlite, on_postgres)]
    return [*normal, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in every if pair not in normal)]


REMOTE_MODULES = frozenset(
    {
        *("test_story_accounting", "test_story_circuits", "test_story_handlers", "test_story_idempotency"),
        *("test_story_notifications", "test_story_queue", "test_story_reliability", "test_story_saga"),
        *("test_crash_scenarios", "test_failure_handlers", "test_feature_combinations"),
        *("test_tasks", "test_saga_rollback", "test_saga_tcc", "test_saga_children", "test_saga_actions"),
        *("test_circuits_parking", "test_circuits_branches", "test_circuits_crashes"),
        *("test_worker_children", "test_worker_events"),
    }
)
"""Modules whose tests also run with a remote worker: as a third kind beside SQLite and PostgreSQL."""

_FROM_TOKEN = "a run that a remote worker starts is started by its token"
_NO_TRANSACTION = "a remote worker has no transaction that its steps could join"
_NO_WORKER = "the test opens no engine"
_DEAR = "its crashes take many seconds, and those of test_saga_tcc undo steps as well"
LOCAL_ONLY = {
    "test_transactional_step": _NO_TRANSACTION,
    "test_def_steps_and_transactional_steps_are_undone": _NO_TRANSACTION,
    "test_a_second_person_is_asked_where_four_eyes_are": _FROM_TOKEN,
    "test_a_replay_gives_no_answer_in_the_place_of_those_who_were_asked": _FROM_TOKEN,
    "test_compensation_is_idempotent_and_safe_to_run_again": _DEAR,
    "test_a2_of_a_thousand_runs_against_an_open_circuit_none_is_lost": "few runs show the same in less time",
    "test_security_checklist_notification_webhooks_are_validated": _NO_WORKER,
    "test_a_question_without_a_possible_answer_is_refused": _NO_WORKER,
    "test_a_question_needs_a_run": _NO_WORKER,
    "test_no_driver_executes_two_statements": _NO_WORKER,
    "test_the_http_client_closes_its_connections_with_the_worker": _NO_WORKER,
    "test_a_snapshot_shows_the_generation_that_admitted_an_attempt": _NO_WORKER,
}
"""Tests of those modules that run beside the store only, and why."""


def runs_remotely(module: str, test: str) -> bool:
    """Return True for a test that runs with a remote worker, too."""
    return module in REMOTE_MODULES and test not in LOCAL_ONLY


@contextmanager
def remote_workers() -> Iterator[None]:
    """Give the engines that are opened inside a remote worker each."""
    import remote_engine  # the server's routes take most of a second

    before = remote_engine.RemoteWorkRuntime.workers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "Runtime", remote_engine.RemoteWorkRuntime)
        yield
    assert remote_engine.RemoteWorkRuntime.workers > before, "the test has no worker: name it in LOCAL_ONLY"


@asynccontextmanager
async def on(kind: str) -> AsyncIterator[OnStore]:
    """Yield `engine` bound to an empty database of a kind."""
    if kind in ("sqlite", REMOTE):
        with remote_workers() if kind == REMOTE else nullcontext():
            yield engine_on("sqlite:///:memory:")
        return
    cluster.need_postgres()
    async with empty_schema.ready(kind) as url:
        yield engine_on(url)


def engine_on(url: str) -> OnStore:
    """Return `engine` bound to the database at this address."""

    @asynccontextmanager
    async def opened(app: Redrive, **options: Any) -> AsyncIterator[Engine]:
        async with engine(app, store=url, **options) as e:
            yield e
            lease = e.worker.lease
        await lease.stop()  # a heartbeat after the stop may have connected once more

    return opened
