"""The encrypted store: no payload is stored in clear, everything is returned, and no text is ever lost."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cases import each
from cluster import POSTGRES
from outbox_kit import DEAD, mark, say, sink
from store_keys import with_keys
from store_kinds import new_place
from store_kit import DAY, HandClock, Kit, becomes, ends_in_letter, entry, failed_try, noted, writes

from redrive.core import transitions as written
from redrive.core.journal import Journal
from redrive.core.keys_and_ids import payload_hash
from redrive.core.questions import QuestionKind
from redrive.core.secret_and_sealed_text import is_sealed, key_id_of
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import AuditWrite, EventUse, QuestionWrite, StatusNoteWrite
from redrive.errors import ConfigurationError, DataRefused, InputError
from redrive.record_fields import field_names, replace
from redrive.store import (
    audit,
    bulk,
    children,
    chores,
    circuits,
    groups,
    letters,
    open_store,
    outbox,
    outbox_claims,
    questions,
    runs,
    settings,
    stats,
    workers,
)
from redrive.store.accounts import RequestClaim, ResponseRow
from redrive.store.bulk import BulkItemResult, BulkItemStatus, NewBulk
from redrive.store.encryption.codec import (
    HASH_FIELDS,
    READ_PARTS,
    READ_PAYLOADS,
    WRITTEN_PARTS,
    WRITTEN_PAYLOADS,
    Codec,
    refuse_unreadable,
)
from redrive.store.encryption.keyring import Keyring
from redrive.store.encryption.reencryption import TEXT_TABLES, TextStore, TextSwap, reencrypt_store
from redrive.store.events import NewEvent
from redrive.store.filters import LetterFilter, RunFilter
from redrive.store.letters import Triage
from redrive.store.notifications import LaneNotification, NewNotice, NewNotification, NotificationFilter, RuleRow
from redrive.store.port import Store
from redrive.store.questions import GivenAnswer
from redrive.store.settings import NewView

SEALED = {**WRITTEN_PAYLOADS, **READ_PAYLOADS}
OLD, NEW = bytes(range(32)), bytes(range(1, 33))
SECRET = "4111-1111-1111-1111"
KEY = "idem_job:default:w:order-1"


def ring(*keys: bytes | None) -> Keyring:
    return Keyring(list(keys))


# -- texts -------------------------------------------------------------------------------------------------


def test_an_encrypted_text_shows_only_its_key_id_and_can_be_decrypted() -> None:
    keys = ring(OLD)
    sealed = keys.seal(f'{{"card":"{SECRET}"}}', "acme")
    assert is_sealed(sealed)
    assert key_id_of(sealed) == keys.writes
    assert SECRET not in sealed
    assert keys.open(sealed, "acme") == f'{{"card":"{SECRET}"}}'
    assert keys.seal(f'{{"card":"{SECRET}"}}', "acme") != sealed


@pytest.mark.parametrize("text", ["", "{}", "żółć 🐢", "\x00", "a\nb", "x" * 100_000])
def test_every_text_is_decrypted_unchanged(text: str) -> None:
    keys = ring(OLD)
    assert keys.open(keys.seal(text, "tenant"), "tenant") == text
    assert keys.open_hash(keys.seal_hash(text, "tenant"), "tenant") == text


def test_the_first_key_encrypts_and_all_keys_decrypt() -> None:
    by_old = ring(OLD).seal("{}", "acme")
    both = ring(NEW, OLD)
    assert both.open(by_old, "acme") == "{}"
    assert key_id_of(both.seal("{}", "acme")) == ring(NEW).writes != ring(OLD).writes


def test_a_plain_first_key_writes_in_clear_and_the_others_read() -> None:
    keys = ring(None, OLD)
    assert keys.seal("{}", "acme") == "{}"
    assert keys.seal_hash("hash", "acme") == "hash"
    assert keys.open(ring(OLD).seal("{}", "acme"), "acme") == "{}"


def test_a_text_written_in_clear_is_returned_unchanged() -> None:
    assert ring(OLD).open('{"order":1}', "acme") == '{"order":1}'
    assert ring(OLD).open_hash("abc", "acme") == "abc"


def test_a_missing_key_is_distinguished_from_a_damaged_text() -> None:
    sealed = ring(OLD).seal("{}", "acme")
    with pytest.raises(ConfigurationError, match=f"key {key_id_of(sealed)}, which REDRIVE_ENCRYPTION_KEYS does not"):
        ring(NEW).open(sealed, "acme")
    for broken in (sealed[:-8] + "AAAAAAA=", sealed[:-3], sealed + "!", sealed[:14]):
        with pytest.raises(ConfigurationError, match="REDRIVE_ENCRYPTION_KEYS holds, but it was damaged"):
            ring(OLD).open(broken, "acme")


def test_a_text_of_another_tenant_is_refused_if_the_tenant_is_known() -> None:
    sealed = ring(OLD).seal("{}", "acme")
    with pytest.raises(ConfigurationError, match="another tenant"):
        ring(OLD).open(sealed, "globex")
    assert ring(OLD).open(sealed, None) == "{}"


def test_a_keyed_hash_can_be_compared_but_not_guessed() -> None:
    keys, hash = ring(OLD), payload_hash("{}")
    assert keys.seal_hash(hash, "acme") == keys.seal_hash(hash, "acme")
    assert hash not in keys.seal_hash(hash, "acme")
    others = {
        keys.seal_hash(hash, "globex"),
        keys.seal_hash(payload_hash("1"), "acme"),
        ring(NEW).seal_hash(hash, "acme"),
    }
    assert keys.seal_hash(hash, "acme") not in others


def test_an_invalid_text_is_refused() -> None:
    with pytest.raises(DataRefused):
        ring(OLD).seal("\ud800", "acme")


# -- every record is covered ------------------------------------------------------------------------------


# Fields stored in clear: they name and count things, or users wrote them for others to read.
CLEAR = {
    "action", "by", "category", "closed_by", "paused_by", "code", "correlation_id", "event", "fingerprint",
    "handler_for", "key", "key_maker", "kind", "letter", "letters", "maker", "mode", "name",
    "options", "outcome", "owner", "parent", "parked_on", "muted_by", "resolved_by", "retried_by", "retried_bulk",
    "resolved_version", "back_version", "own", "pin", "pins", "versions",
    "policy", "public_id", "queue", "replay_of", "resolution", "root", "run", "run_id", "schema_in",
    "events", "schema_out", "sole_step", "stage", "state", "status", "step", "subject", "tags", "tenant", "token",
    "updated_by", "version", "wanted", "workflow", "workflows", "queues", "escalate", "escalated_to",
    "ends_replay", "next", "prev", "sink",
    "topic", "message", "changed_by", "override", "settings", "why", "ends_as", "trace",
    "due", "overdue", "workers",
}  # fmt: skip
# A letter's reason comes from the engine and contains an error message; other reasons come from users.
PEOPLES = ("ReplayWrite", "ReplayRow", "AuditWrite", "AuditRow", "NewBulk", "BulkRow")
FIGURES = {("StoreStats", name) for name in ("due", "overdue", "workers", "waiting")}
SCHEDULED = {(record, name) for record in ("NewSchedule", "ScheduleRow") for name in ("expression", "zone", "last_run")}
CLEAR_HERE = {(record, "reason") for record in PEOPLES} | FIGURES | SCHEDULED
CLEAR_HERE |= {(record, "list") for record in ("NewView", "ViewKey", "ViewRow")}
ASKED = {"QuestionWrite": "role people apart_from plan notify", "QuestionStep": "role people plan"}
ASKED["QuestionRow"] = ASKED["QuestionWrite"] + " answered_by replaces"
CLEAR_HERE |= {(record, name) for record, names in ASKED.items() for name in names.split()}
CLEAR_HERE |= {("Receipt", "digest"), ("Receipt", "make_answer")}  # `ReceiptWrite` is what is stored
CLEAR_HERE |= {("Bundle", "sinks"), ("PurgeRequest", "keeps"), ("DeliveryRow", "behind"), ("Rate", "unit")}
NOT_STORED = {
    "redrive.store.list_query",
    "redrive.store.result_page",
    "redrive.reasons.reason",
    "redrive.core.run_options",
    "redrive.core.schedule",
}
# Heartbeats are encrypted by the lease and decrypted with their entry.
# Searchable fields of runs are hashed pair by pair.
ELSEWHERE = {("EntryRow", "heartbeat"), ("NewRun", "index"), ("ReopenWrite", "index")}


# Claimed runs are decrypted as a whole, or not at all.
OPENED_APART = {"ClaimResult", "ClaimedRun", "StartResult"}


def records() -> list[type[Any]]:
    nouns = (
        *(audit, bulk, children, chores, circuits, groups, letters, outbox, outbox_claims, questions),
        *(runs, settings, stats, workers, written),
    )
    found = {name: value for module in nouns for name, value in vars(module).items() if name[0] != "_"}
    kept = [
        each
        for name, each in found.items()
        if isinstance(each, type)
        and (issubclass(each, msgspec.Struct) or dataclasses.is_dataclass(each))
        and each is not msgspec.Struct
        and not name.endswith("Filter")
        and each.__module__ not in NOT_STORED
    ]
    return sorted(kept, key=lambda each: each.__name__)


def test_every_text_of_every_record_is_classified() -> None:
    """A new field must be declared as payload in `store/encryption/codec.py`, or as clear text here."""
    missing = [
        f"{record.__name__}.{field}"
        for record in records()
        for field in field_names(record)
        if "str" in record.__annotations__[field]
        and field not in {*SEALED.get(record, ()), *HASH_FIELDS.get(record, ())}
        and (record.__name__, field) not in CLEAR_HERE | ELSEWHERE
        and field not in CLEAR
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("payloads", "parts"), [(WRITTEN_PAYLOADS, WRITTEN_PARTS), (READ_PAYLOADS, READ_PARTS)], ids=["written", "read"]
)
def test_every_part_of_a_record_that_can_hold_a_payload_is_known(
    payloads: dict[type, Any], parts: dict[type, Any]
) -> None:
    names = {record.__name__ for record in (*payloads, *parts)} - {"RunRow"}  # a run is a separate field
    for record in records():
        if record in (WRITTEN_PARTS if payloads is READ_PAYLOADS else READ_PARTS) or record.__name__ in OPENED_APART:
            continue
        holding = {
            field
            for field in field_names(record)
            if any(re.search(rf"\b{name}\b", record.__annotations__[field]) for name in names)
        }
        assert holding <= set(parts.get(record, ())), record


def filled(record: type[Any]) -> Any:
    """Return a record whose encrypted and hashed fields are filled."""
    own = {*SEALED[record], *HASH_FIELDS.get(record, ())}
    needed = {field: SECRET if field in own else "acme" if field == "tenant" else None for field in field_names(record)}
    return record(**needed)


def sealed_by_hand(keys: Keyring, record: Any) -> Any:
    """Return a record as it comes from the database."""
    payloads = {name: keys.seal(getattr(record, name), "acme") for name in READ_PAYLOADS[type(record)]}
    hashes = {name: keys.seal_hash(getattr(record, name), "acme") for name in HASH_FIELDS.get(type(record), ())}
    return replace(record, **payloads, **hashes)


@each("record", SEALED)
def test_exactly_the_declared_fields_of_each_record_are_encrypted_and_decrypted(record: type[Any]) -> None:
    keys, plain = ring(OLD), filled(record)
    codec = Codec(keys)
    sealed = codec.seal(plain, "acme") if record in WRITTEN_PAYLOADS else sealed_by_hand(keys, plain)
    own = {*SEALED[record], *HASH_FIELDS.get(record, ())}
    for field in field_names(record):
        value = getattr(sealed, field)
        assert is_sealed(value) if field in own else value == getattr(plain, field), field
    if record in READ_PAYLOADS:
        assert codec.open(sealed, "acme") == plain
    assert type(sealed) is record


# -- a store with keys ------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(kind: str, folder: Path, clock: HandClock) -> AsyncIterator[Callable[[Keyring | None], Kit]]:
    """Return a function that opens one location with any keys."""
    async with new_place(kind, folder) as url:
        store = open_store(url, clock)
        await store.open()

        def seen(keys: Keyring | None) -> Kit:
            seen: Store = store if keys is None else with_keys(store, keys)
            return Kit(store=seen, clock=clock, beside=lambda: url, shared=True, kind=kind)

        yield seen
        await store.close()


@pytest.fixture(params=["sqlite-file", POSTGRES[0]])
async def open_kit(request: pytest.FixtureRequest, tmp_path: Path, clock: HandClock) -> AsyncIterator[Any]:
    async with opened(request.param, tmp_path, clock) as seen:
        yield seen


async def live(kit: Kit) -> Any:
    """Create a run that uses every way in which a payload is stored; return its claim."""
    worker, run = await kit.held(input=f'"{SECRET}"', key=KEY, key_hash=payload_hash(f'"{SECRET}"'), key_keeps=DAY)
    text = f'{{"why":"{SECRET}"}}'
    begun = writes(
        run,
        entry(0, StepStatus.RUNNING, input=text, options="{}", limit_in=DAY),
        entry(1, StepStatus.SUCCESS, input=text, output=text, done=0),
        entry(2, StepStatus.FAILED, input=text, failure=text, done=1),
        attempts=(failed_try(2, failure=text, decision=text, category="timeout"),),
        messages=(say("m1", payload=text),),
        note=StatusNoteWrite(text=text, data=text),
    )
    event = NewEvent(
        run_id=run.public_id, tenant=run.tenant, name="paid", payload=text, by="ann", most=9, most_bytes=1_000_000
    )
    assert await kit.store.send(event) is not None
    await kit.store.apply([writes(run, uses=(EventUse(seq=1, index=0, refused=text),))], worker=worker)
    asked = QuestionWrite(
        public_id="tk-1", index=1, key="k", run_id=run.public_id, workflow=run.workflow, kind=QuestionKind.ASK,
        question=text, shown=text, schema=text,
    )  # fmt: skip
    await kit.store.apply([writes(run, questions=(asked,))], worker=worker)
    line = AuditWrite(event="task.answered", tenant=run.tenant, by="ann", subject="tk-1")
    assert await kit.store.answer_question(
        GivenAnswer(public_id="tk-1", tenant=run.tenant, by="ann", answer=text, note=text, audit=line)
    )
    await kit.store.put_sinks([sink()])
    assert (await kit.store.apply([begun], worker=worker))[0].kept
    (claimed,) = (await kit.store.claim_deliveries("s", limit=1, lease=DAY)).items
    await kit.store.record_deliveries("s", [mark(claimed, DEAD, error=text)])
    line = kit.store.lease_connection()
    line.beat({worker: {(run.id, 0): text}})
    line.close()
    end = ends_in_letter(run, reason=f"it said {SECRET}", failure=text, payload_hash=payload_hash(f'"{SECRET}"'))
    change = replace(end.change, failure=text, output=text)
    assert (await kit.store.apply([replace(end, change=change)], worker=worker))[0].kept
    return run


async def all_texts(kit: Kit) -> dict[str, list[str]]:
    """Return every text in the tables that hold payloads, as stored."""
    texts = await make_texts(kit)
    try:
        found = {}
        for table in texts.tables:
            rows = await texts.page(table, table.start, 10_000)
            found[table.name] = [text for row in rows for text in row.texts if text]
        return found
    finally:
        await texts.close()


async def make_texts(kit: Kit) -> TextStore:
    url = kit.beside()
    if kit.kind.startswith("sqlite"):
        from redrive.store.sqlite.store import SqliteTextStore

        return SqliteTextStore(url)
    from redrive.store.postgres.store import PostgresTextStore

    return PostgresTextStore(url, kit.clock)


async def test_no_payload_is_stored_in_clear_and_each_is_returned(open_kit: Any) -> None:
    kit = open_kit(ring(OLD))
    run = await live(kit)
    found = await all_texts(kit)
    empty = [
        "replays",
        "run_index",
        "step_tasks",
        "bulk_actions",
        "bulk_items",
        "notices",
        "notifications",
        "notify_rules",
    ]
    empty += ["saved_views", "remote_workers", "access_answers", "audit"]
    assert [name for name, texts in found.items() if not texts] == empty
    assert [text for texts in found.values() for text in texts if not is_sealed(text)] == []
    plain = open_kit(None)
    assert SECRET not in repr(await plain.everything(run))
    row, journal, attempts, its_letter = await kit.everything(run)
    asked, answer = await kit.store.question("tk-1"), (await kit.store.asked_question(run.id, 1)).answer
    assert {asked.question, asked.shown, asked.schema, asked.answer, asked.note, answer.answer, answer.note} == {
        f'{{"why":"{SECRET}"}}'
    }
    assert (row.input, row.output, row.failure) == (f'"{SECRET}"', *[f'{{"why":"{SECRET}"}}'] * 2)
    assert SECRET in journal[0].heartbeat
    assert all(SECRET in each.input for each in journal)
    assert SECRET in journal[1].output
    assert SECRET in journal[2].failure
    assert SECRET in attempts[0].failure
    assert SECRET in attempts[0].decision
    assert (its_letter.reason, its_letter.input) == (f"it said {SECRET}", f'"{SECRET}"')
    assert its_letter.payload_hash == payload_hash(f'"{SECRET}"')
    message = await kit.store.message("m1")
    assert SECRET in message.payload
    assert SECRET in message.deliveries[0].error


async def test_a_file_contains_no_byte_of_a_payload(tmp_path: Path, clock: HandClock) -> None:
    async with opened("sqlite-file", tmp_path, clock) as seen:
        await live(seen(ring(OLD)))
        stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert len(stored) > 10_000
        assert SECRET.encode() not in stored
        assert payload_hash(f'"{SECRET}"').encode() not in stored


async def test_rows_from_before_the_keys_stay_readable(open_kit: Any) -> None:
    run = await live(open_kit(None))
    before = await open_kit(None).everything(run)
    assert await open_kit(ring(OLD)).everything(run) == before


async def test_encrypted_letters_are_decrypted_for_a_search_a_few_at_a_time(
    open_kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.store.list_query.MAX_OPENED", 1)
    await live(open_kit(None))
    kit = open_kit(ring(OLD))
    worker, run = await kit.held()
    await kit.store.apply([ends_in_letter(run, message=f"it_said {SECRET}")], worker=worker)
    where, wrong = LetterFilter(text="IT SAID"), LetterFilter(text="it sang")
    store = kit.store
    page = await store.letters(where, limit=10, cursor=None)
    older = await store.letters(where, limit=10, cursor=page.next)
    assert [len(page.items), len(older.items)] == [1, 1], "one clear, one encrypted; a page decrypts one row"
    assert (await store.letters(wrong, limit=10, cursor=None)).items == []
    assert len((await open_kit(ring(None, OLD)).store.letters(where, limit=10, cursor=None)).items) == 1
    # A search in which the database would have to count is refused: it has only encrypted texts.
    for ask in (store.count_letters(where), store.facets(where, most=10)):
        with pytest.raises(InputError, match="cannot be counted or selected by text"):
            await ask


async def test_a_transactional_step_is_encrypted(open_kit: Any) -> None:
    kit = open_kit(ring(OLD))
    worker, run = await kit.held()
    tx = kit.store.transaction(5.0)
    assert (await tx.commit(worker, writes(run, entry(0, output=f'"{SECRET}"', done=0)))).kept
    assert SECRET not in repr(await open_kit(None).store.journal(run.id))
    assert (await kit.store.journal(run.id))[0].output == f'"{SECRET}"'


@pytest.mark.parametrize("first", [None, OLD, NEW])
@pytest.mark.parametrize("then", [(OLD, NEW), (NEW, OLD), (None, OLD, NEW)])
async def test_an_idempotency_key_is_recognised_whichever_key_it_was_written_with(
    open_kit: Any, first: bytes | None, then: tuple[bytes | None, ...]
) -> None:
    kit = open_kit(ring(*then))
    same = {"key": KEY, "key_hash": payload_hash("1"), "key_keeps": DAY}
    (began,) = await open_kit(ring(first) if first else None).store.start([kit.new(**same)])
    again, other, new = await kit.store.start(
        [kit.new(**same), kit.new(**{**same, "key_hash": payload_hash("2")}), kit.new(**{**same, "key": f"{KEY}-2"})]
    )
    assert (again.public_id, again.new, again.clash) == (began.public_id, False, False)
    assert (other.public_id, other.new, other.clash) == (began.public_id, False, True)
    assert (new.new, new.clash) == (True, False)


# -- missing keys -------------------------------------------------------------------------------------------


async def test_a_claimed_run_without_its_key_cannot_be_executed_and_the_others_can(open_kit: Any) -> None:
    await open_kit(ring(OLD)).start(input=f'"{SECRET}"')
    kit = open_kit(ring(NEW))
    await kit.start(input='"readable"')
    lost, read = (await kit.claim(await kit.worker())).runs
    assert read.input == '"readable"'
    Journal(read.journal)
    assert is_sealed(lost.input)
    with pytest.raises(ConfigurationError, match=f"key {ring(OLD).writes}, which REDRIVE_ENCRYPTION_KEYS"):
        Journal(lost.journal)


async def test_a_run_whose_journal_cannot_be_decrypted_is_not_executed(open_kit: Any) -> None:
    kit = open_kit(ring(NEW))
    worker, run = await kit.held()
    await open_kit(ring(OLD)).store.apply([writes(run, entry(0, output="1", done=0))], worker=worker)
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)], worker=worker)
    (again,) = (await kit.claim(worker)).runs
    assert again.input == run.input
    with pytest.raises(ConfigurationError, match=ring(OLD).writes):
        Journal(again.journal)


async def test_a_letter_keeps_the_encrypted_text_and_is_readable_when_the_key_is_back(open_kit: Any) -> None:
    await open_kit(ring(OLD)).start(input=f'"{SECRET}"')
    kit = open_kit(ring(NEW))
    worker = await kit.worker()
    (run,) = (await kit.claim(worker)).runs
    before = await all_texts(kit)
    await kit.fail(worker, run)
    after = await all_texts(kit)
    assert after["inputs"] == before["inputs"]
    assert before["inputs"][0] in after["letters"] + after.get("letter_texts", [])
    assert (await open_kit(ring(NEW, OLD)).letter(run)).input == f'"{SECRET}"'


async def test_a_text_that_cannot_be_decrypted_is_written_back_unchanged(open_kit: Any) -> None:
    """The reaper writes back the texts that it read. It must neither fail at such a run nor damage it."""
    old = open_kit(ring(OLD))
    worker, run = await old.held()
    started = entry(0, StepStatus.RUNNING, input=f'"{SECRET}"', limit_in=1, options="{}")
    await old.store.apply([writes(run, started)], worker=worker)
    old.clock.move(DAY)
    kit = open_kit(ring(NEW))
    (held,) = await kit.store.hung(0, 10)
    assert is_sealed(held.run.input)
    assert is_sealed(held.open[0].input)
    back = entry(0, StepStatus.RETRYING, input=held.open[0].input, wake_in=1)
    await kit.store.apply([writes(run, back)])
    assert (await old.store.journal(run.id))[0].input == f'"{SECRET}"'


async def test_failures_that_cannot_be_decrypted_are_marked_and_lists_continue(open_kit: Any) -> None:
    run = await live(open_kit(ring(OLD)))
    kit = open_kit(ring(NEW))
    other_worker, other = await kit.held()
    await kit.fail(other_worker, other, reason="readable")
    page = await kit.store.letters(LetterFilter(), limit=10, cursor=None)
    assert page.items[0].reason == "readable"
    assert f"encrypted with key {ring(OLD).writes}" in page.items[1].reason
    row, journal, attempts, its_letter = await kit.everything(run)
    for text in (row.failure, journal[2].failure, attempts[0].failure, attempts[0].decision, its_letter.failure):
        assert "REDRIVE_ENCRYPTION_KEYS" in text
        assert not is_sealed(text)
    assert is_sealed(row.input)
    assert is_sealed(its_letter.input)


async def test_a_process_that_cannot_read_the_latest_texts_is_refused(open_kit: Any) -> None:
    await refuse_unreadable(open_kit(None).store)
    await open_kit(None).start()
    await refuse_unreadable(open_kit(ring(OLD)).store)
    await open_kit(ring(OLD)).start()
    await refuse_unreadable(open_kit(ring(NEW, OLD)).store)
    for keys in (None, ring(NEW), ring(None, NEW)):
        with pytest.raises(ConfigurationError, match=f"key {ring(OLD).writes}, which REDRIVE_ENCRYPTION_KEYS"):
            await refuse_unreadable(open_kit(keys).store)


# -- reencrypting -----------------------------------------------------------------------------------------


async def rewritten(kit: Kit, keys: Keyring, **more: Any) -> Any:
    texts = await make_texts(kit)
    try:
        return await reencrypt_store(texts, keys, watch=lambda table, report: None, **more)
    finally:
        await texts.close()


def apart(kit: Kit) -> int:
    """Return 1 if letters have a separate row for their texts, else 0."""
    return int(kit.kind.startswith("sqlite"))


async def keys_of(kit: Kit) -> set[str]:
    return {key_id_of(text) for texts in (await all_texts(kit)).values() for text in texts}


async def test_reencrypting_goes_from_clear_to_a_key_to_another_and_back(open_kit: Any) -> None:
    run = await live(open_kit(None))
    before = await open_kit(None).everything(run)
    for keys in (ring(OLD), ring(NEW, OLD), ring(NEW).read_only()):
        report = await rewritten(open_kit(None), keys, batch=2)
        assert report.rewritten == 13 + apart(open_kit(None)), (
            "1 input, 1 result, 3 entries, 1 attempt, 1 letter, 1 key, 1 message, 1 delivery, 1 event, 1 status, 1 task"
        )
        assert (report.busy, report.unreadable) == (0, {})
        assert await keys_of(open_kit(None)) == {keys.writes or "in clear"}
        assert await open_kit(keys).everything(run) == before
        assert (await rewritten(open_kit(None), keys)).rewritten == 0
    assert await open_kit(None).everything(run) == before


async def test_an_interrupted_reencryption_is_completed_by_the_next(open_kit: Any) -> None:
    run = await live(open_kit(ring(OLD)))
    before = await open_kit(ring(OLD)).everything(run)

    class Stop(Exception):
        pass

    def stop(table: Any, report: Any) -> None:
        if report.rewritten >= 3:
            raise Stop

    texts = await make_texts(open_kit(None))
    with pytest.raises(Stop):
        await reencrypt_store(texts, ring(NEW, OLD), watch=stop, batch=1)
    await texts.close()
    assert len(await keys_of(open_kit(None))) == 2
    assert await open_kit(ring(NEW, OLD)).everything(run) == before
    assert (await rewritten(open_kit(None), ring(NEW, OLD))).rewritten == 10 + apart(open_kit(None))
    assert await keys_of(open_kit(None)) == {ring(NEW).writes}


async def test_a_text_written_during_a_reencryption_is_not_overwritten(open_kit: Any) -> None:
    kit = open_kit(ring(OLD))
    worker, run = await kit.held()
    await kit.store.apply([writes(run, entry(0, output='"first"', done=0))], worker=worker)
    (table,) = (table for table in TEXT_TABLES if table.name == "entries")
    texts = await make_texts(kit)
    (row,) = await texts.page(table, table.start, 10)
    await kit.store.apply([writes(run, entry(0, output='"second"', done=0))], worker=worker)
    stale = TextSwap(
        row, tuple(text and kit.store.database.codec.keys.seal('"stale"', "default") for text in row.texts)
    )
    assert await texts.swap(table, [stale]) == 0
    await texts.close()
    assert (await kit.store.journal(run.id))[0].output == '"second"'


async def test_reencrypting_skips_and_counts_texts_that_it_cannot_decrypt(open_kit: Any) -> None:
    await open_kit(ring(OLD)).start()
    await open_kit(None).start()
    before = (await all_texts(open_kit(None)))["inputs"]
    report = await rewritten(open_kit(None), ring(NEW))
    after = (await all_texts(open_kit(None)))["inputs"]
    assert report.unreadable == {ring(OLD).writes: 1}
    assert after[0] == before[0]
    assert key_id_of(after[1]) == ring(NEW).writes


async def test_reencrypting_includes_the_searchable_fields_of_runs(open_kit: Any) -> None:
    where = RunFilter(index={"card": SECRET})

    async def found(kit: Kit) -> list[str]:
        return [run.public_id for run in (await kit.store.runs(where, limit=10, cursor=None)).items]

    first = await open_kit(None).start(index=(("card", SECRET),))
    second = await open_kit(ring(OLD)).start(index=(("card", SECRET),))
    both = [*second, *first]
    assert await found(open_kit(ring(OLD))) == both
    await rewritten(open_kit(None), ring(NEW, OLD))
    texts = (await all_texts(open_kit(None)))["run_index"]
    assert [key_id_of(text) for text in texts] == [ring(NEW).writes] * 2
    assert await found(open_kit(ring(NEW))) == both
    await rewritten(open_kit(None), ring(None, NEW))
    assert await found(open_kit(None)) == both


async def test_reencrypting_includes_bulk_actions_and_their_refusals(open_kit: Any) -> None:
    kit = open_kit(ring(OLD))
    asked = f'{{"mode":"FULL","patch":{{"card":"{SECRET}"}}}}'
    new = NewBulk(public_id="set1", tenant="acme", action="REPLAY", by="ann", request=asked, letters=("l1",))
    line = written.AuditWrite(event="dlq.bulk_started", tenant="acme", by="ann", subject="set1", token="t")
    await kit.store.create_bulk(new, line)
    row = await kit.store.claim_bulk(DAY)
    failed = BulkItemResult(id=1, status=BulkItemStatus.FAILED, error=f"{SECRET} does not fit")
    await kit.store.advance(row, [failed], limit=1, lease=DAY)
    before = await all_texts(kit)
    assert [key_id_of(text) for text in before["bulk_actions"] + before["bulk_items"]] == [ring(OLD).writes] * 2
    await rewritten(kit, ring(NEW, OLD))
    after = await all_texts(kit)
    assert [key_id_of(text) for text in after["bulk_actions"] + after["bulk_items"]] == [ring(NEW).writes] * 2
    newer = open_kit(ring(NEW)).store
    found = await newer.bulk_by_id("set1")
    assert found.request == asked
    (item,) = (await newer.bulk_items(found, None, limit=10, cursor=None)).items
    assert item.error == f"{SECRET} does not fit"


async def test_remembered_answers_are_encrypted_and_reencrypted(open_kit: Any) -> None:
    accounts = open_kit(ring(OLD)).store.accounts
    asked = RequestClaim(tenant="acme", key="k", digest="d", patience=DAY, keeps=DAY)
    assert isinstance(await accounts.claim_request(asked), int)
    answer = ResponseRow(tenant="acme", key="k", digest="d", status=200, body=f'{{"pin":"{SECRET}"}}')
    await accounts.save_response(answer)
    kit = open_kit(None)
    assert SECRET not in (await all_texts(kit))["access_answers"][0]
    await rewritten(kit, ring(NEW, OLD))
    assert await open_kit(ring(NEW)).store.accounts.claim_request(asked) == answer


async def test_saved_views_are_encrypted_and_reencrypted(open_kit: Any) -> None:
    query = f"text={SECRET}"
    view = NewView(tenant="acme", list="letters", owner="ann", name="v", query=query, by="ann")
    assert await open_kit(ring(OLD)).store.views.put(view, most=9, audit=None)
    kit = open_kit(None)
    (text,) = (await all_texts(kit))["saved_views"]
    assert SECRET not in text
    await rewritten(kit, ring(NEW, OLD))
    assert [row.query for row in await open_kit(ring(NEW)).store.views.known("acme", "ann")] == [query]


async def test_notifications_are_encrypted_and_reencrypted(open_kit: Any) -> None:
    secret = f'{{"pin":"{SECRET}"}}'
    notices = open_kit(ring(OLD)).store.notifications
    rule = RuleRow(tenant="acme", workflow="w", rule=secret, updated_at=0, updated_by="ann")
    await notices.set_rule(rule, noted("notify.set", tenant="acme"))
    facts = [NewNotice(public_id=name, tenant="acme", lane=name, notice=secret) for name in ("told", "waits")]
    await notices.add(facts)
    case = next(case for case in await notices.due(limit=9, newest=1) if case.lane == "told")
    new = NewNotification(public_id="n", tenant="acme", event="e", workflow="w", count=1, in_app=True, content=secret)
    assert await notices.send(LaneNotification(case=case, every=DAY, notification=new))
    kit = open_kit(None)
    found = await all_texts(kit)
    assert [len(found[name]) for name in ("notices", "notifications", "notify_rules")] == [2, 1, 1]
    assert SECRET not in repr(found)
    await rewritten(kit, ring(NEW, OLD))
    notices = open_kit(ring(NEW)).store.notifications
    assert [row.rule for row in await notices.rules()] == [secret]
    page = await notices.inbox(NotificationFilter(), "ann", limit=9, cursor=None)
    assert [row.content for row in page.items] == [secret]
    assert [case.notices[0].notice for case in await notices.due(limit=9, newest=1)] == [secret]


def test_reencrypting_includes_every_encrypted_column() -> None:
    """Every encrypted field of a record must be known to `reencrypt`: columns have the names of fields."""
    names = {"key_hash": "hash"}
    fields = {
        names.get(name, name) for record in (*SEALED,) for name in (*SEALED[record], *HASH_FIELDS.get(record, ()))
    }
    columns = {column for table in TEXT_TABLES for column in table.columns}
    assert columns == fields | {"heartbeat", "value"}


def test_a_letter_without_a_copy_of_its_input_is_readable() -> None:
    keys = ring(OLD)
    assert keys.is_current("")
    assert keys.seal_hash("", "acme") == ""


async def test_messages_of_a_notification_are_encrypted_for_its_tenant(open_kit: Any) -> None:
    kit = open_kit(ring(OLD))
    await kit.store.put_sinks([sink()])
    fact = NewNotice(public_id="fact", tenant="acme", lane="lane", notice="{}")
    await kit.store.notifications.add([fact])
    (case,) = await kit.store.notifications.due(limit=9, newest=1)
    new = NewNotification(public_id="n", tenant="acme", event="e", workflow="w", count=1, in_app=True, content="{}")
    told = LaneNotification(case=case, every=DAY, notification=new, messages=(say("told", payload=f'"{SECRET}"'),))
    assert await kit.store.notifications.send(told)
    message = await kit.store.message("told")
    assert (message.tenant, message.payload) == ("acme", f'"{SECRET}"')
    assert SECRET not in repr(await open_kit(None).store.message("told"))


async def test_messages_of_a_note_on_a_letter_are_encrypted_for_its_tenant(open_kit: Any) -> None:
    kit = open_kit(ring(OLD))
    await kit.store.put_sinks([sink()])
    worker, run = await kit.held(tenant="acme")
    await kit.fail(worker, run)
    audit = noted("dlq.escalated", tenant="acme", letter=f"dl-{run.public_id}")
    told = (say("told", payload=f'"{SECRET}"'),)
    assert await kit.store.triage(Triage(letter=audit.letter, escalate="ADMIN", audit=audit, messages=told))
    message = await kit.store.message("told")
    assert (message.tenant, message.payload) == ("acme", f'"{SECRET}"')
    assert SECRET not in repr(await open_kit(None).store.message("told"))


async def test_an_error_type_called_sealed_is_an_ordinary_error(open_kit: Any) -> None:
    kit = open_kit(None)
    worker, run = await kit.held()
    text = '{"failure": {"error_type": "redrive.Sealed", "message": "upstream said so"}}'
    failed = entry(0, StepStatus.FAILED, failure=text, done=0)
    await kit.store.apply([writes(run, failed)], worker=worker)
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)], worker=worker)
    (again,) = (await kit.claim(worker)).runs
    assert [each.failure for each in again.journal] == [text]
