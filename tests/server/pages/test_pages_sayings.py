"""What the engine says is said in Polish on Polish pages; what nobody knows stays, marked as English."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from redrive import Redrive
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.options import StepOptions
from redrive.core.verdict import explain, judge
from redrive.desk.views import MOST
from redrive.policy import RetryPolicy
from redrive.server.pages.sayings import SENTENCES, known, said
from redrive.server.pages.words import Words
from redrive.testing import engine

POLISH = Words("pl")
POLICIES = (
    RetryPolicy(),
    RetryPolicy(max_retries=0),
    RetryPolicy(max_retries=-1),
    RetryPolicy(max_elapsed=0.001),
    RetryPolicy(never_retry_on=("network",)),
    RetryPolicy(retry_on=("timeout",)),
)


def decisions() -> list[str]:
    """Whatever is decided after an attempt, in the engine's own words."""
    found: set[str] = set()
    kinds = itertools.product(Category, POLICIES, (1, 4), (None, 30.0), (None, False), (False, True))
    for category, policy, attempt, after, retryable, once in kinds:
        failure = replace(Failure.of(category, "no"), status_code=429, retry_after=after, retryable=retryable)
        step = StepOptions(at_most_once=once)
        verdict = judge(failure, policy, step, attempt=attempt, first_ago=5, draw=0.5)
        found.add(explain(verdict, attempt=attempt, category=category, next_at=1_700_000_000_000_000))
    return sorted(found)


def test_every_decision_is_said_in_polish() -> None:
    assert len(decisions()) > 100
    assert [text for text in decisions() if 'lang="en"' in said(POLISH, text)] == []


def test_a_reason_is_said_with_the_reason_within() -> None:
    text = "step 'a' could not be undone: step 'b' failed once (network): the policy allows no retry"
    assert said(POLISH, text) == (
        "kroku 'a' nie dało się wycofać: krok 'b' nie udał się (network): polityka nie pozwala na ponowienie"
    )
    assert str(said(Words("en"), "a <b> & c")) == "a &lt;b&gt; &amp; c"


async def test_whatever_is_wrong_with_a_view_is_said_in_polish() -> None:
    async with engine(Redrive("sqlite:///:memory:")) as e:
        views = e.app.views
        for shared in (False, True):
            for number in range(MOST):
                await views.save("runs", f"view {number}", "kind=late", by="ann", shared=shared)
        wrong = [
            views.save("runs", "another", "kind=late", by="ann"),
            views.save("runs", "another", "kind=late", by="ann", shared=True),
            views.save("runs", "a/b", "kind=late", by="ann"),
            views.save("runs", "bare", "", by="ann"),
            views.save("runs", "long", "x" * 3000, by="ann"),
            views.save("runs", "other", "colour=red&stage=exec", by="ann"),
            views.remove("runs", "nothing", by="ann"),
            views.remove("runs", "nothing", by="ann", shared=True),
            views.list("people"),
        ]
        refused = [str(each) for each in await asyncio.gather(*wrong, return_exceptions=True)]
    assert len({text.split("view")[0] for text in refused}) > 5
    assert [text for text in refused if 'lang="en"' in said(POLISH, text)] == []


async def test_whatever_is_refused_about_a_set_is_said_in_polish() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.workflow
    async def order(number: int) -> None:
        raise ValueError("no such number")

    async with engine(app) as e:
        for number in range(2):
            await e.run(order, number)
        letters = [letter.id for letter in (await app.dlq.list()).items]
        await app.dlq.resolve(letters[0], by="ann", reason="paid by hand")
        done = await app.dlq.replay_many([letters[0], "dl-nothing"], by="ann")
        ignored = await app.dlq.ignore_many([letters[0]], by="ann")
        await e.settle()
        stopped = await app.dlq.ignore_many([letters[1]], by="ann", rate="1/h")
        await app.dlq.stop_set(stopped.id, by="ann")
        wrong = [
            app.dlq.pause_set(done.id, by="ann"),
            app.dlq.resume_set(stopped.id, by="ann"),
            app.dlq.stop_set("nothing", by="ann"),
            app.dlq.resolve("nothing", by="ann", reason="x"),
            app.dlq.replay_many(["\0"], by="ann"),
            app.views.save("letters", "late", "text=%00", by="ann"),
        ]
        refused = [str(each) for each in await asyncio.gather(*wrong, return_exceptions=True)]
        for set in (done, ignored):
            refused += [item.error or "" for item in (await app.dlq.set_items(set.id)).items]
    assert len(refused) == 9
    assert [text for text in refused if 'lang="en"' in said(POLISH, text)] == []


@pytest.mark.parametrize("text", ["the bank's own words", "", "step 'x' melted"])
def test_what_nobody_knows_stays_and_is_marked(text: str) -> None:
    assert 'lang="en"' in said(POLISH, text)


def test_what_is_within_is_no_markup() -> None:
    shown = said(POLISH, "workflow '<b>' raised ValueError: <script>")
    assert "<b>" not in shown
    assert "<script>" not in shown


def test_each_sentence_is_known_as_itself() -> None:
    """None hides another one that stands below it."""
    for text in SENTENCES:
        found = known(text.replace("{", "").replace("}", ""))
        assert found is not None
        assert found[0] == text
