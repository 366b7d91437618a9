"""The built wheel, installed into empty environments as `pip install` does it."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    (found,) = folder.glob("*.whl")
    return found


def output(command: list[str | Path], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def install(python: Path, what: str, folder: Path) -> None:
    """Install from outside: the environment has no pip, which would count as a package."""
    tool: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    if importlib.util.find_spec("pip") is None:
        uv = shutil.which("uv")
        assert uv is not None, "neither pip nor uv is there to install with"
        output([uv, "pip", "install", "--python", python, what], folder)
    else:
        output([*tool, "install", "--quiet", what], folder)


@pytest.mark.parametrize(
    ("extra", "present", "absent"),
    [
        ("", ["pydantic", "click"], ["rich", "asyncpg", "h11"]),
        ("[rich]", ["rich"], []),
        ("[postgres]", ["asyncpg"], []),
        ("[all]", ["rich", "asyncpg"], []),
    ],
)
def test_a_fresh_install_works(wheel: Path, tmp_path: Path, extra: str, present: list[str], absent: list[str]) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin/python"
    install(python, f"{wheel}{extra}", tmp_path)
    names = "from importlib.metadata import distributions as d; print(*(one.name for one in d()))"
    packages = {name.lower() for name in output([python, "-c", names], tmp_path).split()}
    assert set(present) <= packages
    assert not packages & set(absent)
    if not extra:
        assert len(packages) <= 9, packages
    assert "Durable workflows" in output([home / "bin/redrive", "--help"], tmp_path)
    assert output([home / "bin/redrive", "init", "new"], tmp_path).count("wrote") == 4
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert example is not None
    (tmp_path / "orders.py").write_text(example[1], encoding="utf-8")
    assert "paid 1990 for A-1042" in output([python, "orders.py"], tmp_path)
    listed = output([home / "bin/redrive", "runs", "list", "--url", "sqlite:///orders.db"], tmp_path)
    assert "\tfulfil\tSUCCESS\t" in listed
