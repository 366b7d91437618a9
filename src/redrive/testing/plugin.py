"""The pytest plugin: the fixture `redrive_engine` and the option `--redrive-seed`.

    async def test_it(redrive_engine):
        async with redrive_engine(app) as e:
            ...

Pytest loads it wherever redrive is installed, so it imports the engine only when the fixture is used.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from redrive.testing.virtual_engine import Engine


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--redrive-seed`."""
    parser.getgroup("redrive").addoption(
        "--redrive-seed", type=int, default=0, help="the seed of every engine from the fixture redrive_engine"
    )


@pytest.fixture
def redrive_engine(request: pytest.FixtureRequest) -> Callable[..., AbstractAsyncContextManager[Engine]]:
    """Return `redrive.testing.engine` with the seed of this session (`pytest --redrive-seed=7`)."""
    from redrive.testing.virtual_engine import engine

    return functools.partial(engine, seed=request.config.getoption("--redrive-seed"))
