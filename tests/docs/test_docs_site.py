"""The site: it can be built, it contains every page, and every link works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, read


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "guides/payments.html").exists()
    generated = (tmp_path / "reference/docstrings.html").read_text(encoding="utf-8")
    assert "Register a function as a step" in generated


def test_every_page_has_a_place_in_the_site() -> None:
    listed = set(re.findall(r"^ +- ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    docs = ROOT / "docs"
    own = {page.relative_to(docs).as_posix() for page in PAGES if page.is_relative_to(docs)}
    assert own - listed == {name for name in own if re.match(r"adr/\d", name)}
    assert listed <= own


def test_every_word_of_the_vocabulary_is_in_the_glossary_in_order() -> None:
    words = re.findall(r"^\| \*\*([\w ]+)\*\* \|", read(ROOT / "docs/concepts/glossary.md"), re.MULTILINE)
    assert words == sorted(words)
    assert {"workflow", "step", "run", "attempt", "journal", "fence", "failure", "dead letter", "replay"} <= set(words)
