"""Examples of the documentation: every Python and shell block does what its page says."""

import asyncio
from pathlib import Path

import pytest
import redis_server
from pages import PAGES, ROOT, blocks, check_output, examples, run

from redrive import Redrive

WITH_EXAMPLES = [page for page in PAGES if examples(page)]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run_and_print_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.name != "bullmq.md":
        run(page, tmp_path)
        return
    with redis_server.running() as url:
        monkeypatch.setenv("REDIS_URL", url)
        run(page, tmp_path)


@pytest.mark.slow  # other tests cover the same on PostgreSQL; the processes of this one take long
async def test_the_readme_works_on_postgresql_as_well(a_postgres_url: str, tmp_path: Path) -> None:
    # In a thread: the examples start their own event loops.
    await asyncio.to_thread(run, ROOT / "README.md", tmp_path, REDRIVE_URL=a_postgres_url)
    async with Redrive(a_postgres_url).client() as app:
        assert {run.workflow for run in (await app.runs.list()).items} == {"fulfil"}
    assert not (tmp_path / "shop/redrive.db").exists()


def test_there_are_examples_where_readers_begin() -> None:
    names = {page.name for page in WITH_EXAMPLES}
    assert {"README.md", "tutorial.md", "testing.md", "how-retries-decide.md", "guarantees.md"} <= names


@pytest.mark.parametrize(
    "text",
    [
        "```python\nassert 1 == 2\n```\n",
        "```python\none = 1\n```\n```python continued\nassert one == 2\n```\n",
        "```python\nprint(1)\n```\n```text output\n2\n```\n",
        "```python file=one.py\nprint(1)\n```\n```text output\n2\n```\n",
        "```python file=test_one.py\ndef test_one(): assert 1 == 2\n```\n",
        "```python file=test_one.py fails\ndef test_one(): assert 1 == 1\n```\n",
        "```python skip\n```\n",
        "```sh\nfalse\ntrue\n```\n",
        "```sh fails\ntrue\n```\n",
        "```sh\necho one\n```\n```text output\ntwo\n```\n",
        "```sh\none=1\n```\n```sh\ntest $one = 2\n```\n",
        "```sh\nmkdir in\ncd in\n```\n```sh\ncd in\n```\n",
        "```sh background\nfalse\n```\n",
        "```console\n$ true\n```\n",
    ],
)
def test_a_page_that_is_wrong_is_noticed(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError):
        run(page, tmp_path)


def test_dots_in_an_output_stand_for_any_text() -> None:
    check_output("run 0h2 ended\n", "run … ended")
    with pytest.raises(AssertionError, match="the page says"):
        check_output("run 0h2 failed\n", "run … ended")


def test_the_environment_of_a_shell_block_is_kept_for_the_next(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nmkdir in && cd in\nexport one=1\n```\n"
        "```python file=two.py\nprint(2)\n```\n"
        "```sh\necho $one $(python two.py)\n```\n```text output\n1 2\n```\n"
        "<!-- not run: it would fail -->\n```sh\nfalse\n```\n",
        encoding="utf-8",
    )
    run(page, tmp_path)


def test_a_background_block_runs_during_the_blocks_after_it(tmp_path: Path) -> None:
    server = "import time\ntry:\n    open('alive', 'w').close()\n    print('ready', flush=True)\n"
    server += "    time.sleep(60)\nexcept KeyboardInterrupt:\n    open('stopped', 'w').close()\n"
    (tmp_path / "server.py").write_text(server, encoding="utf-8")
    page = tmp_path / "page.md"
    beside = "```sh background\npython server.py   # until Ctrl-C\n```\n"
    page.write_text(f"{beside}```sh\ntest -e alive -a ! -e stopped\n```\n", encoding="utf-8")
    run(page, tmp_path)
    assert (tmp_path / "stopped").exists()


def test_blocks_that_are_not_run_are_listed_with_a_reason() -> None:
    """Only blocks that install packages, run these tests or need a server may be marked."""
    marks = {(page.name, block.not_run) for page in PAGES for block in blocks(page) if block.not_run is not None}
    assert marks == {
        ("README.md", "the first makes an environment and runs until Ctrl-C, the second runs these tests"),
        ("README.md", "the tests have an environment of their own"),
        ("quickstart.md", "it installs packages"),
        ("tutorial.md", "it installs packages"),
        ("deployment.md", "it needs a database server and names of your own"),
        ("deployment.md", "it needs a server, and a token of it"),
        ("deploys.md", "it needs a run that is pinned to a version"),
        ("deploys.md", "it needs pytest-asyncio in auto mode, see the page about testing"),
        ("remote-workers.md", "it needs a database on another host"),
        ("remote-workers.md", "it needs a worker"),
        ("remote-workers.md", "it needs that server"),
        ("runbook.md", "there is no installation here to examine"),  # language: quotes the page
        ("schedules.md", "it needs a worker beside it"),
    }
