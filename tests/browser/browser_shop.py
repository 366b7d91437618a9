"""The app behind the browser tests: the demo's shop, a bank that a test can repair, and hostile content.

python browser_shop.py STORE-URL      fills a store, and prints what is in it as JSON
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from redrive import NonRetryable, RetryPolicy, TaskFilter
from redrive.app import RunHandle
from redrive.cli.demo.run import SCENARIOS
from redrive.cli.demo.shop import MARKET, PASSWORD, SHOP, app, create_users
from redrive.core.roles import Role
from redrive.desk.bulk import BulkAction
from redrive.record_fields import replace
from redrive.server.auth.admin import AccountAdmin, make_operator
from redrive.store.accounts import NewUser

FIXED = Path("fixed")
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
RIGHT_TO_LEFT = "\u202egnp.exe \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd"
LETTERS = 6
ON_CALL = "oncall@shop.example"
__all__ = ["FIXED", "LETTERS", "ON_CALL", "RIGHT_TO_LEFT", "SCRIPT", "app"]

ONCE = RetryPolicy(max_retries=0)


def _at_the_bank(number: int) -> str:
    if not FIXED.exists():
        raise ConnectionError("the bank is away")
    return f"moved {number}"


@app.step(retry=ONCE, effect="moves money")
async def transfer(number: int) -> str:
    return _at_the_bank(number)


@app.workflow
async def settle_account(number: int) -> str:
    done: str = await transfer(number)
    return done


@app.step(retry=ONCE, effect="moves money")
async def pay_back(number: int) -> str:
    return _at_the_bank(number)


@app.workflow
async def credit_customer(number: int) -> str:
    done: str = await pay_back(number)
    return done


@app.step(retry=ONCE)
async def bite(text: str, papers: str) -> None:
    _deeper(250, text)


def _deeper(left: int, text: str) -> None:
    if left == 0:
        raise NonRetryable(text)
    _and_deeper(left - 1, text)


def _and_deeper(left: int, text: str) -> None:
    _deeper(left, text)  # Two functions alternate, because Python shortens the traceback of one recursive function.


@app.workflow
async def hostile(text: str, password: str, papers: str) -> None:
    await bite(text, papers)


LONG_NAME = f"import_{'the_purchases_of_all_customers_in_every_one_of_our_markets_' * 2}"[:100]
LONG_REFERENCE = "order-of-the-year-" * 6
ATTEMPTS = 31


@app.step(name=LONG_NAME, retry=RetryPolicy(max_retries=ATTEMPTS - 1, base_delay=0.01, max_delay=0.1))
async def import_purchases(number: int) -> str:
    raise ConnectionError("the bank is away, and its answering machine is full")


@app.workflow(name=f"{LONG_NAME[:-1]}x")
async def long_import(number: int) -> str:
    done: str = await import_purchases(number)
    return done


async def populate(url: str) -> dict[str, str]:
    """Run each scenario that needs no crash, letters with one cause, and hostile content; return ids by name."""
    app.settings = replace(app.settings, url=url)
    async with app:
        await create_users(app)
        await _create_on_call_admin()
        told: dict[str, Coroutine[Any, Any, RunHandle[Any]]] = {
            "good": SCENARIOS["goes well"]("order-1"),
            "wrong": SCENARIOS["wrong input"]("order-2"),
            "down": SCENARIOS["retries run out"]("order-3"),
            "rolled_back": SCENARIOS["rolled back"]("order-4"),
            "stuck": SCENARIOS["cannot be rolled back"]("order-5"),
            "elsewhere": SCENARIOS["goes well"]("order-6", MARKET),
            "bad_elsewhere": SCENARIOS["wrong input"]("order-7", MARKET),
            "hostile": hostile.start(SCRIPT + RIGHT_TO_LEFT, "hunter2", SCRIPT * 6_500, tenant=SHOP),
            "wrong_on_phone": SCENARIOS["wrong input"]("order-9"),
            "wrong_unscripted": SCENARIOS["wrong input"]("order-10"),
            "ignored": SCENARIOS["wrong input"]("order-11"),
            "refund": credit_customer.start(1, tenant=SHOP),
            "long": long_import.start(1, tenant=SHOP, correlation_id=LONG_REFERENCE),
        }
        for number in range(LETTERS):
            told[f"transfer-{number}"] = settle_account.start(number, tenant=SHOP)
        handles = {name: await starting for name, starting in told.items()}
        await asyncio.gather(*(_over(handle) for handle in handles.values()))
        many = await app.dlq.ignore_many([f"dl-{handles['ignored'].id}", "dl-nothing"], by="test", tenant=SHOP)
        slowly = await _begun_slowly("going on", 1_234)
        paused = await _begun_slowly("a reason that is as long as users make it when its length has no limit", 12)
        await app.dlq.pause_set(paused.id, by="test", tenant=SHOP)
        for by, name in (
            ("owner@shop.example", "Mine"),
            ("test", "Wrong data that came in from all of our markets at once"),
        ):
            asked = {"by": by, "tenant": SHOP, "shared": by == "test"}
            await app.views.save("letters", name, "code=validation_failed", **asked)
        await app.circuits.open("standing-payments", tenant=SHOP, by="test", reason="looked at")
        parked = await SCENARIOS["waits until the provider is back"]("order-8")
        await _until(parked, "SLEEPING")
        while await app.runtime.store.fold(100):
            pass
        for name in ("asked", "asked_unscripted", "asked_looked"):
            handles[name] = await SCENARIOS["needs an approval"](name)
        while len((await app.tasks.list(TaskFilter(status="OPEN"))).items) < 3:  # noqa: ASYNC110 - a real worker
            await asyncio.sleep(0.1)
        named = {name: handle.id for name, handle in handles.items()}
        named |= {f"task_{name}": f"tk-{named[name]}-0" for name in ("asked", "asked_unscripted", "asked_looked")}
        named["cause"] = (await app.dlq.get(handles["transfer-0"].id)).fingerprint
        return named | {"parked": parked.id, "set": many.id, "slow_set": slowly.id, "paused_set": paused.id}


async def _begun_slowly(reason: str, letters: int) -> BulkAction:
    """Start a bulk action on unknown letters that is so slow that it runs during the whole test."""
    ids = [f"dl-nothing-{number}" for number in range(letters)]
    return await app.dlq.ignore_many(ids, by="test", reason=reason, rate="2/h", tenant=SHOP)


async def _create_on_call_admin() -> None:
    """Create an admin of one tenant who does not see hidden data."""
    access = AccountAdmin(app.runtime.store.accounts, app.runtime.clock, make_operator("test"))
    await access.create_user(NewUser(email=ON_CALL, tenant=SHOP, role=Role.ADMIN, password=PASSWORD))


async def _over(handle: RunHandle[Any]) -> None:
    while (await handle.describe()).finished_at is None:  # noqa: ASYNC110 - a real worker
        await asyncio.sleep(0.1)


async def _until(handle: RunHandle[Any], status: str) -> None:
    while await handle.status() != status:  # noqa: ASYNC110 - the same
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(populate(sys.argv[1]), 90))))
