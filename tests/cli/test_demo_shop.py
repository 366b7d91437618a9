"""Scenarios of the demo in virtual time: each ends as its name says."""

import asyncio
import sys
from pathlib import Path

import pytest
from rich.console import Console

from redrive.cli.demo import services as outside
from redrive.cli.demo.plain_view import PlainView
from redrive.cli.demo.run import SCENARIOS, _make_view, describe_letter, generate_traffic, make_order, summarize_demo
from redrive.cli.demo.screen_view import ScreenView
from redrive.cli.demo.shop import MARKET, SHOP, USERS, app, charge, create_users, fulfil
from redrive.cli.demo.worker import WorkerProcess
from redrive.cli.run_feed import EventFeed
from redrive.record_fields import replace
from redrive.store.filters import RunFilter
from redrive.testing import Hang, engine, faults

DOORS = ["http://127.0.0.1:8700  sign in as owner@shop.example, password redrive-demo", "    or as another user"]
URL = "sqlite:////var/lib/shop/redrive-demo-kx3f9a2_/shop.db"

# Two scenarios kill their worker and one takes real time: test_demo.py covers them.
ENDINGS = {
    "goes well": ("SUCCESS", None),
    "retried until the line holds": ("SUCCESS", None),
    "told to come back later": ("SUCCESS", None),
    "declined, and the workflow deals with it": ("SUCCESS", None),
    "retries run out": ("DLQ_PENDING", "exhausted_retries"),
    "wrong input": ("DLQ_PENDING", "validation_failed"),
    "booked at the second try": ("SUCCESS", None),
    "an error in the code": ("DLQ_PENDING", "non_retryable"),
    "waits": ("SUCCESS", None),
    "not answered in time": ("TIMED_OUT", "timeout"),
    "mail that has to wait": ("SUCCESS", None),
    "the provider breaks, and comes back": ("SUCCESS", None),
    "waits until the provider is back": ("SUCCESS", None),
    "rolled back": ("COMPENSATED", "non_retryable"),
    "cannot be rolled back": ("DLQ_PENDING", "compensation_failed"),
    "needs an approval": ("SUCCESS", None),
}
# The letter of a child is not that of the scenario's run, which has a test below.
ELSEWHERE = {"timed out, then retried", "survives the death of its worker", "kills its workers"}
ELSEWHERE |= {"a child waits for a decision"}


@pytest.fixture(autouse=True)
def fast_demo_in_a_separate_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def takes(seconds: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(outside, "_simulate_delay", takes)


async def test_both_tenants_have_every_scenario_within_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    rounds = 2 * 2 * len(SCENARIOS)  # An ordinary run follows each scenario.

    async def tell(name: str, tenant: str) -> None:
        told.append((name, tenant))
        if len(told) == rounds:
            raise asyncio.CancelledError

    for name in SCENARIOS:
        monkeypatch.setitem(SCENARIOS, name, lambda id, tenant, name=name: tell(name, tenant))
    for interval in ("_FIRST_INTERVAL", "_LATER_INTERVAL"):
        monkeypatch.setattr(sys.modules["redrive.cli.demo.run"], interval, 0)
    with pytest.raises(asyncio.CancelledError):
        await generate_traffic(1001)
    assert {(name, tenant) for name in SCENARIOS for tenant in (SHOP, MARKET)} == set(told)
    assert {name for name, tenant in told[: rounds // 2] if tenant == SHOP} == set(SCENARIOS), (
        "the accountant's tenant comes first"
    )


def test_every_scenario_is_tested() -> None:
    assert set(ENDINGS) | ELSEWHERE == set(SCENARIOS)


@pytest.mark.parametrize("name", ENDINGS)
async def test_a_scenario_has_its_expected_end(name: str) -> None:
    async with engine(app) as e:
        run = await e.finish(await SCENARIOS[name]("order-1"))
    assert (run.status, run.letter and run.letter.code) == ENDINGS[name]


async def test_a_refund_waits_for_its_approval() -> None:
    async with engine(app) as e:
        approved, forgotten = [await SCENARIOS["needs an approval"](f"order-{number}") for number in (1, 2)]
        await e.settle()
        (task,) = await e.tasks(approved)
        await e.answer("in part", task=task, by="ann")
        ends = [(await e.finish(handle)).result for handle in (approved, forgotten)]
    assert ends == ["refunded in part", "no refund: it was not approved within 10 minutes"]


async def test_a_gift_goes_on_when_a_person_has_corrected_the_address_of_its_child() -> None:
    async with engine(app) as e:
        gift = await SCENARIOS["a child waits for a decision"]("order-1")
        await e.advance("1m")
        (letter,) = (await app.dlq.list()).items
        assert (letter.workflow, letter.code, await gift.status()) == ("deliver", "validation_failed", "SLEEPING")
        await app.dlq.replay(letter.id, patch={"order": {"address": "12 Mill Lane"}}, by="ann")
        assert (await e.finish(gift)).status == "SUCCESS"


async def test_a_rate_limited_bank_is_retried_after_its_delay() -> None:
    async with engine(app) as e:
        run = await e.finish(await SCENARIOS["told to come back later"]("order-1"))
    first, second = run.step("charge").attempts
    assert "HTTP 429, rate limited, Retry-After 3 s" in first.decision
    assert (second.began_at - first.ended_at).total_seconds() >= 3


async def test_an_outage_of_the_provider_affects_all_runs_until_it_recovers() -> None:
    async with engine(app) as e:
        broken, bystander = [
            await SCENARIOS[name](f"order-{number}")
            for number, name in enumerate(("the provider breaks, and comes back", "waits until the provider is back"))
        ]
        runs = [await e.finish(handle) for handle in (broken, bystander)]
        turns = [line.event for line in (await app.audit.list(limit=100)).items if "circuit" in line.event]
    assert [run.status for run in runs] == ["SUCCESS", "SUCCESS"]
    assert {"circuit.opened", "circuit.closed"} <= set(turns)


async def test_stock_is_counted_every_minute() -> None:
    async with engine(app) as e:
        await e.settle()
        await e.advance("2m")
        (schedule,) = await app.schedules.list()
        counted = (await app.runs.list(RunFilter(workflow="count_stock"))).items
    assert (schedule.workflow, schedule.cron, schedule.live) == ("count_stock", "* * * * *", True)
    assert [(run.status, run.tenant) for run in counted] == [("SUCCESS", "corner-shop")] * 2
    assert schedule.last_run == counted[0].id


async def test_rollbacks_undo_all_steps_or_stop_at_a_failure() -> None:
    async with engine(app) as e:
        back = await e.finish(await SCENARIOS["rolled back"]("order-1"))
        stuck = await e.finish(await SCENARIOS["cannot be rolled back"]("order-2"))
        ledgers = [[(row.action, row.status) for row in (await app.saga(run.id)).entries] for run in (back, stuck)]
    assert ledgers[0] == [("return_deposit", "SUCCESS"), ("free_workshop", "SUCCESS")]
    assert [status for _, status in ledgers[1]] == ["DLQ", "PENDING"]


async def test_the_demo_users_are_created_once(tmp_path: Path) -> None:
    app.settings = replace(app.settings, url=f"sqlite:///{tmp_path}/shop.db")
    async with app.client():
        for _ in range(2):
            await create_users(app)
        users = await app.runtime.store.accounts.users(None)
    assert {user.email for user in users} == {person.email for person in USERS}


async def test_a_declined_card_releases_the_goods() -> None:
    async with engine(app) as e:
        run = await e.finish(await SCENARIOS["declined, and the workflow deals with it"]("order-1"))
    assert run.result == "cancelled: the card was declined"
    assert [step.name for step in run.steps] == ["reserve", "charge", "release"]


async def test_a_bank_that_times_out_is_retried() -> None:
    async with engine(app) as e:
        with faults(step=charge, fail=[Hang]):
            run = await e.run(fulfil, make_order("order-1"))
    assert run.status == "SUCCESS"
    assert "timed out" in run.step("charge").attempts[0].decision


async def test_the_event_feed_reports_each_decision_once() -> None:
    async with engine(app) as e:
        news = EventFeed(app)
        handle = await SCENARIOS["retried until the line holds"]("order-7")
        await e.settle()
        await news.refresh()
        assert [event.text for event in news.fresh] == [
            decision for step in (await handle.describe()).steps for decision in decisions(step.attempts[-1:])
        ]
        await news.refresh()
        assert news.fresh == []
        await e.finish(handle)
        await news.refresh()
        assert [(event.step, event.level) for event in news.fresh] == [
            ("charge", "waiting"),
            ("charge", "good"),
            ("sleep", "waiting"),
        ]
        assert dict(news.statuses) == {"SUCCESS": 1}


def decisions(attempts: tuple[object, ...]) -> list[str]:
    return [a.decision for a in attempts if not a.decision.endswith("1, succeeded")]  # type: ignore[attr-defined]


async def told() -> EventFeed:
    """Return the event feed after one run of each scenario."""
    async with engine(app) as e:
        handles = [await SCENARIOS[name](f"order-{number}") for number, name in enumerate(ENDINGS, 1001)]
        news = EventFeed(app)
        await news.refresh()
        await e.answer(
            "in full", task=(await e.tasks(handles[-1]))[0]
        )  # or it would wait while the schedule starts runs
        for handle in handles:
            await e.finish(handle)
        await news.refresh()
        return news


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
async def test_the_screen_fits_the_terminal(tmp_path: Path, width: int, height: int) -> None:
    console = Console(width=width, height=height, force_terminal=True, color_system=None, record=True)
    crew = WorkerProcess(tmp_path, URL)
    crew.crashes, crew.pid = 12, 1234567
    console.print(ScreenView(URL, DOORS, console).render(await told(), crew, 61.5))
    lines = console.export_text().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "1:01  worker 1234567, crashed 12 x" in lines[0]
    assert "10 SUCCESS  4 DLQ_PENDING  1 TIMED_OUT  1 COMPENSATED" in text
    assert "5 dead letters need a decision" in text
    assert "order-1010 timeout the run passed its deadline" in text
    assert f"export REDRIVE_URL={URL}" in text
    assert DOORS[0] in text


def test_the_screen_shows_an_empty_shop(tmp_path: Path) -> None:
    console = Console(width=80, height=24, force_terminal=True, color_system=None, record=True)
    console.print(ScreenView(URL, DOORS, console).render(EventFeed(app), WorkerProcess(tmp_path, URL), 0.0))
    text = console.export_text()
    assert "the worker is being started" in text
    assert "none yet" in text


async def test_the_demo_prints_lines_without_rich(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    news = await told()
    with PlainView(URL, DOORS) as view:
        view.show(news, WorkerProcess(tmp_path, URL), 5.0)
    output = capsys.readouterr().out
    assert all(line in output for line in DOORS)
    assert "order-1005 charge: attempt 4 of 4, HTTP 503, server error, not retried" in output
    assert "-- 5 s: 10 SUCCESS, 4 DLQ_PENDING, 1 TIMED_OUT, 1 COMPENSATED;" in output


async def test_letters_are_prepared_again_only_if_they_changed() -> None:
    """`redrive dev` reads the store several times a second: to redact all payloads each time kept a core busy."""
    async with engine(app) as e:
        await e.finish(await SCENARIOS["retries run out"]("order-1"))
        news = EventFeed(app)
        await news.refresh()
        first = news.letters
        await news.refresh()
        assert news.letters is first
        await e.finish(await SCENARIOS["retries run out"]("order-2"))
        await news.refresh()
        assert ([letter.correlation_id for letter in news.letters], news.open_letters) == (["order-2", "order-1"], 2)
        await app.dlq.resolve(first[0].id, by="ann")
        await news.refresh()
        assert ([letter.correlation_id for letter in news.letters], news.open_letters) == (["order-2"], 1)


async def test_the_demo_ends_with_figures_and_the_description_of_a_letter(tmp_path: Path) -> None:
    crew = WorkerProcess(tmp_path, URL)
    crew.crashes = 1
    async with engine(app) as e:
        await e.finish(await SCENARIOS["retries run out"]("order-1"))
        news = EventFeed(app)
        await news.refresh()
        lines = [*summarize_demo(news, crew), *await describe_letter(app, news.letters[0])]
    assert lines[:2] == ["1 runs: 1 DLQ_PENDING.", "The worker crashed once and was started again."]
    assert "  step 'charge' failed 4 times (server_error): retries are exhausted" in lines
    assert lines[-1].startswith("    charge: attempt 4 of 4, HTTP 503, server error, not retried")


@pytest.mark.parametrize(
    ("terminal", "installed", "view"), [(True, True, ScreenView), (True, False, PlainView), (False, True, PlainView)]
)
def test_the_view_depends_on_the_terminal_and_on_rich(
    terminal: bool, installed: bool, view: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    if not installed:
        monkeypatch.delitem(sys.modules, "redrive.cli.demo.screen_view")
        monkeypatch.setitem(sys.modules, "rich.console", None)  # The import fails as if rich were not installed.
    assert type(_make_view(URL)) is view
