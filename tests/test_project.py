"""The project around the code: its package, its public names, and what the repository must not contain."""

import re
import subprocess
import sys
import tomllib
import types
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import redrive

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERBS = ["demo", "test", "check", "docs", "bench", "prove", "python", "help"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build a wheel and return the names of its files."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return set(archive.namelist())


def test_wheel_holds_every_file_of_the_package(wheel: set[str]) -> None:
    source = ROOT / "src"
    files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {path.relative_to(source).as_posix() for path in files}
    assert any(name.endswith(".sql") for name in expected)
    assert "redrive/py.typed" in expected
    assert expected <= wheel


def test_wheel_carries_licence_and_entry_points(wheel: set[str]) -> None:
    assert "redrive-0.1.0.dist-info/licenses/LICENSE".replace("0.1.0", version()) in wheel
    points = {(point.group, point.name, point.value) for point in metadata.entry_points(name="redrive")}
    assert points >= {
        ("console_scripts", "redrive", "redrive.cli:main"),
        ("pytest11", "redrive", "redrive.testing.plugin"),
    }


def test_entry_points_load() -> None:
    assert callable(metadata.entry_points(group="console_scripts")["redrive"].load())
    assert isinstance(metadata.entry_points(group="pytest11")["redrive"].load(), types.ModuleType)


def test_bare_install_stays_within_nine_packages() -> None:
    assert len(closure("redrive")) <= 9, sorted(closure("redrive"))


IMPORTING = """
import importlib, pathlib
for path in pathlib.Path("bench").rglob("*.py"):
    if "__" not in path.name and not path.name.endswith("_peer.py"):  # peers live in their own environments
        importlib.import_module(".".join(path.with_suffix("").parts))
import tests.cluster  # which benchmarks ask for a server
print("imported")
"""


def test_every_benchmark_can_be_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr


def test_public_surface_is_declared() -> None:
    visible = {
        name
        for name, value in vars(redrive).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert visible <= set(redrive.__all__)
    assert [name for name in redrive.__all__ if not hasattr(redrive, name)] == []


def test_public_surface_holds_the_promised_names() -> None:
    errors = {"NonRetryable", "RetryAfter", "StepFailed", "RunFailed"}
    rest = {"Redrive", "RetryPolicy", "Circuit", "step_info", "run_info", "sleep"}
    assert errors | rest <= set(redrive.__all__)


def test_changelog_begins_with_the_current_version() -> None:
    headings = re.findall(r"^## (?:Unreleased: )?(\S+)", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == version() == metadata.version("redrive")


def test_dev_and_the_guide_name_the_same_verbs() -> None:
    output = subprocess.run([ROOT / "dev", "help"], check=True, capture_output=True, text=True).stdout
    assert re.findall(r"^  (\w+)  ", output, re.MULTILINE) == VERBS
    assert [verb for verb in VERBS if f"`./dev {verb}`" not in read("CONTRIBUTING.md")] == []


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    assert "./dev test" in read("README.md")
    assert re.findall(r"^\./dev .*$", read(".ci/run"), re.MULTILINE) == ["./dev check", "./dev test"]


def test_every_decision_is_numbered_once_and_indexed() -> None:
    decisions = sorted(path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md"))
    indexed = re.findall(r"^\| .*\]\((\d{4}-[\w-]+\.md)\)", read("docs/adr/README.md"), re.MULTILINE)
    assert sorted(indexed) == decisions
    assert len({name[:4] for name in decisions}) == len(decisions)


def test_no_file_contains_a_path_of_a_private_machine() -> None:
    place = re.compile(r"(?<![\w.~$}/-])/(?:root|work|home/\w+|Users/\w+|tmp/\w+)/")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in repository_files()
        for match in place.finditer(path.read_text(encoding="utf-8", errors="ignore"))
    ]
    assert found == []


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def version() -> str:
    return str(PYPROJECT["project"]["version"])


def closure(name: str) -> set[str]:
    """Return the packages that `pip install` of one package installs, including that package."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        package = canonicalize_name(waiting.pop())
        if package in found:
            continue
        found.add(package)
        requirements = map(Requirement, metadata.requires(package) or ())
        waiting += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def repository_files() -> list[Path]:
    """Return the files that git tracks or would track; without git, all files below the root."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        output = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        paths = [ROOT / name for name in output.split("\0")]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in ROOT.rglob("*") if ".venv" not in path.parts]
    return [path for path in paths if path.is_file()]
