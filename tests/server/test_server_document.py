"""The OpenAPI document matches the server: schemathesis generates requests and checks the answers."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import cluster
import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server_document import Operation, document, operations
from server_kit import World

from redrive import errors
from redrive.http_problems import ERROR_KINDS

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
# Streams do not end, and operations that remove a tenant would break the other tests.
# A long poll takes its time.
LEFT_OUT = {"GET /events", "GET /tenants/{name}/export", "DELETE /tenants/{name}", "POST /tenants/{name}/disable",
            "POST /worker/wait"}  # fmt: skip
# schemathesis converts `prefixItems` in answers to a form that it refuses itself.
UNCHECKED = {"POST /worker/wakeups": response_schema_conformance}
REMOTE = "remote workers"
TRIED = [one for one in operations() if one.name not in LEFT_OUT]
EXAMPLES = int(os.environ.get("REDRIVE_EXAMPLES", "4"))


@functools.cache
def schema() -> Any:
    """Return the document as schemathesis reads it. Reading takes longer than the requests, so it is cached."""
    return schemathesis.openapi.from_dict(document())


@pytest.fixture
def worlds(rough_worlds: Callable[[str], World]) -> list[World]:
    return [rough_worlds("sqlite"), *map(rough_worlds, cluster.POSTGRES[:1])]


@functools.cache
def _register(address: str, token: str, name: str) -> str:
    """Register a remote worker for the tests of an operation; return its id."""
    catalogue = {"version": "v", "workflows": [], "steps": []}
    body = {"name": name, "protocols": [1], "catalogue": catalogue, "lease": 300_000_000}
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx2.post(f"{address}/api/v1/worker/register", json=body, headers=headers, timeout=30)
    return str(answer.raise_for_status().json()["worker"])


def make_headers(world: World, one: Operation) -> dict[str, str]:
    """Return the credential for an operation; for calls of remote workers, that of a registered worker."""
    if one.about["tags"] != [REMOTE]:
        return {"Authorization": f"Bearer {world.tokens['acme', 'OWNER']}"}
    token = world.tokens["acme", "WORKER"]
    return {"Authorization": f"Bearer {token}", "Redrive-Worker": _register(world.address, token, one.name)}


def tried(worlds: Sequence[World], one: Operation, examples: int) -> None:
    """Send each generated request to a server on each store. Generating takes longer than sending."""
    operation = schema()[one.path][one.method.upper()]
    checks = [check for check in CHECKS if check is not UNCHECKED.get(one.name)]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @_given(operation.as_strategy())
    def attempt(case: Any) -> None:
        for world in worlds:
            headers = make_headers(world, one)
            case.call_and_validate(base_url=world.address, headers=headers, checks=checks, timeout=30)

    attempt()


def _given(strategy: Any) -> Any:
    from hypothesis import given

    return given(case=strategy)


@pytest.mark.parametrize("one", TRIED, ids=lambda one: one.name)
def test_answers_match_the_document_without_server_errors(worlds: list[World], one: Operation) -> None:
    tried(worlds, one, EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("one", TRIED, ids=lambda one: one.name)
def test_many_more_answers_match_the_document(worlds: list[World], one: Operation) -> None:
    tried(worlds, one, 300)


def test_every_error_is_in_the_error_table() -> None:
    """Subclasses come before their base classes, which would match first otherwise."""
    tree = {getattr(errors, name) for name in errors.__all__} - {errors.RunDetached}
    assert set(ERROR_KINDS) == tree
    order = list(ERROR_KINDS)
    for number, kind in enumerate(order):
        assert not any(issubclass(later, kind) for later in order[number + 1 :]), kind


def test_every_operation_has_a_description_and_a_problem_response() -> None:
    for one in operations():
        assert one.about["description"], one.name
        assert "application/problem+json" in one.about["responses"]["default"]["content"]
        assert "422" not in one.about["responses"]
    assert "HTTPValidationError" not in json.dumps(document())


def test_every_post_takes_an_idempotency_key() -> None:
    for one in operations():
        named = [each["name"] for each in one.about["parameters"]]
        # Batches of remote workers have numbers instead.
        keyed = one.method == "post" and one.about["tags"] != ["remote workers"]
        assert ("Idempotency-Key" in named) == keyed, one.name


def test_names_of_operations_are_unique() -> None:
    ids = [one.about["operationId"] for one in operations()]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"\w+", id) for id in ids)
