"""The order to replay a run: the options of the caller, parsed and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from redrive.core.replay import ReplayMode, ReplayRequest, resolve_step_key
from redrive.desk.actor import Acting, Actor
from redrive.desk.large_values import in_thread_if_large, measure_size
from redrive.desk.payload_checker import encode_json
from redrive.desk.validation import require_bool, require_text
from redrive.errors import InputError
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode, quote

_OBJECT_OPTIONS = frozenset({"input", "patch", "skip_steps"})
_JSON_OPTIONS = _OBJECT_OPTIONS | {"output"}
_KNOWN_OPTIONS = _JSON_OPTIONS | {"from_step", "retry", "new_operation", "undo"}


class ReplayOptions(Acting, total=False):
    """Keywords of a replay beside its letter and its mode."""

    from_step: int | None
    input: Mapping[str, Any] | None
    patch: Mapping[str, Any] | None
    output: Any
    retry: RetryPolicy | None
    new_operation: bool
    idempotency_key: str | None
    tenant: str | None


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its actor. A repeat with the same `key` is the same decision, whatever happened since.

    `of_run`: the request names the run, so a closed letter does not matter.
    """

    request: ReplayRequest
    actor: Actor
    key: str | None = None
    of_run: bool = False

    def __post_init__(self) -> None:
        if self.key is not None:
            require_text("idempotency_key", self.key)


async def make_replay_order(
    mode: str, *, idempotency_key: str | None = None, of_run: bool = False, **options: Any
) -> ReplayOrder:
    """Parse the options of a replay, with its actor and its key."""
    actor = Actor(options.pop("by", "unknown"), options.pop("reason", None))
    request = await make_replay_request(mode, **options)
    return ReplayOrder(request=request, actor=actor, key=idempotency_key, of_run=of_run)


async def make_replay_request(mode: str, **options: Any) -> ReplayRequest:
    """Parse a request; a thread parses a large one."""

    def parse() -> ReplayRequest:
        if unknown := ", ".join(sorted(options.keys() - _KNOWN_OPTIONS)):
            known = tuple(sorted(_KNOWN_OPTIONS))
            raise InputError(Reason(ReasonCode.REPLAY_OPTION_UNKNOWN, names=unknown, known=known))
        if not isinstance(mode, str) or mode.upper() not in ReplayMode.__members__:
            raise InputError(Reason(ReasonCode.REPLAY_MODE_UNKNOWN, given=quote(mode), known=tuple(ReplayMode)))
        given = {name: value for name, value in options.items() if value is not None}
        retry = given.pop("retry", None)
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise InputError(Reason(ReasonCode.RETRY_POLICY_NEEDED, given=type(retry).__name__))
        for name in given.keys() & _OBJECT_OPTIONS:
            value = given[name]
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise InputError(Reason(ReasonCode.OBJECT_NEEDED, field=name, given=quote(value)))
        for name in given.keys() & _JSON_OPTIONS:
            encode_json(given[name], name)
        counts = Counter(resolve_step_key(name) for name in given.get("skip_steps", ()))
        if repeated := [key for key, count in counts.items() if count > 1]:
            raise InputError(Reason(ReasonCode.SKIP_STEPS_TWICE, step=repeated[0]))
        if type(given.get("from_step", 0)) is not int:
            raise InputError(Reason(ReasonCode.FROM_STEP_INVALID, given=quote(given["from_step"])))
        require_bool("new_operation", given.get("new_operation", False))
        if "undo" in given:
            require_text("the name of a compensation", given["undo"])
        retry_json = None if retry is None else retry.to_json()
        request = ReplayRequest(mode=ReplayMode(mode.upper()), retry=retry_json, **given)
        _ = request.digest  # computed in the same thread, and cached
        return request

    return await in_thread_if_large(parse, measure_size(options))
