"""Shared fixtures: certificates, made anew for every session."""

from __future__ import annotations

import pytest
from http_trust import Trust, make_trust


@pytest.fixture(scope="session")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return make_trust(tmp_path_factory.mktemp("certificates"))
