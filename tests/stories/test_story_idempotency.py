"""The idempotency document: its keys, and the acceptance criteria that speak of duplicates and retries."""

from __future__ import annotations

from redrive import Redrive, RetryPolicy, step_info
from redrive.app import Workflow
from redrive.core.keys_and_ids import decode_key, event_key, flow_key, job_key
from redrive.testing import Http, engine, faults


def billing() -> tuple[Redrive, Workflow[..., str, str], list[str]]:
    """Return a workflow with one action, and the list of the idempotency keys that reached the outside."""
    app, effects = Redrive("sqlite:///:memory:"), []

    @app.step(retry=RetryPolicy(max_retries=3, base_delay=2, factor=2, jitter=0.5))
    async def charge(amount: int) -> str:
        effects.append(step_info().idempotency_key)
        return f"{amount} charged"

    @app.workflow
    async def bill(job: str, amount: int) -> str:
        return await charge(amount)

    return app, bill, effects


async def test_duplicate_submissions_with_same_idempotency_key_result_in_a_single_side_effect() -> None:
    app, bill, effects = billing()
    async with engine(app) as e:
        runs = [await bill.start("j-1", 40, idempotency_key="j-1") for _ in range(10)]
        await e.finish_all()
        runs += [await bill.start("j-1", 40, idempotency_key="j-1") for _ in range(10)]
        await e.finish_all()
        assert len({run.id for run in runs}) == 1
        assert {await run.result() for run in runs} == {"40 charged"}
        assert len(effects) == 1


async def test_retries_respect_jittered_backoff_and_max_attempts_and_dlq_classifications_are_populated() -> None:
    app, bill, effects = billing()
    async with engine(app) as e:
        with faults("charge", [Http(503)] * 4):
            run = await e.run(bill, "j-1", 40)
        attempts = run.step("charge").attempts
        waits = [
            (attempt.next_at - attempt.ended_at).total_seconds()
            for attempt in attempts
            if attempt.next_at is not None and attempt.ended_at is not None
        ]
        assert len(attempts) == 4
        assert all(mean / 2 <= wait <= mean * 1.5 for wait, mean in zip(waits, (2, 4, 8), strict=True))
        assert waits != [2, 4, 8]
        assert run.letter is not None
        assert (run.letter.code, run.letter.stage, run.letter.category, run.letter.attempts) == (
            "exhausted_retries", "exec", "server_error", 4,
        )  # fmt: skip
        revealed = await app.dlq.get(run.letter.id, reveal=True, by="test")
        assert revealed.payload_hash
        assert effects == []


async def test_keys_have_the_three_forms_for_jobs_events_and_workflows() -> None:
    app, bill, effects = billing()
    async with engine(app) as e:
        await bill.start("j-1", 40, idempotency_key="j-1", tenant="acme")
        handle = await app.receive_event("orders", "e-1", bill, "j-2", 41, tenant="acme")
        await e.finish_all()
        stored = {row["key"] for row in await e.fetch("SELECT key FROM idempotency")}
        assert stored == {job_key("acme", "bill", "j-1"), event_key("acme", "orders", "e-1")}
        assert {decode_key(key)[0] for key in stored} == {"idem_job", "idem_evt"}
        assert flow_key("acme", handle.id, "/charge#0", 0) in effects
        assert effects[0].startswith("idem_flow:acme:")


async def test_the_key_is_stored_with_the_hash_the_answer_and_its_expiry() -> None:
    app, bill, _ = billing()
    async with engine(app) as e:
        run = await e.run(bill, "j-1", 40, idempotency_key="j-1")
        (row,) = await e.fetch(
            "SELECT k.run_id, k.hash, k.expires_at - k.created_at AS keeps, r.output"
            " FROM idempotency AS k JOIN results AS r ON r.run = k.run"
        )
        assert (row["run_id"], row["keeps"], row["output"]) == (run.id, 30 * 86_400_000_000, '"40 charged"')
        assert len(row["hash"]) == 64
