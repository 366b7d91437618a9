"""The built wheel, installed into empty environments: what a user gets from `pip install`."""

import os
import re
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


@pytest.mark.parametrize(
    ("extra", "present", "absent"),
    [
        ("", ["pydantic", "click"], ["rich", "asyncpg"]),
        ("[rich]", ["rich"], []),
        ("[postgres]", ["asyncpg"], []),
    ],
)
def test_a_fresh_install_works(
    wheel: Path, tmp_path: Path, extra: str, present: list[str], absent: list[str]
) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin/python"
    output([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{wheel}{extra}"], tmp_path)
    listing = output(
        [python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"], tmp_path
    )
    packages = {line.partition("==")[0].lower() for line in listing.split()} - {"pip", "setuptools"}
    assert set(present) <= packages
    assert not packages & set(absent)
    if not extra:
        assert len(packages) <= 8, packages
    assert "Durable workflows" in output([home / "bin/redrive", "--help"], tmp_path)
    assert output([home / "bin/redrive", "init", "new"], tmp_path).count("wrote") == 4
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert example is not None
    (tmp_path / "orders.py").write_text(example[1], encoding="utf-8")
    assert "paid 1990 for A-1042" in output([python, "orders.py"], tmp_path)
    listed = output([home / "bin/redrive", "runs", "list", "--url", "sqlite:///orders.db"], tmp_path)
    assert "\tfulfil\tSUCCESS\t" in listed
