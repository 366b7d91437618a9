"""Every Python block of the documentation does what the page says."""

from pathlib import Path

import pytest
from pages import PAGES, ROOT, check_output, examples, run

WITH_EXAMPLES = [page for page in PAGES if examples(page)]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)


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
