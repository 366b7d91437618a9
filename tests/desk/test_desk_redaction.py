"""Secrets: masked for readers, kept for replays, and revealed only with an audit entry."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from desk_kit import ONCE, Ledger, ended, events, failed, new_app

import redrive
from redrive import Message, NonRetryable, Redrive
from redrive.app import Workflow
from redrive.core.redact import MASK, Redactor
from redrive.desk.preview import DryRun
from redrive.desk.validation import LARGE_SIZE
from redrive.reasons import Reason, ReasonCode
from redrive.server.limits import Limits
from redrive.server.request_context import Service
from redrive.store import open_store
from redrive.store.encryption.keyring import Keyring
from redrive.store.filters import OutboxFilter
from redrive.testing import VirtualClock, engine

SECRETS = ("hunter2", "tok-4711", "sk-0815")


def login(ledger: Ledger) -> tuple[Redrive, Workflow[..., Any, object]]:
    """Return an app and a workflow whose input, outputs and errors contain secrets."""
    app = new_app()

    @app.step(retry=ONCE)
    async def sign_in(user: str, password: str) -> dict[str, str]:
        ledger.calls.append(("sign_in", password))
        return {"token": "tok-4711", "user": user}

    @app.step(retry=ONCE)
    async def use(session: dict[str, str]) -> str:
        ledger.calls.append(("use", session["token"]))
        if "use" in ledger.broken:
            raise RuntimeError("refused: api_key=sk-0815 is not valid")
        return "used"

    @app.workflow
    async def job(user: str, password: str, note: str) -> str:
        return await use(await sign_in(user, password))

    return app, job


async def test_no_displayed_value_contains_a_secret() -> None:
    ledger = Ledger(broken={"use"})
    app, job = login(ledger)
    async with engine(app) as e:
        letter = await failed(e, job, "ann", "hunter2", "hello")
        shown = [
            letter,
            await app.dlq.get(letter.id),
            (await app.dlq.list()).items,
            await app.runs.get(letter.run_id),
            await app.dlq.replay(letter.id, "FULL", patch={"password": "tok-4711"}, dry_run=True),
            [line async for line in app.audit.export()],
        ]
        for each in shown:
            assert not [secret for secret in SECRETS if secret in repr(each)], each
        assert letter.input["user"] == "ann"
        assert "refused: " in letter.message


async def test_revealing_a_letter_is_audited_with_the_user() -> None:
    ledger = Ledger(broken={"use"})
    app, job = login(ledger)
    async with engine(app) as e:
        letter = await failed(e, job, "ann", "hunter2", "hello")
        revealed = await app.dlq.get(letter.id, reveal=True, by="eve")
        assert revealed.input == {"user": "ann", "password": "hunter2", "note": "hello"}
        assert revealed.steps[0].output == {"token": "tok-4711", "user": "ann"}
        assert "sk-0815" in revealed.message
        assert "sk-0815" in revealed.stack
        assert all(secret in repr(revealed) for secret in SECRETS)
        assert ("dlq.revealed", "eve") in await events(e, letter)
        await app.dlq.get(letter.id, by="eve")
        assert (await events(e, letter)).count(("dlq.revealed", "eve")) == 1


async def test_a_replay_uses_the_real_values_of_masked_fields() -> None:
    ledger = Ledger(broken={"use"})
    app, job = login(ledger)
    async with engine(app) as e:
        letter = await failed(e, job, "ann", "hunter2", "hello")
        ledger.broken.clear()
        assert (await ended(e, (await app.dlq.replay(letter.id)).run_id)).result == "used"
        assert ledger.calls == [("sign_in", "hunter2"), ("use", "tok-4711"), ("use", "tok-4711")]


async def test_a_masked_field_that_is_sent_back_keeps_its_value() -> None:
    ledger = Ledger(broken={"use"})
    app, job = login(ledger)
    async with engine(app) as e:
        letter = await failed(e, job, "ann", "hunter2", "hello")
        edited = json.loads(json.dumps(letter.input)) | {"note": "bye"}
        assert edited["password"] != "hunter2"
        ledger.broken.clear()
        replay = await app.dlq.replay(letter.id, "FULL", input=edited)
        assert [(c.path, c.before, c.after) for c in replay.changes] == [("note", "hello", "bye")]
        run = await ended(e, replay.run_id)
        assert run.result == "used"
        assert ledger.calls[-2:] == [("sign_in", "hunter2"), ("use", "tok-4711")]
        assert (await app.dlq.get(letter.id, reveal=True, by="eve")).replays[0].mode == "FULL"


async def test_a_secret_that_is_edited_is_used_and_its_change_is_hidden() -> None:
    ledger = Ledger(broken={"use"})
    app, job = login(ledger)
    async with engine(app) as e:
        letter = await failed(e, job, "ann", "hunter2", "hello")
        said = await app.dlq.replay(letter.id, "FULL", patch={"password": "correct horse"}, dry_run=True)
        assert isinstance(said, DryRun)
        assert [change.path for change in said.changes] == ["password"]
        ledger.broken.clear()
        await ended(e, (await app.dlq.replay(letter.id, "FULL", patch={"password": "correct horse"})).run_id)
        assert ledger.calls[-2] == ("sign_in", "correct horse")
        for each in (said, await app.dlq.get(letter.id), [line async for line in app.audit.export()]):
            assert "horse" not in repr(each)
            assert "hunter2" not in repr(each)


async def test_with_a_key_no_secret_of_a_replay_is_readable_in_the_database(tmp_path: Path) -> None:
    ledger, clock = Ledger(broken={"use"}), VirtualClock()
    app, job = login(ledger)
    store = open_store(f"sqlite:///{tmp_path}/redrive.db", clock, Keyring([bytes(range(32))]))
    async with engine(app, store=store, clock=clock) as e:
        letter = await failed(e, job, "ann", "hunter2", "hello")
        await ended(e, (await app.dlq.replay(letter.id, patch={"password": "correct horse"})).run_id)
        await ended(e, (await app.dlq.replay(letter.id, "FULL", patch={"note": "my little pony"})).run_id)
        await app.dlq.comment(letter.id, "the password was correct horse", by="ann")
        ledger.broken.clear()
        run = await ended(e, (await app.dlq.replay(letter.id, "SKIP", output="sk-0815 it is")).run_id)
        assert run.result == "sk-0815 it is"
        revealed = await app.dlq.get(letter.id, reveal=True, by="eve")
        assert revealed.input == {"user": "ann", "password": "correct horse", "note": "my little pony"}
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"dlq.commented" in stored
    for secret in (*SECRETS, "correct horse", "my little pony"):
        assert secret.encode() not in stored, secret


async def test_a_large_payload_is_redacted_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests to the server are not delayed by it."""
    threads: list[int] = []
    plain = Redactor.redact

    def noted(self: Redactor, value: Any) -> Any:
        threads.extend([threading.get_ident()] if len(repr(value)) > LARGE_SIZE else [])
        return plain(self, value)

    monkeypatch.setattr(Redactor, "redact", noted)
    app, job = login(Ledger(broken={"use"}))
    async with engine(app) as e:
        letter = await failed(e, job, "ann", "hunter2", "x" * LARGE_SIZE)
        threads.clear()
        assert (await app.dlq.get(letter.id)).input["password"] == MASK
        assert (await app.dlq.list()).items[0].input["password"] == MASK
        assert (await app.runs.get(letter.run_id)).input["password"] == MASK
        assert (await app.runs.list()).items[0].workflow == "job"
        assert threads
        assert threading.get_ident() not in threads


async def test_no_large_text_is_redacted_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers messages, edits, previews, many small comments, and errors in responses."""
    here, large = threading.get_ident(), list[str]()

    def guarded(plain: Any) -> Any:
        def noted(self: Redactor, value: Any) -> Any:
            if len(repr(value)) >= LARGE_SIZE:
                assert threading.get_ident() != here
                large.append(plain.__name__)
            return plain(self, value)

        return noted

    app = Redrive("sqlite:///:memory:")

    @app.step
    async def use(note: str) -> str:
        raise NonRetryable("no")

    @app.workflow
    async def job(note: str, password: str) -> None:
        await redrive.publish("notes", {"note": note, "password": password})
        await use(note)

    @app.subscribe("notes", name="reader")
    async def read(message: Message) -> None:
        return None

    async with engine(app) as e:
        letter = await failed(e, job, "x" * LARGE_SIZE, "hunter2")
        monkeypatch.setattr(Redactor, "redact", guarded(Redactor.redact))
        monkeypatch.setattr(Redactor, "text", guarded(Redactor.text))
        (message,) = (await app.outbox.list(OutboxFilter(topic="notes"))).items
        assert message.payload["password"] == MASK
        assert (await app.outbox.get(message.id)).payload["password"] == MASK
        shown = await app.dlq.replay(letter.id, patch={"password": "hunter3"}, by="ann", dry_run=True)
        assert [change.after for change in shown.changes] == [MASK]
        begun = len(large)
        for _ in range(LARGE_SIZE // 9_000 + 1):
            await app.dlq.comment(letter.id, "y" * 9_000, by="ann")
        assert len((await app.audit.list()).items) > LARGE_SIZE // 9_000
        assert begun >= 4
        service = Service(app, Limits(), 1.0)
        shown = Reason(ReasonCode.TEXT, text="password=hunter2 " + "z" * LARGE_SIZE)
        assert str(await service.redact(shown)) == f"password={MASK} " + "z" * LARGE_SIZE
        assert len(large) > begun
