"""Plans for groups, bulk actions and searchable fields: every statement uses an index, analysed or not."""

from __future__ import annotations

import pytest
from postgres_kit import Bench
from test_postgres_plans import bench as bench
from test_postgres_plans import plan, scans, statements

from redrive.store.sql_files import Statements, number_parameters

BULK = Statements("bulk.sql").texts("postgres")
GROUPS = Statements("groups.sql").texts("postgres")
STATEMENTS = {
    name: statement
    for file in ("groups", "bulk", "starts")
    for name, statement in statements(file).items()
    if "." not in name and "{" not in statement.text
}
pytestmark = pytest.mark.asyncio(loop_scope="module")
# One end of an index, in order up to the limit; or the few bulk actions that are not done.
FRONT = {
    "take_feed_rows", "oldest_feed_time", "has_feed_rows", "renew_bulk", "finish_bulk", "stop_bulk", "pause_bulk",
    "rate_bulk",
    "highest_letter", "is_muted", "mute_group",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_no_statement_scans_a_whole_table(bench: Bench, name: str) -> None:
    async with bench.line() as line:
        lines = await plan(line, STATEMENTS[name])
    assert not [each for each in lines if "Seq Scan" in each], lines
    aimless = [each for each in scans(lines) if each.endswith(": ")]
    assert aimless in ([], ["pauses_pkey: "]) or name in FRONT, lines  # few workflows, if any


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("take_feed_rows", "letter_feed_pkey: "),
        ("replace_sample", "letters_by_fingerprint: fingerprint = g.fingerprint"),
        ("delete_old_counts", "group_counts_old: kept_until <= "),
        ("tenant_counts", "group_counts_of_tenants: seconds = "),
        ("delete_old_versions", "group_versions_old: last_seen < "),
        ("note_resolution", "groups_by_fingerprint: fingerprint = "),
        ("claim_bulk", "bulk_actions_running: lease_until <= "),
        ("record_results", "bulk_items_pkey: bulk = n.bulk AND number = n.number"),
        ("pending", "bulk_items_by_status: bulk = $1 AND status = "),
        ("delete_old_bulk", "bulk_actions_ended: ended_at"),
        ("put_index", "runs_public_id_key: public_id = "),
        ("drop_index", "run_index_of_run: run = ANY"),
    ],
)
async def test_each_statement_uses_its_index(bench: Bench, name: str, index: str) -> None:
    async with bench.line() as line:
        found = scans(await plan(line, STATEMENTS[name]))
    assert [each for each in found if each.startswith(index)], found


@pytest.mark.parametrize(
    ("names", "order", "index"),
    [
        (["open", "below"], "newest", "groups_open: latest < "),
        (["open", "tenant", "above"], "oldest", "groups_of_tenant_open: tenant = "),
        (["any", "below"], "newest", "groups_all: latest < "),
        (["any", "tenant"], "oldest", "groups_of_tenant: tenant = "),
        (["open"], "count", "groups_by_size: "),
        (["open", "unmuted", "tenant"], "count", "groups_of_tenant_by_size: tenant = "),
    ],
)
async def test_pages_of_groups_are_read_in_order(bench: Bench, names: list[str], index: str, order: str) -> None:
    wanted = " AND ".join(GROUPS[f"groups.{name}"] for name in names)
    text = GROUPS["groups"].format(conditions=wanted, order=GROUPS[f"order.{order}"])
    async with bench.line() as line:
        lines = await plan(line, number_parameters(text))
    assert [each for each in scans(lines) if each.startswith(index)], lines
    assert [each for each in scans(lines) if each.startswith("group_counts_pkey: tenant = g.tenant")], lines
    assert not [each for each in lines if "Sort" in each], lines


@pytest.mark.parametrize("status", ["all", "PENDING", "DONE", "FAILED"])
async def test_pages_of_a_bulk_action_are_read_in_order(bench: Bench, status: str) -> None:
    wanted = f"{BULK[f'items.{status}']} AND {BULK['items.below']}"
    async with bench.line() as line:
        lines = await plan(line, number_parameters(BULK["items"].format(conditions=wanted, order="DESC")))
    assert [each for each in scans(lines) if "bulk = " in each and "number < " in each], lines
    assert not [each for each in lines if "Sort" in each], lines
