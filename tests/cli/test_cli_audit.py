"""`redrive audit`: the audit log in English and Polish, as a list and as a file."""

import csv
import io
import json
from collections.abc import Callable

import pytest
from console import Terminal, piped
from dlq_kit import Shop


def lines(*options: str) -> list[list[str]]:
    result = piped("audit", "list", *options)
    assert result.exit_code == 0, result.stderr
    return [line.split("\t") for line in result.stdout.splitlines()]


def test_the_audit_log_is_listed_newest_first(shop: Shop) -> None:
    assert piped("dlq", "assign", shop.down, "--to", "lee", "--by", "kim").exit_code == 0
    assert piped("dlq", "resolve", shop.down, "--by", "kim", "--reason", "refunded").exit_code == 0
    newest, before, *rest = lines()
    assert newest[1:4] == ["kim", f"dl-{shop.down}", "A failure was resolved"]
    assert newest[4].endswith("because: refunded")
    assert before[1:] == ["kim", f"dl-{shop.down}", "A failure was assigned", "lee"]
    assert {line[1] for line in rest} == {"redrive"}
    assert lines("--lang", "pl")[0][3] == "Oznaczono sprawę jako rozwiązaną"


def test_each_audit_filter_selects_matching_lines(shop: Shop) -> None:
    assert piped("dlq", "tag", shop.down, "vat", "--by", "kim").exit_code == 0
    assert [line[1] for line in lines("--by", "kim")] == ["kim"]
    assert {line[2] for line in lines("--letter", shop.down)} == {f"dl-{shop.down}"}
    assert len(lines("--letter", shop.down[:20], "--event", "dlq.")) == 2
    assert [line[3] for line in lines("--event", "dlq.created")] == ["A failure was recorded"] * 2
    assert {line[2].removeprefix("dl-") for line in lines("--run", shop.wrong[:20])} == {shop.wrong}
    assert lines("--since", "2099-01-01") == []
    assert len(lines("--until", "2099-01-01")) == len(lines())
    assert lines("--tenant", "acme") == []


def test_a_terminal_shows_whole_ids(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    assert piped("dlq", "comment", shop.down, "asked the bank", "--by", "kim").exit_code == 0
    table = terminal("audit", "list", "--by", "kim")
    assert table.end() == 0
    heading, line, what = table.text.splitlines()
    assert (heading.split(), line.split()[-2:]) == (["WHEN", "BY", "ABOUT"], ["kim", f"dl-{shop.down}"])
    assert what == "    A failure was commented on: asked the bank"


def test_the_list_has_pages(shop: Shop) -> None:
    everything = piped("audit", "list", "-q").stdout.split()
    page = json.loads(piped("audit", "list", "--limit", "2", "--json").stdout)
    rest = piped("audit", "list", "-q", "--cursor", page["next"]).stdout.split()
    assert [str(item["id"]) for item in page["items"]] + rest == everything


def test_the_csv_export_contains_no_formula(shop: Shop) -> None:
    assert piped("dlq", "comment", shop.down, "=1+1", "--by", "kim").exit_code == 0
    assert piped("dlq", "comment", shop.down, 'a "quoted"\nline', "--by", "kim").exit_code == 0
    result = piped("audit", "export", "--by", "kim", "--lang", "pl")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["after"] for row in rows] == ['a "quoted"\nline', "'=1+1"]
    assert rows[0]["label"] == "Dodano komentarz do sprawy"
    assert rows[0]["letter"] == f"dl-{shop.down}"


def test_the_export_as_json_has_an_object_on_each_line(shop: Shop) -> None:
    result = piped("audit", "export", "--format", "json", "--event", "dlq.")
    exported = [json.loads(line) for line in result.stdout.splitlines()]
    listed = json.loads(piped("audit", "list", "--event", "dlq.", "--json").stdout)["items"]
    assert exported == listed
    assert len(exported) == 2


@pytest.mark.parametrize(("options", "code"), [(["--run", "zz"], 3), (["--letter", "zz"], 3), (["--lang", "de"], 2)])
def test_wrong_filters_are_refused(shop: Shop, options: list[str], code: int) -> None:
    assert piped("audit", "list", *options).exit_code == code
    assert piped("audit", "export", *options).exit_code == code
