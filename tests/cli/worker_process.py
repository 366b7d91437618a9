"""Worker processes for the tests of the command line."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 60.0  # This allows for a loaded machine; a successful test does not wait that long.


class WorkerProcess:
    """A `redrive worker …` process and its output by line."""

    def __init__(self, folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        # -P keeps the current folder off Python's path, as for the installed `redrive` script.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "redrive", "worker", *arguments],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line)
        self._queue.put(None)

    def wait_for(self, text: str) -> str:
        """Return the next line that contains the text; fail if the output ends before it."""
        while True:
            line = self._queue.get(timeout=PATIENCE)
            assert line is not None, f"no line with {text!r} in:\n{''.join(self.lines)}"
            self.lines.append(line)
            if text in line:
                return line

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the process to end; return its exit code."""
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def working(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[WorkerProcess]:
    """Run a worker process while the context is open; kill it if the test leaves it running."""
    worker = WorkerProcess(folder, *arguments, environment=environment)
    try:
        worker.wait_for("working on")
        yield worker
    finally:
        worker.end()
