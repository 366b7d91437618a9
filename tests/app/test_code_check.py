"""Checks of code against recorded runs: what fits, what does not, and that nothing is called or written."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import empty_schema
import engines
import pytest
from click.testing import CliRunner, Result

import redrive
from redrive import Redrive
from redrive.cli import main
from redrive.errors import InputError
from redrive.store.filters import AuditFilter
from redrive.testing import engine, replay_histories
from redrive.worker.dry_execution import HistoryCheck, Verdict

Body = Callable[["Release"], Any]


class Release:
    """An app whose workflow `order` is one of several functions; `called` has the steps whose bodies were called."""

    def __init__(self, **settings: Any) -> None:
        self.called: list[str] = []
        self.app = app = Redrive(**settings)

        @app.step
        async def pick(what: str) -> str:
            return self.call(f"pick {what}")

        @app.step
        async def ship(what: str) -> str:
            return self.call(f"ship {what}")

        self.pick, self.ship = pick, ship
        self.body: Body = old
        self.is_plain = False

        @app.workflow
        async def order(name: str) -> Any:
            return await self.body(self)

        @app.workflow
        def plain(name: str) -> Any:
            picked = self.pick("x")
            if self.is_plain and redrive.patched("shipped"):
                self.ship("x")
            redrive.wait_for("paid")
            return [picked, "new" if self.body is new_without_patch else "old"] + (
                [self.ship("y")] if self.body is new_without_patch else []
            )

        self.order, self.plain = order, plain

    def call(self, what: str) -> str:
        self.called.append(what)
        return what


async def old(r: Release) -> Any:
    await r.pick("x")
    await redrive.sleep("1s")
    both = await asyncio.gather(r.pick("y"), r.ship("z"))
    redrive.now()
    await redrive.wait_for("paid")
    return both


async def step_inserted(r: Release) -> Any:
    await r.ship("first")
    return await old(r)


async def patched(r: Release) -> Any:
    if redrive.patched("first"):
        await r.ship("first")
    return await old(r)


async def step_replaced(r: Release) -> Any:
    await r.pick("x")
    await redrive.sleep("1s")
    both = await asyncio.gather(r.pick("y"), r.pick("z"))
    await redrive.wait_for("paid")
    return both


async def step_removed(r: Release) -> Any:
    await r.pick("x")
    await redrive.sleep("1s")
    await redrive.wait_for("paid")


async def note_removed(r: Release) -> Any:
    await r.pick("x")
    await redrive.sleep("1s")
    await asyncio.gather(r.pick("y"), r.ship("z"))
    await redrive.wait_for("paid")


async def ends_early(r: Release) -> Any:
    return await r.pick("x")


async def appended(r: Release) -> Any:
    await old(r)
    await r.ship("more")


async def broken(r: Release) -> Any:
    await r.pick("x")
    raise KeyError("typo")


async def waits_outside(r: Release) -> Any:
    await r.pick("x")
    await asyncio.Event().wait()


async def new_without_patch(r: Release) -> Any:
    return await step_inserted(r)


CHANGES: list[tuple[Body, Verdict, int | None]] = [
    (old, Verdict.FITS, None),
    (appended, Verdict.FITS, None),
    (patched, Verdict.FITS, None),
    (step_inserted, Verdict.DIVERGES, 0),
    (step_replaced, Verdict.DIVERGES, 3),
    (step_removed, Verdict.DIVERGES, 2),
    (note_removed, Verdict.DIVERGES, 4),
    (ends_early, Verdict.DIVERGES, 1),
    (broken, Verdict.FAILS, None),
]


@pytest.mark.parametrize("kind", engines.KINDS)
async def test_open_runs_are_checked_against_each_change_of_the_code(kind: str) -> None:
    release = Release()
    async with engines.on(kind) as on_store, on_store(release.app) as e:
        await release.order.start("a")
        plain = await release.plain.start("b")
        await e.settle()
        await e.advance("2s")
        called, rows = list(release.called), await dump(release.app)
        for body, verdict, entry in CHANGES:
            release.body = body
            (check,) = [each for each in await release.app.check_code() if each.workflow == "order"]
            assert (check.verdict, check.entry) == (verdict, entry), (body.__name__, str(check))
        release.body, release.is_plain = old, True
        fits = [str(each) for each in await release.app.check_code()]
        assert f"run {plain.id} (plain) fits" in fits
        assert (release.called, await dump(release.app)) == (called, rows)


async def dump(app: Redrive) -> list[Any]:
    """Return what the store knows of all runs, and the audit log."""
    runs = (await app.runs.list()).items
    log = (await app.audit.list(AuditFilter())).items
    return [[await app.runs.get(run.id) for run in runs], log]


async def test_a_difference_names_the_entry_and_both_calls() -> None:
    release = Release()
    async with engine(release.app) as e:
        run = await release.order.start("a")
        await e.settle()
        await e.advance("2s")
        release.body = step_replaced
        (check,) = await release.app.check_code()
    assert str(check).startswith(f"run {run.id} (order) takes another path at entry 3: ")
    assert "'ship'" in str(check.reason)
    assert "'pick'" in str(check.reason)


async def test_a_function_that_waits_outside_the_engine_is_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.worker.dry_execution._PATIENCE", 0.05)
    release = Release()
    async with engine(release.app) as e:
        await release.order.start("a")
        await e.settle()
        release.body = waits_outside
        (check,) = await release.app.check_code()
    assert check.verdict is Verdict.UNCLEAR


async def test_histories_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    release, other = Release(), Redrive()

    @other.workflow(name="order")
    async def counted(name: int) -> None: ...

    path = tmp_path / "histories.jsonl"
    async with engine(release.app) as e:
        await release.order.start("a")
        await release.plain.start("b")
        await e.settle()
        path.write_text("\n".join([each.to_line() for each in (await release.app.runs.histories()).items]))
    with pytest.raises(AssertionError) as caught:
        await replay_histories(other, path)
    text = str(caught.value)
    assert text.startswith("2 of 2 histories do not fit the code:\n")
    assert "(order) cannot be read: " in text
    assert "(plain) cannot be read: " in text


async def test_histories_of_open_and_ended_runs_are_replayed_from_a_file(tmp_path: Path) -> None:
    release, path = Release(), tmp_path / "histories.jsonl"
    path.write_text("\n")
    with pytest.raises(InputError, match="has no histories"):
        await replay_histories(release.app, path)
    async with engine(release.app) as e:
        ended = await release.order.start("a")
        await e.settle()
        await e.advance("2s")
        await e.send(ended, "paid")
        await e.finish(ended)
        waiting = await release.order.start("b")
        await e.settle()
        pages = [await release.app.runs.histories(ended=each, by="ann") for each in (False, True)]
        (line, *_) = (await release.app.audit.list(AuditFilter(event="run.histories_exported"))).items
        assert line.by == "ann"
    histories = [each for page in pages for each in page.items]
    assert [each.run_id for each in histories] == [waiting.id, ended.id]
    path.write_text("".join([each.to_line() + "\n" for each in histories]))
    checks: list[HistoryCheck] = await replay_histories(release.app, path)
    assert [each.fits for each in checks] == [True, True]
    release.body = step_inserted
    with pytest.raises(AssertionError, match=rf"2 of 2 histories(.|\n)*run {ended.id} \(order\) takes another path"):
        await replay_histories(release.app, path)
    path.write_text('{"format": 2}\n')
    with pytest.raises(InputError, match="not a history"):
        await replay_histories(release.app, path)


async def test_limits_children_failures_and_reservations_fit_their_code(tmp_path: Path) -> None:
    """Each kind of entry, at a place where the run waits or failed."""
    app = Redrive()
    confirmed: list[str] = []

    async def confirm(place: str, result: str) -> None:
        confirmed.append(place)

    async def cancel(place: str, result: str) -> None: ...

    @app.step(confirm=confirm, cancel=cancel)
    async def reserve(place: str) -> str:
        return place

    @app.step
    async def fail() -> None:
        raise ValueError("no")

    @app.workflow
    async def child() -> str:
        return str(await redrive.wait_for("go"))

    @app.workflow
    async def parent() -> Any:
        handle = await child.start()
        await handle.send("hello", 1)
        redrive.publish("topic", {"a": 1})
        try:
            async with redrive.timeout("1s"):
                await redrive.wait_for("never")
        except TimeoutError:
            redrive.set_status("late")
        with pytest.raises(redrive.StepFailed):
            await fail()
        await reserve("12a")
        done, _ = await asyncio.wait(
            [asyncio.create_task(handle.result()), asyncio.create_task(redrive.sleep("1h"))],  # type: ignore[arg-type]
            return_when=asyncio.FIRST_COMPLETED,
        )
        await redrive.wait_for("end")
        return len(done)

    async with engine(app) as e:
        run = await parent.start()
        await e.settle()
        assert [each.verdict for each in await app.check_code()] == [Verdict.FITS] * 2
        await e.advance("5m")
        assert [str(each) for each in await app.check_code() if not each.fits] == []
        open_runs = (await app.runs.histories()).items
        (waiting,) = (await app.runs.list(redrive.RunFilter(parent=run.id))).items
        await e.send(app.handle(waiting.id), "go", "went")
        assert [str(each) for each in await app.check_code() if not each.fits] == []
        assert not confirmed
        await e.send(run, "end")
        assert (await e.finish(run)).result == 1
        ended = (await app.runs.histories(ended=True)).items
        assert {each.status.value for each in ended} == {"SUCCESS"}
    path = tmp_path / "histories.jsonl"
    path.write_text("\n".join([each.to_line() for each in (*open_runs, *ended)]))
    assert len(await replay_histories(app, path)) == 4, "an app that is not open"


MODULE = """
from redrive import Redrive
import redrive

app = Redrive("sqlite:///ignored.db")

@app.step
async def pick(what: str) -> str:
    raise SystemExit("a step was called")

@app.step
async def ship(what: str) -> str:
    raise SystemExit("a step was called")

@app.workflow
async def order(name: str) -> str:
    {first}
    picked = await pick("x")
    await redrive.wait_for("paid")
    return picked
"""
CHANGED, PATCHED = 'await ship("first")', 'redrive.patched("first") and await ship("first")'


def write_modules(folder: Path) -> None:
    (folder / "check_changed.py").write_text(MODULE.format(first=CHANGED))
    (folder / "check_patched.py").write_text(MODULE.format(first=PATCHED))


async def start_waiting_run(url: str) -> str:
    """Execute `order` without the change until it waits; return the id of the run."""
    app = Redrive(url)

    @app.step
    async def pick(what: str) -> str:
        return what

    @app.workflow
    async def order(name: str) -> str:
        picked = await pick("x")
        await redrive.wait_for("paid")
        return picked

    async with app:
        run = await order.start("a")
        async with asyncio.timeout(30):
            while await run.status() != "SLEEPING":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    return run.id


@asynccontextmanager
async def open_address(kind: str, folder: Path) -> AsyncIterator[str]:
    """Yield the address of an empty database of a kind."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/orders.db"
        return
    async with empty_schema.ready(kind) as url:
        yield url


@pytest.mark.parametrize("kind", engines.KINDS)
async def test_the_command_fails_for_a_change_and_passes_with_a_patch(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_modules(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    async with open_address(kind, tmp_path) as url:
        run = await start_waiting_run(url)

        async def call(*words: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, main, [*words, "--url", url], prog_name="redrive")

        refused = await call("code", "check", "check_changed:app", "--json")
        assert refused.exit_code == 1, refused.output
        (wrong,) = json.loads(refused.stdout)["items"]
        assert (wrong["run_id"], wrong["verdict"], wrong["entry"]) == (run, "diverges", 0)
        assert "1 of 1 open run do not fit this code: keep the old path with redrive.patched" in refused.stderr
        assert (await call("code", "check", "check_patched:app")).exit_code == 0
        assert (await call("code", "check", "check_changed:app", "--sample", "1")).exit_code == 1
        key = b64encode(bytes(32)).decode()
        sealed = await call("runs", "export", "--histories", "--seal", key)
        nothing = await call("runs", "export", "--histories", "--workflow", "none")
    assert sealed.output.startswith("enc1:")
    assert nothing.output.startswith("No run has a history yet. To see runs: ")
    (tmp_path / "histories.jsonl").write_text(sealed.output)
    from check_patched import app  # type: ignore[import-not-found]

    monkeypatch.setattr(app, "settings", replace(app.settings, encryption_keys=key))
    (check,) = await replay_histories(app, tmp_path / "histories.jsonl")
    assert check.fits
