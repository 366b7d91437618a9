"""Worker processes on one SQLite file, started, stopped, frozen and killed from a test."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import scenes
from ledger import Ledger

from redrive import Redrive

__all__ = ["LEASE", "Fleet", "Member", "until"]

LEASE = 2.5
PATIENCE = 40.0
"""Seconds after which a test stops waiting for a condition."""

_HERE = Path(__file__).parent


def until(condition: Callable[[], Any], what: str) -> Any:
    """Poll until the condition holds and return its value; fail after `PATIENCE` seconds."""
    give_up_at = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"waited {PATIENCE:g} s in vain until {what}"
        time.sleep(0.01)
    return found


class Member:
    """A process of the fleet."""

    def __init__(self, who: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.who = who
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        """Output of the process so far."""
        return self._log.read_text(errors="replace")

    def says(self, words: str) -> None:
        """Wait until the process prints these words."""
        until(lambda: words in self.log or self._process.poll() is not None, f"{self.who} says {words!r}")
        assert words in self.log, f"{self.who} ended without saying {words!r}:\n{self.log}"

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Pause the process with SIGSTOP, and wait until the kernel has done so."""
        self.signal(signal.SIGSTOP)
        until(lambda: _state(self._process.pid) == "T", f"{self.who} is paused")

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def ended(self) -> int:
        """Wait for the end of the process and return its exit code."""
        code = until(lambda: (self._process.poll(),) if self.is_gone else None, f"{self.who} ends")[0]
        assert isinstance(code, int)
        return code

    @property
    def is_gone(self) -> bool:
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        return self._process.pid


class Fleet:
    """Processes with the file that they share and the ledger that they write to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "redrive.db"
        self.url = f"sqlite:///{self.file}"
        self.ledger = Ledger(folder / "ledger")
        self.members: list[Member] = []
        self.killed: set[str] = set()

    def app(self) -> Redrive:
        """Return an app for the test's own process, to start and read runs."""
        return scenes.build(self.url, self.folder)

    def start(self, *, wait: bool = True, **settings: Any) -> Member:
        """Start one more worker, and with `wait` return only when it is working."""
        who = f"w{len(self.members)}"
        given = {"lease": LEASE, "chores": 0.2, "concurrency": 10, **settings}
        return self._spawn(who, ["crew", self.url, str(self.folder), who, json.dumps(given)], wait=wait)

    def run(self, module: str, *arguments: str) -> Member:
        """Start another program of this folder."""
        who = f"{module}{len(self.members)}"
        return self._spawn(who, [module, *arguments], wait=False)

    def _spawn(self, who: str, command: list[str], *, wait: bool) -> Member:
        log = self.folder / f"{who}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=_HERE, stdout=output, stderr=subprocess.STDOUT
            )
        member = Member(who, process, log)
        self.members.append(member)
        if wait:
            member.says("working on")
        return member

    def kill(self, member: Member) -> None:
        """Kill a worker and record it, because its attempts may be repeated."""
        member.kill()
        self.killed.add(member.who)

    def taken_for_dead(self) -> set[str]:
        """Return live workers that lost their lease: a stalled disk looks like a death to other workers."""
        return {member.who for member in self.members if "was declared dead" in member.log}

    def freeze(self, member: Member) -> None:
        """Pause a worker, but not during a write, which would lock the file for all other processes."""

        def frozen() -> bool:
            member.stop()
            if self._is_free():
                return True
            member.thaw()
            return False

        until(frozen, f"{member.who} is paused without a lock on the file")

    def _is_free(self) -> bool:
        with closing(sqlite3.connect(self.file, timeout=0, isolation_level=None)) as con:
            try:
                con.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            con.execute("ROLLBACK")
            return True

    def close(self) -> None:
        """Kill the processes of this fleet that still run."""
        for member in self.members:
            if not member.is_gone:
                member.kill()

    # -- the file, read without the engine ------------------------------------------------------------

    def rows(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds in the file now."""
        with closing(sqlite3.connect(self.file, timeout=10)) as con:
            return con.execute(query, params).fetchall()

    def execute(self, statement: str, *params: Any) -> None:
        with closing(sqlite3.connect(self.file, timeout=10)) as con, con:
            con.execute(statement, params)

    def everything_about(self, run_id: str) -> dict[str, list[tuple[Any, ...]]]:
        """Return the rows of a run in every table."""
        ((id,),) = self.rows("SELECT id FROM runs WHERE public_id = ?", run_id)
        found = {"runs": self.rows("SELECT * FROM runs WHERE id = ?", id)}
        for table in ("inputs", "results", "entries", "attempts", "letters", "idempotency"):
            found[table] = self.rows(f"SELECT * FROM {table} WHERE run = ?", id)
        return found

    def unfinished(self) -> int:
        """Return the number of accepted runs that have not ended."""
        return int(self.rows("SELECT count(*) FROM runs WHERE finished_at IS NULL")[0][0])

    def all_ended(self) -> None:
        """Wait until every accepted run has ended."""
        until(lambda: self.unfinished() == 0, "every run has ended")


def _state(pid: int) -> str:
    """Return the process state as one letter; T means stopped by a signal."""
    if os.path.exists(f"/proc/{pid}/stat"):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    shown = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1]
