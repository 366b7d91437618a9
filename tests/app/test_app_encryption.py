"""An app with REDRIVE_ENCRYPTION_KEYS: runs work as before, payloads are encrypted, a missing key loses no data."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import click.testing
import pytest

from redrive import NonRetryable, Redrive, RunFailed, step_info
from redrive.app.runtime import make_store
from redrive.cli import main
from redrive.clock import SystemClock
from redrive.core.secret_and_sealed_text import key_id_of
from redrive.errors import ConfigurationError
from redrive.settings import Settings
from redrive.store.encryption.keyring import Keyring
from redrive.store.sqlite import SqliteStore

SECRET = "4111-1111-1111-1111"
OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))


def id_of(key: str) -> str:
    ring = Keyring.parse(key)
    assert ring is not None
    assert ring.writes is not None
    return ring.writes


def make_app(folder: Path, keys: str | None = None, secret_key: str | None = None) -> Redrive:
    """Return a shop whose steps receive, return, log and raise a card number."""
    given: Any = {"encryption_keys": keys, "secret_key": secret_key}
    app = Redrive(f"sqlite:///{folder}/redrive.db", lease=1.5, chores=0.1, version="v1", **given)

    @app.step
    async def charge(card: str) -> str:
        step_info().heartbeat({"card": card})
        return f"charged {card}"

    @app.step
    async def ship(note: str) -> None:
        raise NonRetryable(f"cannot ship: {note}", details={"note": note})

    @app.workflow
    async def sell(card: str) -> str:
        return str(await charge(card))

    @app.workflow
    async def fail(card: str) -> None:
        await ship(await charge(card))

    @app.workflow
    async def divide(card: str) -> float:
        return 1 / len(card[:0])

    return app


async def result(app: Redrive, workflow: str) -> Any:
    handle = await app.find(workflow).start(SECRET, idempotency_key=f"{workflow}-1")
    return await handle.result("20s")


async def live(folder: Path, keys: str | None) -> None:
    """Execute one run that succeeds and two that become letters."""
    async with make_app(folder, keys) as app:
        assert await result(app, "sell") == f"charged {SECRET}"
        for workflow in ("fail", "divide"):
            with pytest.raises(RunFailed):
                await result(app, workflow)


def stored(folder: Path) -> bytes:
    """Return every byte of the database, including its write-ahead log."""
    return b"".join(file.read_bytes() for file in folder.glob("redrive.db*"))


def column(folder: Path, statement: str) -> list[Any]:
    con = sqlite3.connect(folder / "redrive.db")
    try:
        return [row[0] for row in con.execute(statement)]
    finally:
        con.close()


# -- runs ---------------------------------------------------------------------------------------------------


async def test_without_keys_the_store_is_not_wrapped_and_payloads_are_in_clear(tmp_path: Path) -> None:
    settings = Settings(url=f"sqlite:///{tmp_path}/redrive.db")
    assert type(make_store(settings, SystemClock())) is SqliteStore
    await live(tmp_path, None)
    assert SECRET.encode() in stored(tmp_path), (
        "without keys the payload must be in clear, or the tests below prove nothing"
    )


async def test_with_keys_runs_end_as_without_and_no_payload_is_in_the_file(tmp_path: Path) -> None:
    await live(tmp_path, OLD)
    assert SECRET.encode() not in stored(tmp_path)
    async with make_app(tmp_path, OLD).client() as app:
        assert await result(app, "sell") == f"charged {SECRET}"
        page = await app.dlq.list()
        letter = await app.dlq.get(page.items[1].id)
        assert (letter.workflow, letter.code, letter.input) == ("fail", "non_retryable", {"card": "••••••"})
        assert letter.reason.startswith("step 'ship' failed once")
        assert [step.name for step in letter.steps] == ["charge", "ship"]


async def test_the_same_key_gives_the_same_run_after_a_rotation(tmp_path: Path) -> None:
    await live(tmp_path, OLD)
    async with make_app(tmp_path, f"{NEW},{OLD}").client() as app:
        assert await result(app, "sell") == f"charged {SECRET}"
    assert column(tmp_path, "SELECT count(*) FROM runs WHERE workflow = 'sell'") == [1]


# -- missing and invalid keys -------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [None, NEW, f"plain,{NEW}"])
async def test_an_app_without_the_key_refuses_to_start_and_names_the_missing_key(
    tmp_path: Path, keys: str | None
) -> None:
    await live(tmp_path, OLD)
    before = stored(tmp_path)
    app = make_app(tmp_path, keys)
    for opening in (app, app.client()):
        with pytest.raises(ConfigurationError, match=f"encrypted with key {id_of(OLD)}, which REDRIVE_ENCRYPTION_KEYS"):
            async with opening:
                pass
    assert column(tmp_path, "SELECT count(*) FROM workers WHERE state = 'LIVE'") == [0]
    assert len(stored(tmp_path)) == len(before)


@pytest.mark.parametrize("text", ["secret-but-no-base64!", "c2hvcnQ=", f"{OLD},short"])
def test_a_bad_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigurationError, match="REDRIVE_ENCRYPTION_KEYS") as caught:
        Redrive(encryption_keys=text)
    assert not [part for part in text.split(",") if part in str(caught.value)]


def test_settings_do_not_show_the_keys() -> None:
    assert OLD not in repr(Redrive(encryption_keys=OLD).settings)


def test_a_missing_package_is_reported_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ConfigurationError, match=r'pip install "redrive\[encryption\]"'):
        make_store(make_app(tmp_path, OLD).settings, SystemClock())
    make_store(make_app(tmp_path).settings, SystemClock())


async def test_a_secret_key_encrypts_and_stays_readable_beside_keys_that_are_set_later(tmp_path: Path) -> None:
    """The key may be set later, joined by others, turned off, removed or changed: no data is lost; errors name it."""
    secret = "s" * 40

    async def start(keys: str | None, secret_key: str | None) -> str:
        async with make_app(tmp_path, keys, secret_key).client() as app:
            inputs = [(await app.runs.get(each.id)).input for each in (await app.runs.list()).items]
            assert all(each == {"card": "••••••"} for each in inputs), "older runs must stay readable"
            await app.find("sell").start(SECRET)
        stored: str = column(tmp_path, "SELECT input FROM inputs ORDER BY run DESC LIMIT 1")[0]
        return stored

    assert SECRET in await start(None, None)
    derived = await start(None, secret)
    assert (SECRET in derived, derived.startswith("enc1:")) == (False, True)
    assert SECRET in await start("plain", secret)
    assert key_id_of(await start(None, secret)) == key_id_of(derived)
    for keys, other in ((None, None), (None, "t" * 40), (NEW, None)):
        with pytest.raises(ConfigurationError, match=f"key {key_id_of(derived)}.* or set REDRIVE_SECRET_KEY"):
            await start(keys, other)
    assert key_id_of(await start(NEW, secret)) == id_of(NEW)


async def test_a_run_that_cannot_be_decrypted_becomes_a_letter_and_waits_for_its_key(tmp_path: Path) -> None:
    async with make_app(tmp_path, OLD).client() as app:
        lost = await app.find("sell").start(SECRET)
    async with make_app(tmp_path, f"plain,{OLD}").client() as app:
        await app.find("sell").start("later")  # the newest run can be read, so that the app may start
    before = column(tmp_path, "SELECT input FROM inputs ORDER BY run")
    async with make_app(tmp_path, NEW) as app:
        with pytest.raises(RunFailed) as caught:
            await app.handle(lost.id).result("20s")
        assert caught.value.code == "infrastructure_failure"
        assert id_of(OLD) in str(caught.value)
        letter = await app.dlq.get(lost.id)
        assert (letter.code, letter.stage, letter.category) == ("infrastructure_failure", "input", "missing_config")
        assert "REDRIVE_ENCRYPTION_KEYS" in letter.reason
    assert column(tmp_path, "SELECT input FROM inputs ORDER BY run") == before
    assert column(tmp_path, "SELECT input FROM letter_texts") == before[:1]
    async with make_app(tmp_path, f"{NEW},{OLD}") as app:
        assert (await app.dlq.get(lost.id)).input == {"card": "••••••"}
        await app.dlq.replay(lost.id, by="ada")
        assert await app.handle(lost.id, "sell").result("20s") == f"charged {SECRET}"


async def test_a_result_that_cannot_be_decrypted_names_the_key(tmp_path: Path) -> None:
    async with make_app(tmp_path, OLD) as app:
        sold = await app.find("sell").start(SECRET)
        failed = await app.find("fail").start(SECRET)
        await sold.result("20s")
        with pytest.raises(RunFailed):
            await failed.result("20s")
        async with make_app(tmp_path, f"plain,{OLD}").client() as other:
            await other.find("sell").start("later")
    async with make_app(tmp_path, NEW).client() as app:
        with pytest.raises(ConfigurationError, match=f"ended as SUCCESS, .* key {id_of(OLD)}"):
            await app.handle(sold.id, "sell").result("20s")
        with pytest.raises(RunFailed, match=id_of(OLD)):
            await app.handle(failed.id).result("20s")
    async with make_app(tmp_path).client() as app:
        with pytest.raises(RunFailed, match=id_of(OLD)):
            await app.handle(failed.id).result("20s")


@pytest.mark.parametrize("keys", [NEW, None])
@pytest.mark.parametrize("options", [{}, {"mode": "FULL"}, {"mode": "SKIP", "output": None}])
async def test_a_process_that_cannot_decrypt_a_letter_does_not_plan_its_replay(
    tmp_path: Path, keys: str | None, options: dict[str, Any]
) -> None:
    async with make_app(tmp_path, f"plain,{OLD}").client() as app:
        failed = await app.find("fail").start(SECRET)  # in clear, so that its input needs no key
    async with make_app(tmp_path, OLD) as app:
        with pytest.raises(RunFailed):
            await failed_result(app, failed.id)
    async with make_app(tmp_path, f"plain,{OLD}").client() as app:
        await app.find("sell").start("later")
    async with make_app(tmp_path, keys).client() as app:
        before = stored_rows(tmp_path)
        for dry_run in (True, False):
            with pytest.raises(ConfigurationError, match=f"cannot be replayed from here: .*{id_of(OLD)}"):
                await app.dlq.replay(failed.id, dry_run=dry_run, **options)
        assert stored_rows(tmp_path) == before
    async with make_app(tmp_path, f"{NEW},{OLD}").client() as app:
        plan = await app.dlq.replay(failed.id, dry_run=True)
        assert [step.name for step in plan.again] == ["ship"]  # type: ignore[union-attr]


async def failed_result(app: Redrive, id: str) -> None:
    await app.handle(id).result("20s")


def stored_rows(folder: Path) -> list[Any]:
    return column(folder, "SELECT status FROM letters") + column(folder, "SELECT count(*) FROM replays")


# -- redrive reencrypt --------------------------------------------------------------------------------------


def reencrypt(folder: Path, monkeypatch: pytest.MonkeyPatch, keys: str, *more: str) -> click.testing.Result:
    monkeypatch.setenv("REDRIVE_ENCRYPTION_KEYS", keys)
    arguments = ["reencrypt", "--url", f"sqlite:///{folder}/redrive.db", *more]
    return click.testing.CliRunner().invoke(main, arguments)


def test_reencrypt_makes_the_old_key_unnecessary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(live(tmp_path, OLD))
    done = reencrypt(tmp_path, monkeypatch, f"{NEW},{OLD}", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["key"] == id_of(NEW)
    assert report["rewritten"] > 10
    assert f"enc1:{id_of(OLD)}" not in str(column(tmp_path, "SELECT input FROM inputs"))
    again = json.loads(reencrypt(tmp_path, monkeypatch, f"{NEW},{OLD}", "--json").stdout)
    assert (again["rewritten"], again["unreadable"], again["busy"]) == (0, {}, 0)

    async def look() -> None:
        async with make_app(tmp_path, NEW).client() as app:
            assert await result(app, "sell") == f"charged {SECRET}"

    asyncio.run(look())


def test_reencrypt_plain_writes_everything_back_in_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(live(tmp_path, OLD))
    done = reencrypt(tmp_path, monkeypatch, OLD, "--plain")
    assert done.exit_code == 0, done.output
    assert "rows rewritten, no other needs it" in done.stdout
    monkeypatch.delenv("REDRIVE_ENCRYPTION_KEYS")

    async def look() -> None:
        async with make_app(tmp_path).client() as app:
            assert await result(app, "sell") == f"charged {SECRET}"

    asyncio.run(look())


def test_reencrypt_without_a_key_or_without_the_right_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(live(tmp_path, None))
    unset = reencrypt(tmp_path, monkeypatch, "")
    assert (unset.exit_code, "REDRIVE_ENCRYPTION_KEYS is not set" in unset.output) == (1, True)
    plain = reencrypt(tmp_path, monkeypatch, f"plain,{OLD}")
    assert (plain.exit_code, "--plain" in plain.output) == (1, True)
    assert reencrypt(tmp_path, monkeypatch, OLD).exit_code == 0
    texts = column(tmp_path, "SELECT input FROM inputs")
    wrong = reencrypt(tmp_path, monkeypatch, NEW)
    assert (wrong.exit_code, id_of(OLD) in wrong.output, NEW in wrong.output) == (1, True, False)
    assert column(tmp_path, "SELECT input FROM inputs") == texts


def test_reencrypt_reports_what_it_could_not_decrypt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(live(tmp_path, OLD))

    async def one_more() -> None:
        async with make_app(tmp_path, f"{NEW},{OLD}").client() as app:
            await app.find("sell").start("later")

    asyncio.run(one_more())
    done = reencrypt(tmp_path, monkeypatch, NEW)
    assert done.exit_code == 1
    assert f"texts encrypted with key {id_of(OLD)} could not be read" in done.output


async def test_reencrypt_beside_a_working_app_disturbs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await live(tmp_path, OLD)
    async with make_app(tmp_path, f"{NEW},{OLD}") as app:
        handles = [await app.find("sell").start(f"{SECRET} {number}") for number in range(60)]
        results = asyncio.gather(*(handle.result("30s") for handle in handles))
        done = await asyncio.to_thread(reencrypt, tmp_path, monkeypatch, f"{NEW},{OLD}", "--json")
        assert await results == [f"charged {SECRET} {number}" for number in range(60)]
    assert done.exit_code == 0, done.output
    again = await asyncio.to_thread(reencrypt, tmp_path, monkeypatch, f"{NEW},{OLD}", "--json")
    assert json.loads(again.stdout)["rewritten"] == 0
