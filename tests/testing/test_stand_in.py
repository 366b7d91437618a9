"""Stand-ins: functions that execute remote steps in tests."""

from __future__ import annotations

import pytest

from redrive import Redrive, RetryPolicy
from redrive.errors import ConfigurationError, MisusedStep, RegistrationError
from redrive.testing import engine, stand_in


async def test_a_function_stands_in_for_the_workers_of_a_remote_step() -> None:
    app = Redrive()
    made = []

    @app.step(remote="node", retry=RetryPolicy(max_retries=2, delays=["1h"]))
    async def render(number: int) -> int: ...

    @app.step
    def local() -> None: ...

    @app.workflow
    async def flow(number: int) -> int:
        return await render(number)

    def fake(number: int) -> int:
        made.append(number)
        if len(made) < 3:
            raise ConnectionError("no line")
        return number + 1

    with stand_in(render, fake):
        async with engine(app) as e:
            run = await e.run(flow, 1)
    assert (run.result, made) == (2, [1, 1, 1])
    assert len(run.step("render").attempts) == 3
    assert render.options.remote == "node"
    with pytest.raises(MisusedStep, match="queue 'node'"):
        await render(1)
    with pytest.raises(ConfigurationError, match="use faults"), stand_in(local, fake):
        pass
    with pytest.raises(RegistrationError, match="cannot be transactional"):
        app.step(name="other", remote="node", transactional=True)(render.fn)
