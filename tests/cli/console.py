"""Ways to call the command line: piped in this process, or as a process on a terminal."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import click.testing

from redrive.cli import main

PATIENCE = 60.0  # This allows for a loaded machine; a successful test does not wait that long.
_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def piped(*arguments: str, stdin: str | None = None) -> click.testing.Result:
    """Run a command in this process; its standard output is not a terminal."""
    return click.testing.CliRunner().invoke(main, arguments, input=stdin, prog_name="redrive")


class Terminal:
    """A command on a pseudo-terminal of 80 x 24. `text` is its output so far, without styles."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("redrive"), *arguments],
            cwd=folder,
            env={**known, "TERM": "xterm-256color", **environment},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.raw = ""

    @property
    def text(self) -> str:
        return _STYLES.sub("", self.raw).replace("\r\n", "\n")

    def wait_for(self, words: str) -> None:
        limit = time.monotonic() + PATIENCE
        while words not in self.text:
            assert time.monotonic() < limit, f"no {words!r} in {self.text}"
            assert self._read(), f"the command ended without {words!r}: {self.text}"

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Read the output until the command ends; return its exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._master)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], PATIENCE)
        assert ready, f"the command hangs after {self.text}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux raises this when the other side is closed.
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)
