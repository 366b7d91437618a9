"""A sample shop: the workflows of `redrive demo`, written like those of a real shop.

    fulfil            reserve -> charge -> pack (wait) -> ship, or cancel if the card is declined
    invoice           book -> mail
    make_to_measure   workshop -> deposit -> wood; rolled back if the wood cannot be ordered
    renew             collect a fee from a provider that goes down and comes back, behind a circuit
    remind            wait -> mail
    ask_supplier      wait for an answer, with a time limit
    gift              a child run delivers; if it fails, its parent waits until it is retried
    refund            ask people whether to refund, with a time limit
    import_catalogue  read a file that may crash the whole process
    count_stock       every minute, by its schedule

The steps call `redrive.cli.demo.services`: a bank, a stock, a carrier and others that fail in typical ways.
The workflows do not handle these failures: the retry policies do.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import redrive
from redrive import Circuit, Redrive, RetryPolicy, Schedule, StepFailed, step_info
from redrive.cli.demo import services as outside
from redrive.core.roles import Role
from redrive.errors import Conflict

SHOP, MARKET = "corner-shop", "market-hall"
PASSWORD = "redrive-demo"  # nosec B105 - it is printed, and opens nothing but the demo
"""The password of every user. The demo listens on this machine only, and its data is made up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoUser:
    """A user of the dashboard, with a role in a tenant."""

    email: str
    role: Role
    tenant: str = SHOP
    payloads: bool = False


USERS = (
    DemoUser(email="owner@shop.example", role=Role.OWNER, payloads=True),
    DemoUser(email="accounts@shop.example", role=Role.ADMIN, payloads=True),
    DemoUser(email="counter@shop.example", role=Role.STAFF),
    DemoUser(email="visitor@market.example", role=Role.VIEWER, tenant=MARKET),
)


async def create_users(app: Redrive) -> None:
    """Create both tenants and all users, unless they exist. Needs the extra `auth`."""
    from redrive.server.auth.admin import AccountAdmin, make_operator
    from redrive.store.accounts import NewUser

    access = AccountAdmin(app.runtime.store.accounts, app.runtime.clock, make_operator("demo"))
    for tenant in (SHOP, MARKET):
        await access.create_tenant(tenant)
    for each in USERS:
        new = NewUser(email=each.email, tenant=each.tenant, role=each.role, password=PASSWORD, payloads=each.payloads)
        try:
            await access.create_user(new)
        except Conflict:
            return  # the folder of an earlier demo has all users


# A worker counts as dead after 3 s instead of 30, so that a run recovers while you watch. Runs that ended an
# hour ago are removed, so that a demo can run for days.
app = Redrive(
    lease="3s", chores="500ms", grace="2s", retention="1h", dlq_retention="1h", idempotency_retention="1h",
    audit_retention="6h",
)  # fmt: skip
SHORT_RETRY = RetryPolicy(max_retries=3, base_delay="1s", jitter=0.2)


@dataclass(frozen=True)
class Order:
    id: str
    product: str
    price: Decimal
    card: str
    address: str


@app.step
async def reserve(order: Order) -> str:
    return await outside.reserve(order.product)


@app.step(effect="gives reserved goods back")
async def release(reservation: str) -> None:
    await outside.release(reservation)


@app.step(retry=SHORT_RETRY, timeout="1s", effect="charges the card")
async def charge(order: Order) -> str:
    # Every attempt sends the same key, so that the bank charges once.
    return await outside.charge(order.card, order.price, key=step_info().idempotency_key)


@app.step(retry=SHORT_RETRY, effect="sends a parcel")
async def ship(order: Order) -> str:
    return await outside.ship(order.product, order.address)


@app.step(retry=RetryPolicy(delays=["1s", "2s", "4s"]), effect="writes to the books")
async def book(order: Order) -> int:
    return await outside.book(order.product, order.price, key=step_info().idempotency_key)


@app.step(retry=SHORT_RETRY, effect="sends a mail")
async def mail(to: str, subject: str) -> None:
    await outside.mail(to, subject, key=step_info().idempotency_key)


@app.step(effect="books the workshop")
async def book_workshop(order: Order) -> str:
    return await outside.reserve("workshop")


@book_workshop.compensate
async def free_workshop(order: Order, result: str) -> None:
    await outside.release(result)


@app.step(retry=SHORT_RETRY, timeout="1s", effect="takes a deposit from the card")
async def take_deposit(order: Order) -> str:
    return await outside.charge(order.card, order.price / 2, key=step_info().idempotency_key)


@take_deposit.compensate(retry=SHORT_RETRY)
async def return_deposit(order: Order, result: str) -> None:
    await outside.give_back(order.card)


@app.step(retry=SHORT_RETRY, effect="orders wood")
async def order_wood(order: Order) -> str:
    return await outside.order_wood(order.product)


# After three failures within 30 s all calls are blocked for 4 s; then one call probes the provider.
PROVIDER_CIRCUIT = Circuit("standing-payments", failures=3, window="30s", open_for="4s", probes=1)


@app.step(
    retry=RetryPolicy(max_retries=8, base_delay="1s", factor=1.5),
    circuit=PROVIDER_CIRCUIT,
    effect="collects the yearly fee",
)
async def collect(member: str) -> str:
    return await outside.collect(member)


@app.step
def read_catalogue(path: str) -> int:
    return outside.read_catalogue(path, key=step_info().idempotency_key)  # a plain `def` runs in a thread


@app.step(retry=SHORT_RETRY)
async def count_shelves() -> int:
    return await outside.count_shelves()


@app.workflow(notify={"on": ["dead_letter"]})  # in the dashboard's inbox; mail and chats are possible, too
async def fulfil(order: Order) -> str:
    reservation = await reserve(order)
    try:
        payment = await charge(order)
    except StepFailed as failed:
        if not failed.is_a(outside.CardDeclined):
            raise  # the run becomes a dead letter, which needs a decision
        await release(reservation)
        return "cancelled: the card was declined"
    await redrive.sleep("3s")  # packing; a deploy or a crash meanwhile does not matter
    parcel = await ship(order)
    return f"parcel {parcel}, payment {payment}"


@app.workflow
async def invoice(order: Order) -> int:
    number = await book(order)
    await mail(order.address, f"invoice {number}")
    return number


@app.workflow(rollback=True, index=["order.product"], notify={"on": ["dead_letter"]})
async def make_to_measure(order: Order) -> str:
    await book_workshop(order)
    await take_deposit(order)
    return await order_wood(order)


@app.workflow(notify={"on": ["first_failure", "circuit_opened"]})
async def renew(member: str) -> str:
    fee = await collect(member)
    await mail("members@shop.example", f"{member} is a member for another year")
    return fee


@app.workflow
async def remind(customer: str) -> None:
    await redrive.sleep("8s")
    await mail(customer, "you left something in your basket")


@app.workflow
async def deliver(order: Order) -> str:
    return await ship(order)


@app.workflow
async def gift(order: Order) -> str:
    await reserve(order)
    parcel = await deliver.run(order)
    await mail("giver@shop.example", f"your gift is on its way: {parcel}")
    return parcel


@app.workflow
async def refund(order: Order) -> str:
    redrive.set_status("waits for an answer: open its task", progress=0.5)
    question, shown = f"Refund {order.price} for {order.product}?", {"order": order.id, "customer": order.address}
    try:
        answer = await redrive.ask(question, options=["in full", "in part", "reject"], show=shown, timeout="10m")
    except TimeoutError:
        return "no refund: it was not approved within 10 minutes"
    if answer.value == "reject":
        return f"no refund: rejected by {answer.by}"
    await mail(order.address, f"your money is on its way, approved by {answer.by}")
    return f"refunded {answer.value}"


@app.workflow(timeout="6s")
async def ask_supplier(product: str) -> None:
    while True:
        await mail("supplier", f"when can you deliver {product}?")
        await redrive.sleep("4s")


@app.workflow(max_crashes=2, retry=RetryPolicy(base_delay="1s"))
async def import_catalogue(path: str) -> int:
    products: int = await read_catalogue(path)
    return products


@app.workflow(schedule=Schedule("* * * * *", tenant=SHOP))  # a real shop does so once a day
async def count_stock() -> int:
    shelves: int = await count_shelves()
    return shelves
