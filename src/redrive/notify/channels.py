"""Places to tell, registered in the code under a name, so that no URL and no secret is ever stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redrive.allowed import Allowed
from redrive.core.notify import CHANNEL, NotifyRule, Target
from redrive.errors import ConfigurationError, InputError, RegistrationError
from redrive.http.client import require_h11
from redrive.http.ssrf import check_url
from redrive.sinks.signature import read_secrets

__all__ = ["Channels", "check_target"]


class Channels:
    """The channels of an app. What a target names is found here when it is told."""

    def __init__(self, allowed: Sequence[Allowed]) -> None:
        self.allowed = tuple(allowed)
        self._known: dict[str, tuple[Target, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, name: Any, places: dict[str, Any]) -> None:
        """Register what a channel stands for; each name once, and at least one place."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
            raise RegistrationError(f"{name!r:.80} cannot name a channel; use up to 200 printable characters")
        if name in self._known:
            raise RegistrationError(f"two channels are called {name!r}; give one of them another name")
        rule = self._read(places, f"channel {name!r}")
        if not rule.targets:
            raise RegistrationError(f"channel {name!r} leads nowhere; give email, slack, teams or webhook")
        self._known[name] = rule.targets

    def rule(self, workflow: str, given: Any) -> NotifyRule:
        """The rule that a workflow was registered with. Its URLs stay here: runs carry a name for them."""
        rule = self._read(given, f"notify of workflow {workflow!r}")
        told = [target for target in rule.targets if target.kind in ("email", CHANNEL)]
        kept = tuple(target for target in rule.targets if target not in told)
        if kept:
            name = f"workflow {workflow}"
            self._known[name] = kept
            told.append(Target(kind=CHANNEL, to=name))
        return replace(rule, targets=tuple(told))

    def _read(self, given: Any, what: str) -> NotifyRule:
        try:
            rule = NotifyRule.read(given, what)
            for target in rule.targets:
                check_target(target, self.allowed, what)
        except (ConfigurationError, InputError) as error:
            raise RegistrationError(str(error)) from None
        return rule

    def all(self) -> list[Target]:
        """Every place that the code names, with its URL."""
        return [target for known in self._known.values() for target in known]

    def knows(self, name: str) -> bool:
        """True if a channel has this name."""
        return name in self._known

    def resolved(self, targets: Sequence[Target]) -> tuple[Target, ...]:
        """The targets, each channel replaced by what it stands for; URLs by the place where they are found.

        A channel that this code does not have stays one, for a delivery that says so.
        """
        found: list[Target] = []
        for target in targets:
            known = self._known.get(target.to) if target.kind == CHANNEL else None
            found += [target] if known is None else _places(target.to, known)
        return tuple(dict.fromkeys(found))

    def find(self, target: Target) -> Target:
        """The target with its URL and its secret, wherever they are kept."""
        if target.kind == "email" or target.stored_url:
            return target
        name, _, number = target.to.rpartition("#")
        known = self._known.get(name, ())
        if not number.isdigit() or int(number) >= len(known) or known[int(number)].kind != target.kind:
            wanted = name or target.to
            raise ConfigurationError(
                f"no channel is called {wanted!r} in the code of this worker; register it with "
                f"app.channel({wanted!r}, ...), or change the rule that names it"
            )
        return known[int(number)]


def _places(name: str, known: Sequence[Target]) -> list[Target]:
    return [
        target if target.kind == "email" else Target(kind=target.kind, to=f"{name}#{number}")
        for number, target in enumerate(known)
    ]


def check_target(target: Target, allowed: Sequence[Allowed], what: str) -> None:
    """Refuse a URL that may not be called, and a secret that signs nothing."""
    if target.kind in ("slack", "teams", "webhook"):
        require_h11()
        check_url(target.to, allowed)
    if target.secret is not None:
        read_secrets(target.secret, f"a webhook of {what}")
