"""The chore that sends due notifications, and reports circuits that opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from redrive.clock import MICROS, Clock
from redrive.core.audit import read_reason
from redrive.core.engine_messages import NotificationFacts, encode_facts, notification_lane
from redrive.core.keys_and_ids import encode_key, payload_hash
from redrive.core.notification_rules import NotificationEvent, NotifyRule, StoredRules, find_rule
from redrive.core.redact import Redactor
from redrive.notify.channels import make_delivery_reader
from redrive.notify.digest import CODE_PATIENCE, Digest, make_notify_sinks
from redrive.reasons import Reason, ReasonCode
from redrive.settings import circuit_page_path
from redrive.settle.settler import load_notify_rules
from redrive.sinks import SinkDefinition
from redrive.store.circuits import CircuitRow
from redrive.store.notifications import NewNotice
from redrive.store.port import Store

if TYPE_CHECKING:
    from redrive.app.app import Redrive

# On the first look, also report circuits that opened this long ago, while no worker was watching.
_CIRCUIT_LOOKBACK = 600 * MICROS
_VISIBILITY_MARGIN = 10 * MICROS  # a change may become visible this long after its timestamp


class NotificationChore:
    """Sends due notifications and those of opened circuits.

    The inbox needs no rule. The sinks that send to other targets start once the code or a stored rule has one. `begin`
    is called with the sinks that start.
    """

    def __init__(
        self,
        app: Redrive,
        store: Store,
        clock: Clock,
        redactor: Redactor,
        begin: Callable[[list[SinkDefinition]], Awaitable[None]],
        wake_relay: Callable[[], None],
    ) -> None:
        self._app = app
        self._store = store
        self._begin = begin
        self._begun = 0  # sinks that have started
        self._since: int | None = None
        every = app.settings.notify_every
        self._digest = Digest(store, app.channels, every, wake_relay, lambda: bool(app.registered_workflows))
        reader = make_delivery_reader(redactor, app.settings.base_url, app.channels)
        self.sinks = make_notify_sinks(self._digest, reader, app.texts, app.settings, app.channels.allowed, clock)

    async def run_once(self) -> int:
        """Start the sinks that are needed, then send what is due. Return the number sent."""
        rules = await load_notify_rules(self._store)
        new = self._choose_sinks(bool(rules))[self._begun :]
        if new:
            self._begun += len(new)
            await self._begin(new)
        await self._notify_open_circuits(rules)
        return await self._digest.run_once()

    async def needed_sinks(self) -> list[SinkDefinition]:
        """Return the sink of the inbox, and those for other targets if the code or a stored rule has any."""
        return self._choose_sinks(bool(await self._store.notifications.rules()))

    def _choose_sinks(self, has_rules: bool) -> list[SinkDefinition]:
        return self.sinks if has_rules or self._app.channels or self._code_rules() else self.sinks[:1]

    def _code_rules(self) -> dict[str, NotifyRule]:
        workflows = self._app.registered_workflows.items()
        return {name: each.own_options.notify for name, each in workflows if each.own_options.notify is not None}

    async def _notify_open_circuits(self, stored: StoredRules) -> None:
        """Add a notification for each circuit that opened since the last look.

        Circuits open without a request, so they are polled. The generation of an opening is part of the id of its
        notification: an opening that is seen twice, or by two workers, is reported once.
        """
        # Without workflow code the rules of the workflows are unknown here: a process that has them comes first.
        rules, now = self._code_rules(), self._store.now() - (0 if self._app.registered_workflows else CODE_PATIENCE)
        rows = await self._store.circuits_changed_since(now - _CIRCUIT_LOOKBACK if self._since is None else self._since)
        opened = [row for row in rows if row.is_open and row.changed_at <= now]
        merged = [(row, _merge_circuit_rules(row, stored, rules)) for row in opened]
        new = [_make_circuit_notice(row, rule) for row, rule in merged if rule is not None]
        if new:
            await self._store.notifications.add(new)
        self._since = now - _VISIBILITY_MARGIN


def _merge_circuit_rules(row: CircuitRow, stored: StoredRules, rules: dict[str, NotifyRule]) -> NotifyRule | None:
    """Return all targets for a circuit: those of its workflow if it belongs to one, else those of all workflows."""
    names = {*rules, *(workflow for _, workflow in stored)}
    own = {name for name in names if name and row.key.startswith(f"{name}/")}
    # The empty name finds the rule for workflows without one, which is the default if the store has none.
    found = [find_rule(stored, rules.get(name), row.tenant, name) for name in sorted(own or {*names, ""})]
    matching = [rule for rule in found if rule.wants(NotificationEvent.CIRCUIT_OPENED)]
    if not matching:
        return None
    targets = tuple(dict.fromkeys(target for rule in matching for target in rule.targets))
    return NotifyRule(on=(), targets=targets, app=any(rule.app for rule in matching))


def _make_circuit_notice(row: CircuitRow, rule: NotifyRule) -> NewNotice:
    facts = NotificationFacts(
        event=NotificationEvent.CIRCUIT_OPENED.value,
        tenant=row.tenant,
        subject=row.key,
        fingerprint=f"circuit {row.key}",
        why=None if row.why is None else read_reason(row.changed_by, row.why),
        next=Reason(ReasonCode.NEXT_PROBE),
        next_at=row.until,
        at=row.changed_at,
        path=circuit_page_path(row.key),
    )
    name = payload_hash(encode_key("circuit", row.tenant, row.key))[:16]
    return NewNotice(
        public_id=f"ntc-circuit-{name}-{row.generation}",
        tenant=row.tenant,
        lane=notification_lane(facts, rule.targets),
        notice=encode_facts(facts, rule),
    )
