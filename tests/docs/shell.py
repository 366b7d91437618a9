"""A reader's shell: one folder and one environment from the first block of a page to the last."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO

PATIENCE = 120
BARE = ("-pno:schemathesis", "-pno:hypothesispytest")  # readers need not have it, and it is slow to load
_BIN = Path(sys.executable).parent


class Shell:
    """Runs blocks one after the other. `folder` is where `cd` has led, and `environment` what was exported.

    Variables are exported without being asked, so that the next block knows them, too.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        known = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE", "PYTEST"))}
        own = {"PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder), "COLUMNS": "80"}
        own["PYTEST_ADDOPTS"] = " ".join(BARE)
        self.folder = folder
        self.environment = {**known, **own, "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1", **environment}
        self._state = folder / ".shell-state"
        self._server: Server | None = None

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        self._state.unlink(missing_ok=True)
        if server is not None and error is None:
            server.stop()
        elif server is not None:
            error.add_note(f"the server said:\n{server.kill()}")  # type: ignore[union-attr]

    def run(self, code: str, *, fails: bool = False) -> str:
        """Run a block up to its first failing command and return its output; `fails` says if it must fail."""
        script = f"set -ea\n{code}\nset +a\npwd >'{self._state}'; env -0 >>'{self._state}'\n"
        ended, printed = self._finish(script)
        assert (ended != 0) == fails, f"exit code {ended}:\n{printed}"
        if not fails:
            self._remember()
        return printed

    def _finish(self, script: str) -> tuple[int, str]:
        """Return exit code and output of a script; kill it with its children if it does not end."""
        with subprocess.Popen(
            ["sh", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, _ = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, printed

    def serve(self, code: str) -> None:
        """Start a block that runs until Ctrl-C, replacing the previous one, and wait for its first output."""
        if self._server is not None:
            self._server.stop()
        self._server = Server(code, self)

    def _remember(self) -> None:
        folder, _, rest = self._state.read_text(encoding="utf-8").partition("\n")
        pairs = (entry.partition("=") for entry in rest.split("\0") if entry)
        self.folder, self.environment = Path(folder), {name: value for name, _, value in pairs}


class Server:
    """A block that runs beside the others until it gets Ctrl-C."""

    def __init__(self, code: str, shell: Shell) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", f"exec {code.strip()}"],
            cwd=shell.folder,
            env={**shell.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        self._said = [self._lines.get(timeout=PATIENCE)]

    def stop(self) -> None:
        """Press Ctrl-C; assert that the block was alive until then and ends cleanly."""
        assert self._process.poll() is None, f"the block ended by itself:\n{self.kill()}"
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(PATIENCE)
        assert code == 0, f"exit code {code}:\n{self.kill()}"

    def kill(self) -> str:
        """Kill the block in any state and return its output."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE)
        while not self._lines.empty():
            self._said.append(self._lines.get())
        return "".join(self._said)

    def _listen(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.put(line)
        self._lines.put("")
