"""Fixtures for tests that end real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Yield worker processes on a new file, and stop those that are left after the test."""
    fleet = Fleet(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()
        for member in fleet.members:
            sys.stdout.write(f"----- {member.who}\n{member.log[-3000:]}\n")  # shown if the test fails
