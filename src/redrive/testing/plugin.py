"""The pytest plugin: the fixture `redrive_engine` and the option `--redrive-seed`.

    async def test_it(redrive_engine):
        async with redrive_engine(app) as e:
            ...

It is loaded with pytest wherever redrive is installed, so it imports nothing before it is used.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from redrive.testing.driver import Engine


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the seed of all engines be chosen for one session."""
    parser.getgroup("redrive").addoption(
        "--redrive-seed", type=int, default=0, help="the seed of every engine from the fixture redrive_engine"
    )


@pytest.fixture
def redrive_engine(request: pytest.FixtureRequest) -> Callable[..., AbstractAsyncContextManager[Engine]]:
    """`redrive.testing.driver`, with the seed of this session (`pytest --redrive-seed=7`)."""
    from redrive.testing.driver import engine

    return functools.partial(engine, seed=request.config.getoption("--redrive-seed"))
