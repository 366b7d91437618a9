"""The queue story: acceptance criteria for dead letters and duplicates."""

from __future__ import annotations

from redrive import Redrive, RetryPolicy
from redrive.app import Workflow
from redrive.testing import Crash, engine, faults

THREE_ATTEMPTS = RetryPolicy(max_retries=2, base_delay=5, factor=2, jitter=0)


def execution() -> tuple[Redrive, Workflow[..., str, object], list[str]]:
    """Return a workflow that calls a language model, where each call costs money."""
    app, charged = Redrive("sqlite:///:memory:"), []

    @app.step(retry=THREE_ATTEMPTS)
    async def ask(prompt: str) -> str:
        charged.append(prompt)
        return f"answer to {prompt}"

    @app.workflow(name="workflow-execution")
    async def execute(prompt: str) -> str:
        return await ask(prompt)

    return app, execute, charged


async def test_ac2_dead_letters_are_kept_for_inspection_and_not_processed_by_themselves() -> None:
    app, execute, charged = execution()
    async with engine(app) as e:
        with faults("ask", [ConnectionError] * 3):
            await e.run(execute, "why?")
        await e.advance("20d")
        (letter,) = (await app.dlq.list()).items
        assert (letter.status, letter.input, charged) == ("OPEN", {"prompt": "why?"}, [])


async def test_ac4_after_the_last_attempt_the_run_is_a_letter_with_its_payload_and_metadata() -> None:
    app, execute, _ = execution()
    async with engine(app) as e:
        with faults("ask", [ConnectionError("no route"), ConnectionError("no route"), ConnectionError("gone")]):
            run = await e.run(execute, "why?", tenant="acme")
        assert run.letter is not None
        assert (run.letter.run_id, run.letter.tenant, run.letter.attempts) == (run.id, "acme", 3)
        assert run.letter.input == {"prompt": "why?"}
        assert run.letter.failed_at == run.described.finished_at
        assert run.letter.message == "gone"


async def test_ac4_the_message_is_readable_and_contains_no_stack_trace() -> None:
    app, execute, _ = execution()
    async with engine(app) as e:
        with faults("ask", [ConnectionError] * 3):
            run = await e.run(execute, "why?")
        assert run.described.error is not None
        assert run.described.error.startswith("Workflow execution failed after 3 attempts: ")
        assert "Traceback" not in run.described.error
        assert "\n" not in run.described.error


async def test_ac4_failures_before_the_last_make_no_letter() -> None:
    app, execute, charged = execution()
    async with engine(app) as e:
        with faults("ask", [ConnectionError] * 2):
            run = await e.run(execute, "why?")
        assert (run.status, run.letter, charged) == ("SUCCESS", None, ["why?"])


async def test_ac4_the_letter_appears_although_the_process_dies_after_the_last_failure() -> None:
    """Trap A21: dead-lettering must not depend on an event in the memory of a process."""
    app, execute, _ = execution()
    async with engine(app) as e:
        with faults("ask", [ConnectionError, ConnectionError, Crash, ConnectionError]):
            run = await e.run(execute, "why?")
        assert e.crashes == 1
        assert len((await app.dlq.list()).items) == 1
        assert run.letter is not None
        assert run.letter.attempts == 3


async def test_ac5_a_double_click_is_one_run() -> None:
    app, execute, charged = execution()
    async with engine(app) as e:
        first = await execute.start("why?", idempotency_key="click")
        second = await execute.start("why?", idempotency_key="click")
        await e.finish_all()
        assert (first.id == second.id, charged) == (True, ["why?"])


async def test_ac5_the_id_that_stops_duplicates_does_not_stop_a_replay() -> None:
    """Trap A22: a job with the run's id would be ignored as a duplicate when replayed."""
    app, execute, charged = execution()
    async with engine(app) as e:
        with faults("ask", [ConnectionError] * 3):
            run = await e.run(execute, "why?", idempotency_key="click")
        assert run.letter is not None
        await app.dlq.replay(run.letter.id, by="operator")
        await e.finish_all()
        assert charged == ["why?"]
        again = await execute.start("why?", idempotency_key="click")
        assert again.id == run.id
        assert await again.result("5s") == "answer to why?"
        assert charged == ["why?"]


async def test_ac6_finished_work_is_not_repeated() -> None:
    app, execute, charged = execution()
    async with engine(app) as e:
        run = await e.run(execute, "why?", idempotency_key="click")
        await e.crash()
        await e.restart()
        await execute.start("why?", idempotency_key="click")
        await e.finish_all()
        assert (run.status, charged) == ("SUCCESS", ["why?"])


async def test_ac7_a_run_whose_worker_died_is_taken_up_again() -> None:
    app, execute, charged = execution()
    async with engine(app) as e:
        with faults("ask", [Crash]):
            run = await e.run(execute, "why?")
        assert (run.status, run.steps[0].attempt, charged) == ("SUCCESS", 1, ["why?"])


async def test_ac7_a_run_whose_worker_lives_is_not_taken_from_it() -> None:
    """Trap A23: RUNNING alone does not prove that the holder is dead, however long it takes."""
    app, charged = Redrive("sqlite:///:memory:", lease="30s"), []

    @app.step(timeout="2h", retry=THREE_ATTEMPTS)
    async def ask(prompt: str) -> str:
        charged.append(prompt)
        await e.clock.sleep(3600)
        return "at last"

    @app.workflow
    async def execute(prompt: str) -> str:
        return await ask(prompt)

    async with engine(app) as e:
        run = await e.run(execute, "why?")
        assert (run.result, charged) == ("at last", ["why?"])
        assert [attempt.status for attempt in run.steps[0].attempts] == ["SUCCESS"]
