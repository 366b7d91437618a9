"""The best of all rounds, and the table that shows it."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import Any

from bench.plan import METRICS, OURS, WORKLOADS, Measurement

__all__ = ["Figures", "print_facts", "print_tables"]


_Key = tuple[str, str, str, str]


class Figures:
    """Every figure of every round.

    The best counts: whatever else a machine does makes figures worse, never better.
    """

    def __init__(self) -> None:
        self._rounds: dict[_Key, list[float]] = {}

    def add(self, one: Measurement, figures: dict[str, float]) -> None:
        """Keep what one measurement brought."""
        for metric, value in figures.items():
            self._rounds.setdefault((one.workload, one.on, one.subject, metric), []).append(value)

    def best(self, one: Measurement, metric: str) -> float | None:
        """Return the best of all rounds; None if there was none."""
        values = self._rounds.get((one.workload, one.on, one.subject, metric))
        return None if values is None else _best(metric, values)

    def spread(self, one: Measurement, metric: str) -> tuple[float, float]:
        """Return the smallest and the largest figure of all rounds."""
        values = self._rounds[one.workload, one.on, one.subject, metric]
        return min(values), max(values)

    def to_json(self, machine: dict[str, str]) -> dict[str, Any]:
        """Return all figures, for a file."""
        return {
            "machine": machine,
            "figures": [
                {
                    "workload": workload,
                    "on": on,
                    "subject": subject,
                    "metric": metric,
                    "unit": METRICS[metric].unit,
                    "best": _best(metric, rounds),
                    "median": statistics.median(rounds),
                    "rounds": rounds,
                }
                for (workload, on, subject, metric), rounds in self._rounds.items()
            ],
        }


def _best(metric: str, values: Collection[float]) -> float:
    return max(values) if METRICS[metric].more_is_better else min(values)


def print_facts(machine: dict[str, str]) -> None:
    """Say what it was measured on."""
    for name, value in machine.items():
        print(f"{name:10} {value}", flush=True)


def print_tables(measurements: list[Measurement], figures: Figures) -> None:
    """Print a block for each workload and store, with a line for each figure."""
    for workload, on in dict.fromkeys((one.workload, one.on) for one in measurements):
        subjects = [one for one in measurements if (one.workload, one.on) == (workload, on)]
        print(f"\n{workload} on {on}: {WORKLOADS[workload]}")
        for metric in METRICS:
            _print_metric(metric, subjects, figures)
    for on in dict.fromkeys(one.on for one in measurements):
        _print_share(on, measurements, figures)
        _print_gain(on, measurements, figures)


def _print_metric(metric: str, subjects: list[Measurement], figures: Figures) -> None:
    about = METRICS[metric]
    measured = [(one, value) for one in subjects if (value := figures.best(one, metric)) is not None]
    ours = [value for one, value in measured if one.system == OURS]
    for one, value in measured:
        low, high = figures.spread(one, metric)
        between = f"({_number(low)} to {_number(high)})"
        ratio = "" if one.system == OURS or not ours else _ratio(metric, _best(metric, ours), value)
        figure = f"{_number(value):>10} {about.unit:7}{between:22}{ratio}"
        print(f"  {about.title:42}{one.subject:24}{figure}".rstrip())


def _ratio(metric: str, ours: float, theirs: float) -> str:
    """Return how many times better Redrive's best variant is than a peer."""
    better = ours / theirs if METRICS[metric].more_is_better else theirs / ours
    return f"redrive {better:6.2f} x"


def _print_share(on: str, measurements: list[Measurement], figures: Figures) -> None:
    """Return the share of the store's write rate that the engine reaches."""
    found = {one.workload: figures.best(one, "rows") for one in measurements if one.on == on}
    for one in measurements:
        steps = figures.best(one, "steps")
        if (one.workload, one.on, one.system) != ("throughput", on, OURS) or steps is None:
            continue
        for name, limit in (("the store alone", found.get("store")), ("a bare committer", found.get("bare"))):
            if limit:
                print(f"\n{on}, {one.variant}: {steps / limit:.0%} of the rows that {name} writes", end="")
    print()


def _print_gain(on: str, measurements: list[Measurement], figures: Figures) -> None:
    fleets = [one for one in measurements if (one.workload, one.on) == ("fleet", on)]
    speeds = {one.workers: figures.best(one, "steps") for one in fleets}
    if (one := speeds.get(1)) and (two := speeds.get(2)):
        print(f"{on}: two worker processes do {two / one:.2f} x what one does")


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
