"""Several processes on one file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

from store_kit import HandClock, Kit, entry, writes

from redrive.clock import SystemClock
from redrive.core.states import RunStatus
from redrive.core.transitions import RunWrite
from redrive.store import open_store
from redrive.store.filters import RunFilter
from redrive.store.sql_files import load_migrations

PRELUDE = """
import asyncio, json, sys, time
from redrive.clock import SystemClock
from redrive.store import open_store
from redrive.store.runs import *
from redrive.store.claims import *
from redrive.store.workers import *
from redrive.core.states import *
from redrive.core.transitions import *

url, start_at = sys.argv[1], float(sys.argv[2])
clock = SystemClock()
catalogue = Catalogue(version="v", workflows=(), steps=())

def new(**more):
    given = dict(public_id=clock.new_id(), tenant="default", workflow="w", input="1", options="{}")
    return NewRun(**{**given, **more})

def ending(run, status):
    return Transition(run=run.id, tenant=run.tenant, fence=run.fence, change=RunWrite(status=status))

async def enlisted(store, lease=30_000_000):
    return await store.enlist(NewWorker(name="p", version="v", workflows=("w",), lease=lease), catalogue)

async def main():
    store = open_store(url, clock)
    time.sleep(max(0, start_at - time.time()))
"""


def launch(tmp_path: Path, body: str, count: int) -> list[subprocess.Popen[str]]:
    """Start processes that all begin the given body at the same moment."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    code = f"{PRELUDE}{lines}\nasyncio.run(main())\n"
    start_at = str(time.time() + 0.6)
    url = f"sqlite:///{tmp_path}/redrive.db"
    return [
        subprocess.Popen([sys.executable, "-c", code, url, start_at], stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]


def answers(processes: list[subprocess.Popen[str]]) -> list:
    found = []
    for process in processes:
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        found.append(json.loads(output))
    return found


def test_many_processes_can_open_an_empty_file_at_once(tmp_path: Path) -> None:
    body = """
await store.open()
await store.start([new()])
await store.close()
print(1)
"""
    assert answers(launch(tmp_path, body, 4)) == [1] * 4
    con = sqlite3.connect(tmp_path / "redrive.db")
    assert con.execute("SELECT count(*) FROM runs").fetchone() == (4,)
    applied = [version for (version,) in con.execute("SELECT version FROM redrive_schema ORDER BY 1")]
    assert applied == [each.version for each in load_migrations("redrive.store.sqlite")]
    con.close()


def test_one_key_started_by_many_processes_is_one_run(tmp_path: Path) -> None:
    body = """
await store.open()
made = []
for n in range(50):
    (started,) = await store.start([new(key=f"k{n}", key_hash="h", key_keeps=10**12)])
    made.append((started.public_id, started.new))
await store.close()
print(json.dumps(made))
"""
    found = answers(launch(tmp_path, body, 3))
    for each in zip(*found, strict=True):
        assert len({public_id for public_id, _ in each}) == 1
        assert sum(new for _, new in each) == 1


async def test_processes_share_the_runs_once_each(tmp_path: Path, clock: HandClock) -> None:
    kit = Kit(open_store(f"sqlite:///{tmp_path}/redrive.db", clock), clock, lambda: None, True)
    await kit.store.open()
    ids = await kit.start(600)
    await kit.store.close()
    body = """
await store.open()
worker = await enlisted(store)
mine = []
while runs := (await store.claim(ClaimRequest(worker=worker, workflows=("w",), capacity=10, suspect=True))).runs:
    done = [ending(run, RunStatus.SUCCESS) for run in runs]
    kept = await store.apply(done, worker=worker)
    mine += [r.public_id for r, answer in zip(runs, kept) if answer.kept]
await store.close()
print(json.dumps(mine))
"""
    found = answers(launch(tmp_path, body, 3))
    assert sorted(chain.from_iterable(found)) == sorted(ids)


async def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    body = """
await store.open()
while True:
    ids = [(await store.start([new()]))[0].public_id for _ in range(5)]
    print(json.dumps(ids), flush=True)
"""
    (process,) = launch(tmp_path, body, 1)
    assert process.stdout is not None
    told = [json.loads(process.stdout.readline()) for _ in range(20)]
    process.kill()
    rest = process.stdout.read().splitlines()
    process.wait(10)
    process.stdout.close()
    told += [json.loads(line) for line in rest if line.endswith("]")]
    store = open_store(f"sqlite:///{tmp_path}/redrive.db", SystemClock())
    await store.open()
    kept = await store.runs_by_id(list(chain.from_iterable(told)))
    assert len(kept) == 5 * len(told)
    await store.close()


async def test_a_zombie_process_changes_nothing(tmp_path: Path) -> None:
    """SIGSTOP a worker past its lease, let another finish its run, SIGCONT: refused, no row changes."""
    body = """
await store.open()
worker = await enlisted(store, lease=100_000)
await store.start([new()])
(run,) = (await store.claim(ClaimRequest(worker=worker, workflows=("w",), capacity=1, suspect=True))).runs
print(json.dumps([worker, run.id, run.public_id, run.fence]), flush=True)
sys.stdin.readline()
line = store.lease_connection()
beat = line.beat({worker: {}})[worker]
line.close()
(answer,) = await store.apply([ending(run, RunStatus.FAILED)], worker=worker)
print(json.dumps([beat.alive, answer.kept]))
await store.close()
"""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    url = f"sqlite:///{tmp_path}/redrive.db"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{PRELUDE}{lines}\nasyncio.run(main())\n", url, "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    zombie, run_id, public_id, fence = json.loads(process.stdout.readline())
    os.kill(process.pid, signal.SIGSTOP)
    clock = SystemClock()
    store = open_store(url, clock)
    await store.open()
    await asyncio.sleep(0.15)
    assert [row.id for row in await store.expire_workers()] == [zombie]
    (held,) = await store.held(zombie)
    kit = Kit(store, HandClock(), lambda: None, True)
    taken = writes(held.run, change=RunWrite(status=RunStatus.PENDING, wake_in=0, take=True, deaths=1))
    assert (await store.apply([taken]))[0].kept
    heir = await kit.worker()
    (run,) = (await kit.claim(heir)).runs
    assert (run.id, run.fence) == (run_id, fence + 2)
    finish = writes(run, entry(0, output="1"), change=RunWrite(status=RunStatus.SUCCESS, output="2"))
    assert (await store.apply([finish], worker=heir))[0].kept
    before = await store.run(public_id), await store.journal(run_id)
    os.kill(process.pid, signal.SIGCONT)
    output, _ = process.communicate("\n", timeout=30)
    assert json.loads(output) == [False, False]
    assert (await store.run(public_id), await store.journal(run_id)) == before
    assert len((await store.runs(RunFilter(status="SUCCESS"), limit=5, cursor=None)).items) == 1
    await store.close()
