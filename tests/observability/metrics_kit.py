"""Helpers that read metrics as Prometheus does."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from redrive.app.runtime import Runtime
from redrive.observability.metrics import make_registry, render_metrics

Key = tuple[str, frozenset[tuple[str, str]]]


class Metrics:
    """The values of a scrape."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.names = {family.name for family in families}
        self._values: dict[Key, float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float | None:
        """Return one value, or None if there is none with exactly these labels."""
        return self._values.get((name, frozenset(labels.items())))

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of one label of a metric."""
        return {dict(key[1])[label] for key in self._values if key[0] == name and label in dict(key[1])}

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all values that have at least these labels."""
        wanted = labels.items()
        return sum(v for (n, found), v in self._values.items() if n == name and wanted <= dict(found).items())


async def scraped(runtime: Runtime) -> Metrics:
    """Scrape the process now, with fresh figures of the store."""
    found = await runtime.store.stats()
    body, content_type = render_metrics(make_registry(runtime.counters, lambda: found), "")
    assert content_type.startswith("text/plain")
    return Metrics(body.decode())


def series(names: Iterable[str]) -> set[str]:
    """Return names as a scrape groups them, without the suffixes that a kind of metric adds."""
    return {name.removesuffix("_total") for name in names}
