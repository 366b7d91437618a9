"""Invented releases after the present one, and data that must survive the upgrade to them.

`redrive.` stands for the schema on PostgreSQL and for nothing on SQLite.
"""

from __future__ import annotations

from letter_kit import answers, audited, case_of, failed, reopens
from store_kit import DAY, HOUR, Kit

from redrive.core.states import LetterStatus, RunStatus
from redrive.store.chores import PurgeRequest
from redrive.store.filters import LetterFilter
from redrive.store.sql_files import Migration, load_migrations

TENANT_RULES = """
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.paints TO redrive_engine;
GRANT SELECT ON redrive.paints TO redrive_app;
ALTER TABLE redrive.paints ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.paints FORCE ROW LEVEL SECURITY;
CREATE POLICY engine ON redrive.paints TO redrive_engine USING (true) WITH CHECK (true);
CREATE POLICY tenant ON redrive.paints TO redrive_app
    USING (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')));
"""

# An expanding release: a column with a default, an index on it, a new table filled from an old one.
EXPAND = """
ALTER TABLE redrive.runs ADD COLUMN colour text NOT NULL DEFAULT 'grey';
CREATE INDEX runs_by_colour ON redrive.runs (colour, id);
CREATE TABLE redrive.paints (letter text PRIMARY KEY, tenant text NOT NULL);
INSERT INTO redrive.paints (letter, tenant) SELECT public_id, tenant FROM redrive.letters;
"""

# The release after it: the previous index is replaced by one of the same name.
REPLACE = """
DROP INDEX redrive.runs_by_colour;
CREATE INDEX runs_by_colour ON redrive.runs (colour, workflow, id);
"""


def releases(kind: str) -> list[Migration]:
    """Return the migrations that the next two releases of a store add to the present ones."""
    newest = load_migrations(f"redrive.store.{kind}")[-1].version
    texts = [EXPAND + TENANT_RULES, REPLACE] if kind == "postgres" else [EXPAND, REPLACE]
    if kind == "sqlite":
        texts = [text.replace("redrive.", "") for text in texts]
    return [
        Migration(version=newest + number, name=f"release_{number}", text=text, oldest_code=newest)
        for number, text in enumerate(texts, 1)
    ]


async def work(kit: Kit) -> None:
    """Create a run with a dead letter and one that is due. The worker has stopped."""
    worker, _ = await failed(kit, public_id="old", timeout=HOUR)
    await kit.store.retire(worker)
    await kit.start(public_id="due")


async def check_existing_data(kit: Kit) -> None:
    """Check that the data from before the upgrade exists and can be used like new data."""
    case = await case_of(kit, "dl-old")
    assert case.letter is not None
    assert (case.run.public_id, case.run.letter, case.replays) == ("old", None, ())
    letter = await kit.store.letter("dl-old")
    assert letter is not None
    assert (letter.status, case.letter.status) == (LetterStatus.OPEN, LetterStatus.OPEN)
    assert [(row.index, row.superseded) for row in case.journal] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert len((await kit.store.letters(LetterFilter(status="OPEN"), limit=5, cursor=None)).items) == 1
    assert (await kit.store.apply([reopens(case.run, supersedes=(1,))]))[0].kept
    worker = await kit.worker()
    claimed = {run.public_id: run for run in (await kit.claim(worker)).runs}
    assert claimed.keys() == {"old", "due"}
    assert claimed["old"].deadline == kit.clock.now() + HOUR
    await kit.store.apply([answers(claimed["old"])], worker=worker)
    case = await case_of(kit, "old")
    assert case.letter is not None
    assert (case.run.status, case.letter.status) == (RunStatus.SUCCESS, LetterStatus.RESOLVED)
    assert [(each.number, each.outcome) for each in case.replays] == [(1, "SUCCESS")]
    assert [line.event for line in await audited(kit)] == ["dlq.retry", "dlq.replay_succeeded"]
    kit.clock.move(900 * DAY)
    await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=DAY, limit=100))
    assert await kit.store.cases(["dl-old"]) == []
    assert await audited(kit) == []
