"""A child that fails has one dead letter, which keeps its parent waiting. A replay calls only the failed step again."""

from __future__ import annotations

import kit
import work

from redrive import LetterFilter, RunHandle
from redrive.core.states import RunStatus


async def fail(workflow: object, order: str) -> tuple[RunHandle[str], str]:
    """Start a run whose child fails; return it with the dead letter of the child."""
    (kit.FOLDER / "broken").touch()
    handle = await workflow.start(order)  # type: ignore[attr-defined]

    async def has_letter() -> bool:
        return bool(await open_letters())

    await kit.until(has_letter, "the child has a dead letter")
    (letter,) = await open_letters()

    async def waits() -> bool:
        return await handle.status() is RunStatus.SLEEPING

    await kit.until(waits, "the parent waits")
    (wait,) = [step for step in (await handle.describe()).steps if step.name == "redrive.result ship"]
    assert wait.input["names"] == [letter.run_id]
    (kit.FOLDER / "broken").unlink()
    return handle, letter.id


async def open_letters() -> list[object]:
    return list((await work.app.dlq.list(LetterFilter(status="OPEN"))).items)


async def check(workers: kit.Workers) -> str:
    handle, letter = await fail(work.fulfil, "A-1")
    await work.app.dlq.replay(letter, by="ann")
    assert await handle.result(timeout=kit.PATIENCE) == "label of A-1"
    assert work.list_calls("A-1") == ["pay", "book", "book"]
    handle, letter = await fail(work.careful, "A-2")
    await work.app.dlq.ignore(letter, by="ann")
    assert await handle.result(timeout=kit.PATIENCE) == "FAILED internal"

    # Both are closed: the parent fails as well, and its replay replays the child, from the step that failed.
    handle, letter = await fail(work.fulfil, "A-3")
    await work.app.dlq.ignore(letter, by="ann")

    async def has_failed() -> bool:
        return await handle.status() is RunStatus.DLQ_PENDING

    await kit.until(has_failed, "the parent has failed")
    (own,) = await open_letters()
    await work.app.dlq.replay(own.id, by="ann")  # type: ignore[attr-defined]
    assert await handle.result(timeout=kit.PATIENCE) == "label of A-3"
    assert work.list_calls("A-3") == ["pay", "book", "book"]
    return "one letter; a replay lets the parent continue; closing it raises ChildFailed; only the failed step again"


if __name__ == "__main__":
    kit.main(check)
