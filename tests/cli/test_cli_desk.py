"""`redrive dlq`, `policies`, `workflows`, `doctor`, `migrate`, `init` and `completion`."""

import asyncio
import importlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from console import Terminal, piped
from toy_store import Toys

from redrive import Redrive
from redrive.cli import main
from redrive.policy import RetryPolicy
from redrive.store.workers import NewWorker

# -- dlq -----------------------------------------------------------------------------------------------


def test_open_letters_are_listed_newest_first(toys: Toys) -> None:
    lines = [line.split("\t") for line in piped("dlq", "list").output.splitlines()]
    assert [line[0] for line in lines] == [f"dl-{toys.wet}", f"dl-{toys.broken}"]
    assert lines[0][1:4] == ["make", "paint", "exhausted_retries"]
    assert piped("dlq", "list", "-q", "--code", "non_retryable").output == f"dl-{toys.broken}\n"
    assert piped("dlq", "list", "-q", "--status", "resolved").output == ""
    assert piped("dlq", "list", "--code", "time").exit_code == 2
    assert len(piped("dlq", "list", "-q", "--status", "all").output.split()) == 2


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [("--step", "paint", 2), ("--tenant", "acme", 1), ("--category", "network", 1), ("--text", "exhaust", 1),
     ("--owner", "kim", 0), ("--stage", "exec", 2), ("--workflow", "send", 0), ("--fingerprint", "none", 0)],
)  # fmt: skip
def test_each_letter_filter_selects_matching_letters(toys: Toys, option: str, value: str, found: int) -> None:
    assert len(json.loads(piped("dlq", "list", "--json", option, value).output)["items"]) == found


def test_a_letter_is_shown_with_all_details(toys: Toys) -> None:
    output = piped("dlq", "show", f"dl-{toys.wet}").output
    for words in (
        f"dead letter dl-{toys.wet}  make  OPEN", "retries are exhausted", "exhausted_retries, at stage exec",
        "attempt 3 of 3", '"toy": "wet"', "ConnectionError: the paint shop", f"redrive runs show {toys.wet}",
    ):  # fmt: skip
        assert words in output
    by_run = json.loads(piped("dlq", "show", toys.wet, "--json").output)
    assert by_run["id"] == f"dl-{toys.wet}"
    assert len(by_run["steps"][0]["attempts"]) == 3


def test_a_run_without_a_letter_has_no_letter_page(toys: Toys) -> None:
    assert piped("dlq", "show", toys.good).exit_code == 3


def test_letters_on_a_terminal_show_whole_ids(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("dlq", "list")
    assert shown.end() == 0
    lines = shown.text.splitlines()
    assert lines[1].startswith(f"dl-{toys.wet} ")
    assert max(map(len, lines)) <= 80
    empty = terminal("dlq", "list", "--code", "timeout")
    empty.end()
    assert "No dead letter matches." in empty.text
    assert piped("dlq", "ignore", *piped("dlq", "list", "-q").stdout.split()).exit_code == 0
    none = terminal("dlq", "list")
    none.end()
    assert "No open dead letters. All clear." in none.text


# -- policies ------------------------------------------------------------------------------------------


def test_a_policy_is_stored_shown_and_removed(toys: Toys) -> None:
    stored = piped("policies", "set", "--step", "paint", "max_retries=8", "base_delay=2s", "--by", "kim")
    assert stored.exit_code == 0, stored.stderr
    (policy,) = json.loads(piped("policies", "list", "--json").output)["items"]
    assert (policy["step"], policy["workflow"], policy["updated_by"]) == ("paint", None, "kim")
    assert (policy["policy"]["max_retries"], policy["policy"]["base_delay"]) == (8, 2.0)
    assert "max_retries=8\n" in piped("policies", "get", "--step", "paint").output
    assert "max_retries=8 base_delay=2.0" in piped("policies", "list").output
    assert piped("policies", "list", "-q").output == "*/*/paint\n"
    assert piped("policies", "delete", "--step", "paint", "--dry-run").exit_code == 0
    assert piped("policies", "delete", "--step", "paint").exit_code == 0
    assert piped("policies", "delete", "--step", "paint").exit_code == 3
    assert piped("policies", "get", "--step", "paint").exit_code == 3


def test_a_change_of_one_field_keeps_all_others(toys: Toys) -> None:
    first = {
        "max_retries": 9, "base_delay": 2.0, "factor": 1.5, "max_delay": 60.0, "jitter": 0.25, "cap": "mean",
        "max_elapsed": 90.0, "retry_on": ["shop.errors.Gone"], "never_retry_on": ["unknown"], "delays": [20.0],
    }  # fmt: skip
    edits = {
        "max_retries": -1, "base_delay": 3.0, "factor": 3.0, "max_delay": 61.0, "jitter": 0.0, "cap": "clip",
        "max_elapsed": None, "retry_on": [], "never_retry_on": ["Gone"], "delays": [1.0, 2.0],
    }  # fmt: skip

    def stored(fields: dict[str, Any]) -> dict[str, Any]:
        arguments = [f"{name}={json.dumps(value)}" for name, value in fields.items()]
        result = piped("policies", "set", "--default", "--json", *arguments)
        assert result.exit_code == 0, result.stderr
        shown: dict[str, Any] = json.loads(piped("policies", "get", "--default", "--json").output)["policy"]
        return shown

    assert edits.keys() == RetryPolicy().to_json().keys(), "each field is edited"
    for name, value in edits.items():
        assert stored(first) == first
        assert stored({name: value}) == {**first, name: value}
    listed = piped("policies", "set", "--default", "--json", "never_retry_on=unknown, validation", "delays=1s,2m")
    assert listed.exit_code == 0, listed.stderr
    kept = json.loads(piped("policies", "get", "--default", "--json").output)["policy"]
    assert (kept["never_retry_on"], kept["delays"]) == (["unknown", "validation"], [1.0, 120.0])
    assert piped("policies", "list", "-q").output == "*/*/*\n"
    assert "all tenants, as the default" in piped("policies", "delete", "--default").output


def test_with_the_code_at_hand_a_policy_may_only_name_classes_of_the_code(toys: Toys) -> None:
    for given in ("retry_on=Gonne", "never_retry_on=Zork*", "retry_on=no_such_package.Gone"):
        refused = piped("policies", "set", "--default", given, "--app", "toys:app")
        assert (refused.exit_code, "names no category" in refused.stderr) == (2, True), refused.stderr
        assert piped("policies", "set", "--default", given).exit_code == 0, "workers may have such a class"
    refused = piped("policies", "set", "--default", "retry_on=ConectionError")
    assert (refused.exit_code, "'builtins.ConnectionError'" in refused.stderr) == (2, True), refused.stderr


def test_a_policy_of_a_dry_run_is_not_stored(toys: Toys) -> None:
    assert piped("policies", "set", "--workflow", "make", 'delays=["1s", "5s"]', "--dry-run").exit_code == 0
    assert piped("policies", "list").output == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--step", "paint", "max_retrys=8"], 2, "did you mean 'max_retries'"),
        (["--step", "paint", "max_retries=many"], 2, "max_retries is 'many'"),
        (["--step", "paint", "base_delay=-1s"], 2, "base_delay"),
        (["--step", "paint", "max_retries"], 2, "write max_retries=5"),
        (["max_retries=8"], 2, "--workflow, --step, both of them, or --default"),
        (["--default", "--step", "paint", "max_retries=8"], 2, "both of them, or --default"),
    ],
)
def test_an_invalid_policy_is_refused(toys: Toys, arguments: list[str], code: int, words: str) -> None:
    result = piped("policies", "set", *arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr


# -- workflows -----------------------------------------------------------------------------------------


def test_workflows_are_paused_and_resumed(toys: Toys) -> None:
    assert piped("workflows", "list").output == "make\t0\t\t\nrest\t0\t\t\nsend\t0\t\t\n"
    assert piped("workflows", "pause", "make", "--dry-run").exit_code == 0
    assert piped("workflows", "list", "--json").output.count('"paused_by": null') == 3
    assert piped("workflows", "pause", "make", "--by", "kim").output.startswith("paused make")
    assert "make\t0\tkim\t" in piped("workflows", "list").output
    assert piped("workflows", "resume", "make").output == "resumed make\n"
    assert piped("workflows", "resume", "make").output == "make was not paused\n"


async def test_workers_are_drained_and_retired(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    app = Redrive(url)
    async with app.client():
        new = NewWorker(name="far", version="v1", workflows=("make",), lease=3_600_000_000, token="t")
        id = await app.runtime.store.enlist(new, app.catalogue())

        def workers(*arguments: str) -> Any:
            return asyncio.to_thread(piped, "workers", *arguments, "--url", url)

        async def state() -> str:
            return str(json.loads((await workers("list", "--all", "--json")).output)["items"][0]["state"])

        assert (await workers("list", "-q")).output == f"{id}\n"
        assert (await workers("drain", str(id), "--dry-run")).output == f"would drain {id} (far)\n"
        assert await state() == "RUNNING"
        assert (await workers("drain", str(id), "--by", "kim")).output == f"drains {id} (far)\n"
        assert await state() == "DRAINING"
        assert (await workers("drain", str(id))).output == f"was draining before: {id} (far)\n"
        assert (await workers("retire", str(id), "--reason", "it hangs")).output == f"retired {id} (far)\n"
        assert (await state(), (await workers("list", "-q")).output) == ("STOPPED", "")
        result = await workers("retire", str(id))
        assert (result.exit_code, "workers list" in result.stderr) == (3, True)


def test_an_unknown_workflow_is_not_found(toys: Toys) -> None:
    result = piped("workflows", "pause", "mak")
    assert result.exit_code == 3
    assert "did you mean 'make'?" in result.stderr


# -- doctor --------------------------------------------------------------------------------------------


def test_the_doctor_reports_problems_with_advice(toys: Toys) -> None:
    result = piped("doctor")
    assert result.exit_code == 1
    assert "✓ schema:    up to date" in result.output
    assert "✗ workers:   none is alive, and runs wait for one\n    start one: redrive worker" in result.output
    assert "! letters:   2 wait for a person" in result.output
    assert "GiB free beside toys.db" in result.output
    findings = json.loads(piped("doctor", "--json").output)
    assert findings["ok"] is False
    assert {"check": "schema", "level": "ok", "text": "up to date", "advice": None} in findings["findings"]


def test_the_doctor_reports_runs_that_no_worker_can_claim(toys: Toys) -> None:
    assert piped("runs", "start", "make", "--input", '{"toy": "a"}', "--app", "toys:app").exit_code == 0
    assert "1 due run of 'make': no live worker has it registered" in piped("doctor").output


def test_the_doctor_finds_no_problem_in_an_empty_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    missing = piped("doctor", "--url", url)
    assert missing.exit_code == 1
    assert "does not exist" in missing.output
    assert not (tmp_path / "new.db").exists()
    assert piped("migrate", "--url", url).exit_code == 0
    assert piped("doctor", "--url", url).exit_code == 0
    assert piped("doctor", "--url", url, "-q").output == ""


# -- migrate -------------------------------------------------------------------------------------------


def test_migrate_plans_then_applies_then_has_nothing_to_do(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    plan = piped("migrate", "--plan", "--url", url, "-q").output.split()
    assert plan == ["0001_schema"]
    assert not (tmp_path / "new.db").exists()
    assert json.loads(piped("migrate", "--url", url, "--json").stdout)["migrations"] == plan
    assert piped("migrate", "--url", url).stdout == "the schema is up to date\n"
    assert piped("migrate", "--plan", "--url", url, "-q").output == ""


@pytest.mark.parametrize("command", [["migrate"], ["migrate", "--plan"], ["runs", "list"], ["doctor"]])
def test_a_store_of_another_build_is_refused_and_not_changed(tmp_path: Path, command: list[str]) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    assert piped("migrate", "--url", url).exit_code == 0
    with closing(sqlite3.connect(tmp_path / "old.db")) as con, con:
        con.execute("UPDATE redrive_schema SET checksum = 'of another text'")
    before = (tmp_path / "old.db").read_bytes()
    refused = piped(*command, "--url", url)
    assert refused.exit_code == 1
    assert "created by another build of Redrive" in refused.output
    assert "create a new store" in refused.output
    assert (tmp_path / "old.db").read_bytes() == before


# -- wrong stores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["runs", "list"], ["dlq", "list"], ["policies", "list"], ["workflows", "list"]])
def test_read_commands_do_not_create_a_store(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_URL", raising=False)
    result = piped(*command)
    assert result.exit_code == 3
    assert "no store exists at sqlite:///redrive.db: name it with --url, $REDRIVE_URL or --app" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_read_commands_do_not_turn_another_file_into_a_store(tmp_path: Path) -> None:
    books, empty = tmp_path / "books.db", tmp_path / "empty.db"
    empty.touch()
    with closing(sqlite3.connect(books)) as con:
        con.execute("CREATE TABLE ledger (amount INTEGER)")
    before = books.read_bytes()
    for file in (books, empty):
        result = piped("dlq", "list", "--url", f"sqlite:///{file}")
        assert (result.exit_code, "no store exists at" in result.stderr) == (3, True), result.output
    assert (books.read_bytes(), empty.read_bytes()) == (before, b"")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://db/shop", "store URL begins with 'mysql'"),
        ("sqlite://toys.db", "is not an SQLite store: write sqlite:///relative.db"),
        ("sqlite:///letter.txt", "letter.txt"),
        ("postgresql://kim@127.0.0.1:1/none", "127.0.0.1"),
    ],
)
def test_an_invalid_store_is_reported_without_a_traceback(toys: Toys, url: str, words: str) -> None:
    Path("letter.txt").write_text("Dear Kim, this is not a database. " * 200, encoding="utf-8")
    for command in (["migrate"], ["doctor"], ["runs", "list"], ["policies", "list"]):
        result = piped(*command, "--url", url)
        assert result.exit_code == 1
        assert words in result.output
        assert "is repeated" not in result.output  # A worker would repeat the attempt, a command does not.
        assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("redrive.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    result = piped("runs", "list", "--url", "postgresql://db/shop")
    assert result.exit_code == 1
    assert 'pip install "redrive[postgres]"' in result.stderr


# -- init ----------------------------------------------------------------------------------------------


def test_init_writes_a_project_whose_tests_pass(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert piped("init", str(folder), "--dry-run").exit_code == 0
    assert not folder.exists()
    result = piped("init", str(folder))
    assert result.exit_code == 0
    assert "redrive dev shop:app" in result.output
    assert sorted(path.name for path in folder.iterdir()) == [".gitignore", "README.md", "shop.py", "test_shop.py"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir=."]
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "schemathesis", "hypothesispytest")]
    done = subprocess.run([*pytest, *without], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert "4 passed" in done.stdout, done.stdout


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    result = piped("init", str(tmp_path))
    assert result.exit_code == 4
    assert "exists, so nothing was written" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_init_reports_a_folder_that_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = piped("init", str(tmp_path / "file" / "shop"))
    assert (result.exit_code, "wrote" in result.output) == (1, False)
    assert "cannot be written (Not a directory): name another folder" in result.stderr


# -- completion ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_calls_redrive(shell: str) -> None:
    output = piped("completion", shell).output
    assert f"_REDRIVE_COMPLETE={shell}_complete" in output


def test_the_shell_completes_commands() -> None:
    from click.shell_completion import BashComplete

    found = BashComplete(main, {}, "redrive", "_REDRIVE_COMPLETE").get_completions(["runs"], "wh")
    assert [one.value for one in found] == ["why"]


# -- tables --------------------------------------------------------------------------------------------


def test_a_table_omits_empty_columns_and_columns_without_room(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("output", "dlq.list_show"):
        monkeypatch.setattr(importlib.import_module(f"redrive.cli.{module}"), "on_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert piped("workflows", "list").output.splitlines()[:2] == ["WORKFLOW  WORKERS", "make      0"]
    for width in (60, 80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = piped("dlq", "list")
        lines = shown.stdout.splitlines()
        assert max(map(len, lines)) <= width
        assert lines[1].startswith(f"dl-{toys.wet} ")
        assert ("No room for CODE:" in shown.stderr) is (width == 60)
    assert lines[0].split() == ["ID", "WORKFLOW", "STEP", "FAILED", "CODE", "REASON"]
