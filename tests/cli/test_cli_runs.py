"""`redrive runs` in a pipe, and on a terminal."""

import asyncio
import getpass
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from console import Terminal, piped
from toy_store import Toys

from redrive import Redrive, RunFilter
from redrive.desk.models import Run
from redrive.store.runs import RunRow


def look(toys: Toys, run_id: str) -> Run:
    async def get() -> Run:
        async with Redrive(toys.url).client() as app:
            return await app.runs.get(run_id)

    return asyncio.run(get())


def count(toys: Toys) -> int:
    async def get() -> int:
        async with Redrive(toys.url).client() as app:
            return len((await app.runs.list(RunFilter())).items)

    return asyncio.run(get())


# -- list ----------------------------------------------------------------------------------------------


def test_a_piped_list_is_tab_separated_without_heading(toys: Toys) -> None:
    lines = [line.split("\t") for line in piped("runs", "list").output.splitlines()]
    assert [line[0] for line in lines] == [
        toys.later, toys.waiting, toys.sleeping, toys.wet, toys.broken, toys.good
    ]  # fmt: skip
    assert lines[-1][1:3] == ["make", "SUCCESS"]
    assert lines[-1][3].endswith("Z")
    assert lines[-1][4:] == ["order-7", "default"]


def test_quiet_prints_ids_and_filters_select_runs(toys: Toys) -> None:
    assert piped("runs", "list", "-q", "--status", "success").output == f"{toys.good}\n"
    assert piped("runs", "list", "-q", "--tenant", "acme").output == f"{toys.broken}\n"
    assert piped("runs", "list", "-q", "--correlation-id", "order-7").output == f"{toys.good}\n"
    assert piped("runs", "list", "-q", "--workflow", "send", "--since", "1d").output == f"{toys.waiting}\n"
    assert piped("runs", "list", "-q", "--until", "1d").output == ""
    two = piped("runs", "list", "-q", "--status", "SUCCESS", "--status", "SLEEPING").output.split()
    assert set(two) == {toys.good, toys.sleeping, toys.waiting}


def test_json_lists_have_items_and_cursors(toys: Toys) -> None:
    page = json.loads(piped("runs", "list", "--json", "--limit", "4").output)
    assert set(page) == {"items", "next", "prev"}
    rest = json.loads(piped("runs", "list", "--json", "--cursor", page["next"]).output)
    assert [run["id"] for run in rest["items"]] == [toys.broken, toys.good]
    assert rest["next"] is None
    assert rest["items"][1]["status"] == "SUCCESS"


def test_a_wrong_time_is_a_usage_error(toys: Toys) -> None:
    result = piped("runs", "list", "--since", "yesterday")
    assert result.exit_code == 2
    assert "give 2h (ago), 2026-03-01" in result.stderr


def test_a_list_on_a_terminal_fits_and_has_a_heading(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("runs", "list")
    assert shown.end() == 0
    heading, *lines = shown.text.splitlines()
    assert heading.split()[:5] == ["ID", "WORKFLOW", "STATUS", "CREATED", "CORRELATION"]
    assert lines[-1].startswith(toys.good)
    assert " ago " in lines[-1] or " now " in lines[-1]
    assert max(map(len, [heading, *lines])) <= 80
    assert "\x1b[32mSUCCESS" in shown.raw


def test_no_color_disables_colours(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    for command in (["runs", "list"], ["runs", "show", toys.broken], ["doctor"]):
        shown = terminal(*command, NO_COLOR="1")
        shown.end()
        assert "\x1b[3" not in shown.raw


# -- show ----------------------------------------------------------------------------------------------


def test_show_draws_attempts_with_their_decisions(toys: Toys) -> None:
    output = piped("runs", "show", toys.wet).output
    assert f"run {toys.wet}  make  DLQ_PENDING" in output
    assert "✗ paint" in output
    assert "█" in output
    assert "attempt 1 of 3, network error, waiting" in output
    assert "attempt 3 of 3, network error, not retried" in output
    assert "ConnectionError: the paint shop does not answer" in output
    assert '"toy": "wet"' in output
    assert f"redrive runs why {toys.wet}" in output


def test_show_draws_waiting_as_dashes(toys: Toys) -> None:
    output = piped("runs", "show", toys.sleeping).output
    assert "╌" in output
    assert "waits until" in output
    assert f"redrive runs watch {toys.sleeping}" in output


def test_stored_text_cannot_control_the_terminal(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("runs", "show", toys.broken, NO_COLOR="1")
    assert shown.end() == 0
    assert "it has a \\u001b[31mcrack" in shown.raw


def test_show_as_json_is_the_whole_run(toys: Toys) -> None:
    run = json.loads(piped("runs", "show", toys.wet, "--json").output)
    assert run["input"] == {"toy": "wet", "count": 1}
    assert [attempt["attempt"] for attempt in run["steps"][0]["attempts"]] == [1, 2, 3]
    assert run["letter_id"] == f"dl-{toys.wet}"


def test_a_unique_id_prefix_is_accepted(toys: Toys) -> None:
    unique = next(n for n in range(1, 27) if sum(i.startswith(toys.wet[:n]) for i in all_ids(toys)) == 1)
    assert piped("runs", "show", "-q", toys.wet[:unique]).output == f"{toys.wet}\n"
    assert piped("runs", "show", "-q", f"dl-{toys.wet[:unique]}".upper().replace("DL-", "dl-")).exit_code == 0
    ambiguous = piped("runs", "show", toys.wet[:5])
    assert ambiguous.exit_code == 5
    assert "is the beginning of 6 runs: give more of the id" in ambiguous.stderr


def all_ids(toys: Toys) -> list[str]:
    return [toys.good, toys.broken, toys.wet, toys.sleeping, toys.waiting, toys.later]


@pytest.mark.parametrize("id", ["zzzz", "0" * 26, "what?", "01"])
def test_an_unknown_id_is_not_found(toys: Toys, id: str) -> None:
    for command in (["runs", "show"], ["runs", "why"], ["runs", "watch"], ["runs", "cancel"], ["dlq", "show"]):
        result = piped(*command, id)
        assert result.exit_code == (5 if id == "01" and command[0] == "runs" else result.exit_code)
        assert result.exit_code in (3, 5)
        assert result.stderr.startswith("Error: ")


# -- why -----------------------------------------------------------------------------------------------


def test_why_explains_each_state(toys: Toys) -> None:
    def why(id: str) -> str:
        return piped("runs", "why", id).output

    assert "The run succeeded at" in why(toys.good)
    assert "step 'paint' failed once" in why(toys.broken)
    assert "The last error of step 'paint' was ConnectionError: the paint shop" in why(toys.wet)
    assert f"redrive dlq show dl-{toys.broken}" in why(toys.broken)
    assert "The run sleeps until" in why(toys.sleeping)
    assert "No worker is running. Start one: redrive worker module:app" in why(toys.sleeping)
    assert "The run retries step 'post' at" in why(toys.waiting)
    assert "attempt 1 of 4, " in why(toys.waiting)
    assert "The run was started with a delay and begins at" in why(toys.later)
    assert piped("runs", "why", toys.good, "--quiet").output == "SUCCESS\n"


def test_why_names_the_user_who_paused_the_workflow(toys: Toys) -> None:
    assert piped("workflows", "pause", "make", "--by", "kim").exit_code == 0
    output = piped("runs", "why", toys.later).output
    assert "was paused by kim" in output
    assert "redrive workflows resume make" in output


def test_why_prints_json(toys: Toys) -> None:
    said = json.loads(piped("runs", "why", toys.good, "--json").output)
    assert said["status"] == "SUCCESS"
    assert "Nothing is left to do." in said["why"][0]


# -- watch ---------------------------------------------------------------------------------------------


def test_watching_an_ended_run_shows_its_result(toys: Toys) -> None:
    good = piped("runs", "watch", toys.good)
    assert good.exit_code == 0
    assert good.output.splitlines() == ["paint: attempt 1, succeeded", f"run {toys.good} is SUCCESS"]
    bad = piped("runs", "watch", toys.wet, "--json")
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["status"] == "DLQ_PENDING"
    assert f"redrive runs why {toys.wet}" in bad.stderr


def test_ctrl_c_does_not_stop_the_watched_run(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    watching = terminal("runs", "watch", toys.sleeping)
    watching.wait_for("waits until")
    watching.process.send_signal(signal.SIGINT)
    assert watching.end() == 130
    assert f"The run continues. To watch it again:\nredrive runs watch {toys.sleeping}\n" in watching.text
    assert look(toys, toys.sleeping).status == "SLEEPING"


# -- start ---------------------------------------------------------------------------------------------


def test_start_prints_the_id_of_a_run_with_that_input(toys: Toys) -> None:
    result = piped(
        "runs", "start", "make", "--input", '{"toy": "boat"}', "--app", "toys:app", "--key", "k", "--tenant", "t"
    )
    assert result.exit_code == 0, result.stderr
    run = look(toys, result.output.strip())
    assert (run.workflow, run.status, run.tenant, run.input) == ("make", "PENDING", "t", {"toy": "boat", "count": 1})
    assert run.started_by == getpass.getuser()
    again = piped(
        "runs", "start", "make", "--input", '{"toy": "boat"}', "--app", "toys:app", "--key", "k", "--tenant", "t"
    )
    assert again.output == result.output
    clash = piped(
        "runs", "start", "make", "--input", '{"toy": "x"}', "--app", "toys:app", "--key", "k", "--tenant", "t"
    )
    assert clash.exit_code == 4


def test_start_reads_a_file_and_many_lines(toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_APP", "toys:app")
    Path("one.json").write_text('{"toy": "kite"}', encoding="utf-8")
    one = json.loads(piped("runs", "start", "make", "--input", "@one.json", "--json").output)
    assert look(toys, one["id"]).input["toy"] == "kite"
    lines = "".join(f'{{"toy": "t{n}"}}\n\n' for n in range(1100))
    ids = piped("runs", "start", "make", "--many", "-", "-q", stdin=lines).stdout.split()
    assert len(set(ids)) == 1100
    assert look(toys, ids[7]).input["toy"] == "t7"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["make", "--input", "{}"], 5, "toy: is missing\n  it takes toy, count"),
        (["make", "--input", '{"toi": "a"}'], 5, "toi: is not a parameter; did you mean 'toy'?\n  it"),
        (["make", "--input", '{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}'], 5, "e: is not a parameter\n  and 1 more"),
        (["make", "--input", '{"toy": 7, "count": "x"}'], 5, "toy: input should be a valid string"),
        (["make", "--toy", "duck"], 2, "belong in --input: '{\"toy\": ...}'"),
        (["make", "--inptu", "{}"], 2, "Did you mean"),
        (["make", "--input", '{"toy": "a", "colour": 3}'], 5, "colour"),
        (["make", "--input", "{toy}"], 2, "--input is not valid JSON"),
        (["make", "--input", '["a"]'], 2, "must be an object from parameter name to value"),
        (["make", "--input", "@nowhere.json"], 2, "No such file"),
        (["make", "--many", "-", "--input", "{}"], 2, "--many excludes"),
        (["mke", "--input", "{}"], 3, "did you mean 'make'?"),
        (["make", "--input", '{"toy": "a"}', "--delay", "soon"], 2, "'soon' is not a duration: give 90 (seconds)"),
    ],
)
def test_an_invalid_start_is_refused_with_the_reason(toys: Toys, arguments: list[str], code: int, words: str) -> None:
    result = piped("runs", "start", *arguments, "--app", "toys:app", stdin="")
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert count(toys) == 6


def test_start_without_the_code_validates_the_input_with_the_registered_schema(toys: Toys) -> None:
    options = ("--key", "k", "--retry", "max_retries=9", "--retry", "never_retry_on=unknown,validation")
    options += ("--step-timeout", "1m", "--timeout", "2h")
    started = piped("runs", "start", "make", "--input", '{"toy": "boat"}', *options)
    assert started.exit_code == 0, started.stderr
    assert piped("runs", "start", "make", "--input", '{"toy": "boat"}', *options).stdout == started.stdout
    run = json.loads(piped("runs", "show", started.stdout.strip(), "--json").output)
    assert (run["workflow"], run["input"], run["status"]) == ("make", {"toy": "boat"}, "PENDING")

    async def read() -> RunRow | None:
        async with Redrive(toys.url).client() as app:
            return await app.runtime.store.run(run["id"])

    row = asyncio.run(read())
    assert row is not None
    stored = json.loads(row.options or "{}")
    assert (stored["override"]["max_retries"], stored["limits"]["timeout"], row.timeout) == (9, 60.0, 7_200_000_000)
    assert stored["override"]["never_retry_on"] == ["unknown", "validation"]
    assert count(toys) == 7


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["make", "--input", '{"toy": 5}'], 5, "toy"),
        (["make", "--input", '{"tyo": "a"}', "--dry-run"], 5, "tyo"),
        (["mke", "--input", "{}"], 3, "--app module:app; did you mean 'make'?"),
        (["make", "--many", "-"], 5, "toy"),
        (["make", "--input", '{"toy": "a"}', "--retry", "max_retrys=9"], 2, "did you mean 'max_retries'"),
        (["make", "--input", '{"toy": "a"}', "--on-failure", "rest"], 5, "'rest' cannot handle failures"),
        (["make", "--input", '{"toy": "a"}', "--step-timeout", "0"], 5, "step_timeout must be longer than 0"),
    ],
)
def test_an_invalid_start_is_refused_without_the_code(toys: Toys, arguments: list[str], code: int, words: str) -> None:
    result = piped("runs", "start", *arguments, stdin='{"toy": "a"}\n{"toy": 7}\n')
    assert (result.exit_code, words in result.stderr) == (code, True), (result.exit_code, result.stderr)
    assert count(toys) == 6, "no run was started"


def test_a_dry_run_of_start_starts_nothing(toys: Toys) -> None:
    result = piped("runs", "start", "make", "--input", '{"toy": "a"}', "--app", "toys:app", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "would start 1 run of 'make'" in result.stderr
    assert count(toys) == 6


# -- cancel --------------------------------------------------------------------------------------------


def test_cancel_takes_ids_from_standard_input_and_continues_after_an_error(toys: Toys) -> None:
    lines = f"{toys.good}\n{toys.sleeping}\tand more\n\n{toys.later}\n"
    result = piped("runs", "cancel", "-", "--by", "kim", "--reason", "enough", stdin=lines)
    assert result.exit_code == 4
    assert "has ended as SUCCESS and can no longer be cancelled" in result.stderr
    assert result.stdout == f"cancelled {toys.sleeping}\ncancelled {toys.later}\n"
    run = look(toys, toys.sleeping)
    assert run.status == "CANCELLED"
    assert run.error == "cancelled by kim: enough"


def test_a_dry_run_of_cancel_cancels_nothing(toys: Toys) -> None:
    result = piped("runs", "cancel", toys.sleeping, toys.good, "--dry-run")
    assert result.exit_code == 0
    assert f"would cancel {toys.sleeping}, which is SLEEPING" in result.output
    assert f"cannot cancel an ended run: {toys.good}, which is SUCCESS" in result.output
    assert look(toys, toys.sleeping).status == "SLEEPING"


@pytest.mark.parametrize(("answer", "code", "status"), [("n\n", 5, "SLEEPING"), ("y\n", 0, "CANCELLED")])
def test_the_user_is_asked_before_a_run_is_cancelled(
    toys: Toys, terminal: Callable[..., Terminal], answer: str, code: int, status: str
) -> None:
    asked = terminal("runs", "cancel", toys.sleeping)
    asked.wait_for(f"Cancel run {toys.sleeping} (rest, SLEEPING), for good? [y/N]")
    asked.type(answer)
    assert asked.end() == code
    assert look(toys, toys.sleeping).status == status


def test_the_yes_option_skips_the_question(toys: Toys, terminal: Callable[..., Terminal]) -> None:
    sure = terminal("runs", "cancel", toys.sleeping, "--yes")
    assert sure.end() == 0
    assert sure.text == f"cancelled {toys.sleeping}\n"
