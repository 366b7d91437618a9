"""Ids: in order of time, and never the same in two processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from redrive.clock import SystemClock
from redrive.id_text import format_id

FORK = """
import os, random
from redrive.clock import SystemClock

clock = SystemClock()
clock.new_id()
pid = os.fork()
random.seed(1)
if pid:
    os.waitpid(pid, 0)  # one after the other, or their lines could mix
print(clock.new_id()[10:], flush=True)
os._exit(0)
"""


def test_an_id_has_26_characters_that_sort_by_time() -> None:
    ids = [format_id(time, entropy) for time in (0, 1, 31, 1 << 40) for entropy in (0, 1 << 79)]
    assert ids == sorted(ids)
    assert {len(each) for each in ids} == {26}
    assert format_id((1 << 48) - 1, (1 << 80) - 1) == "7" + "z" * 25


def test_ids_of_one_process_differ() -> None:
    clock = SystemClock()
    assert len({clock.new_id() for _ in range(10_000)}) == 10_000


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
@pytest.mark.heavy
def test_a_forked_process_makes_other_ids_even_if_the_program_seeds_its_randomness() -> None:
    said = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True).stdout
    first, second = said.split()
    assert first != second
