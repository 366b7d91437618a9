"""Plants the defects of `docs/internals/proofs.md` one by one in a copy of the source, and runs the test of each.

    ./dev python tools/plant_defects.py            all of them
    ./dev python tools/plant_defects.py backoff    those whose row contains a word

Prints a line per defect, and returns 1 if a test passes although its defect is there, or fails without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "internals" / "proofs.md"
ROW = re.compile(
    r"\| (?P<place>[^|]+) \| `(?P<text>.+?)` → `(?P<defect>.+?)` \| (?P<name>.+?) "
    r"\| `(?P<file>[\w/.]+)`: `(?P<test>\w+)`"
)


@dataclass(frozen=True)
class Defect:
    """A defect: the folder of the package, the text that it replaces and by what, and the test that finds it."""

    name: str
    package: str
    text: str
    defect: str
    test: str

    def plant(self, source: Path) -> tuple[Path, str]:
        """Write the defect into the one file that has the text; return the file with its old content."""
        folder = source / "redrive" / self.package.replace(".", "/")
        found = [
            path
            for path in sorted(folder.rglob("*"))
            if path.suffix in (".py", ".sql") and self.text in path.read_text()
        ]
        if len(found) != 1 or found[0].read_text().count(self.text) != 1:
            places = ", ".join(str(path.relative_to(source)) for path in found) or "no file"
            raise SystemExit(
                f"{self.name}: {self.text!r} must stand once below {folder.relative_to(source)}, not in {places}"
            )
        old = found[0].read_text()
        found[0].write_text(old.replace(self.text, self.defect))
        return found[0], old


def read_defects(word: str) -> Iterator[Defect]:
    """Yield the defects of the table whose row contains a word."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if (row := ROW.match(line)) and word in line:
            package = row["place"].split(",")[0].strip().strip("`")
            yield Defect(row["name"], package, row["text"], row["defect"], f"{row['file']}::{row['test']}")


def passes(test: str, source: Path) -> bool:
    """Run a test with this source; return True if it passes. A test that cannot run is an error."""
    file, _, name = test.partition("::")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{file}", "-k", name]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{test} did not run:\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    """Try each defect; return the exit code."""
    defects = list(read_defects(*arguments[:1] or [""]))
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for defect in defects:
            without = passes(defect.test, source)
            file, old = defect.plant(source)
            found = not passes(defect.test, source)
            file.write_text(old)
            missed += not (found and without)
            verdict = "found" if found and without else "NOT FOUND" if without else "fails without the defect"
            print(f"{verdict:10} {defect.name}: {defect.test}", flush=True)
    print(f"{len(defects)} defects, {missed} not found")
    return 1 if missed or not defects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
