"""Durable workflows for Python whose speciality is failure.

app = Redrive("sqlite:///orders.db")

@app.step(retry=RetryPolicy(max_retries=5))
async def charge(order: Order) -> Receipt: ...

@app.workflow
async def fulfil(order: Order) -> Receipt:
    return await charge(order)

async with app:
    handle = await fulfil.start(order)
    receipt = await handle.result()
"""

from redrive.app import Redrive, RunHandle, Start
from redrive.core.classify import Category, Rule
from redrive.errors import NonRetryable, RedriveError, RetryAfter, RunFailed, StepFailed
from redrive.policy import RetryPolicy
from redrive.store.port import LetterFilter, RunFilter
from redrive.worker.calls import now, random, run_info, sleep, step_info, timeout, uuid

__all__ = [
    "Category",
    "LetterFilter",
    "NonRetryable",
    "Redrive",
    "RedriveError",
    "RetryAfter",
    "RetryPolicy",
    "Rule",
    "RunFailed",
    "RunFilter",
    "RunHandle",
    "Start",
    "StepFailed",
    "now",
    "random",
    "run_info",
    "sleep",
    "step_info",
    "timeout",
    "uuid",
]
