"""The pytest plugin: it has a fixture and a seed option, and costs nothing while unused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import redrive.testing
from redrive import Redrive
from redrive.testing import Engine

pytestmark = pytest.mark.heavy

TEST_FILE = """
import pytest
from redrive import Redrive

app = Redrive()

@app.workflow
async def quick() -> int:
    return 1

@pytest.mark.asyncio
async def test_it(redrive_engine):
    async with redrive_engine(app) as e:
        assert (await e.run(quick)).result == 1
        assert e.clock.seed == {seed}
"""


async def test_the_fixture_makes_engines(redrive_engine: Callable[..., AbstractAsyncContextManager[Engine]]) -> None:
    app = Redrive("sqlite:///never-opened.db")

    @app.workflow
    async def quick() -> int:
        return 1

    async with redrive_engine(app) as e:
        assert (await e.run(quick)).result == 1
    async with redrive_engine(app, seed=11) as e:
        assert e.clock.seed == 11


@pytest.mark.parametrize(("options", "seed"), [([], 0), (["--redrive-seed=7"], 7)])
def test_the_seed_is_an_option(tmp_path: Path, options: list[str], seed: int) -> None:
    (tmp_path / "test_it.py").write_text(TEST_FILE.format(seed=seed), encoding="utf-8")
    pytest = [sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", "-pno:schemathesis"]
    done = subprocess.run([*pytest, *options, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_loading_the_plugin_imports_none_of_the_kit() -> None:
    code = (
        "import sys, redrive.testing.plugin; "
        "print([name for name in sys.modules if name.startswith('redrive.testing.') "
        "and name != 'redrive.testing.plugin'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists() -> None:
    for name in redrive.testing.__all__:
        assert getattr(redrive.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = redrive.testing.nothing  # type: ignore[attr-defined]
