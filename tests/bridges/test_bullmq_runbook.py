"""The commands of the runbook, against queues that a bridge has filled."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import redis.asyncio
from bridge_kit import Bridging
from producers import Producer

RUNBOOK = Path(__file__).parents[2] / "docs/operations/runbook.md"


@pytest.mark.heavy
@pytest.mark.asyncio(loop_scope="module")
async def test_every_redis_command_of_the_runbook_answers_its_question(
    bridging: Bridging, producer: Producer, redis_url: str
) -> None:
    async with bridging() as bridged:
        for n, id in ((-1, "bad"), (0, "long")):
            await producer.add(bridged.q, {"n": n}, id)
        await producer.until(bridged.q, "bad", "failed")
        await producer.until(bridged.q, "long", "delayed")
        (letter,) = (await bridged.app.dlq.list()).items
        await producer.until(bridged.dlq, letter.id, "waiting")
        names = {"workflow-execution-dlq": bridged.dlq, "workflow-execution:": f"{bridged.q}:", "LETTER": letter.id}
        answers = []
        async with redis.asyncio.Redis.from_url(redis_url, decode_responses=True) as client:
            for command in re.findall(r"`redis-cli (.+?)`", RUNBOOK.read_text(encoding="utf-8")):
                filled = command.replace("JOB", "long" if "progress" in command else "bad")
                for name, real in names.items():
                    filled = filled.replace(name, real)
                answers.append(str(await client.execute_command(*shlex.split(filled))))
        bridged.release.set()
    depth, ids, data, waiting, active, delayed, failed, progress, reason, policy = answers
    assert (depth, ids, waiting, active, delayed, failed) == ("1", f"['{letter.id}']", "0", "0", "1", "1")
    assert '"originalJobId":"bad"' in data
    assert letter.run_id in data
    assert '"status":"' in progress
    assert reason == "Workflow execution failed after 1 attempt: ValueError: -1 is too small"
    assert "noeviction" in policy
