"""Medians, and the table that shows them."""

from __future__ import annotations

import statistics
from typing import Any

from bench.plan import METRICS, OURS, WORKLOADS, Measurement

__all__ = ["Figures", "print_facts", "print_tables"]


class Figures:
    """Every figure of every round."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, str, str], list[float]] = {}

    def add(self, one: Measurement, figures: dict[str, float]) -> None:
        """Keep what one measurement brought."""
        for metric, value in figures.items():
            self._rounds.setdefault((one.workload, one.subject, metric), []).append(value)

    def median(self, workload: str, subject: str, metric: str) -> float | None:
        """The median over all rounds; None if it was not measured."""
        values = self._rounds.get((workload, subject, metric))
        return None if values is None else statistics.median(values)

    def spread(self, workload: str, subject: str, metric: str) -> tuple[float, float]:
        """The smallest and the largest of all rounds."""
        values = self._rounds[workload, subject, metric]
        return min(values), max(values)

    def to_json(self, machine: dict[str, str]) -> dict[str, Any]:
        """All of it, for a file."""
        return {
            "machine": machine,
            "figures": [
                {
                    "workload": workload,
                    "subject": subject,
                    "metric": metric,
                    "unit": METRICS[metric].unit,
                    "median": statistics.median(rounds),
                    "rounds": rounds,
                }
                for (workload, subject, metric), rounds in self._rounds.items()
            ],
        }


def print_facts(machine: dict[str, str]) -> None:
    """Say what it was measured on."""
    for name, value in machine.items():
        print(f"{name:10} {value}", flush=True)


def print_tables(measurements: list[Measurement], figures: Figures) -> None:
    """One block for each workload, one line for each figure, with its ratio to the best peer."""
    for workload in dict.fromkeys(one.workload for one in measurements):
        subjects = [one for one in measurements if one.workload == workload]
        print(f"\n{workload}: {WORKLOADS[workload]}")
        for metric in METRICS:
            _print_metric(workload, metric, subjects, figures)
    _print_share(figures)


def _print_metric(workload: str, metric: str, subjects: list[Measurement], figures: Figures) -> None:
    about = METRICS[metric]
    peer = _best_peer(workload, metric, subjects, figures)
    for one in subjects:
        value = figures.median(workload, one.subject, metric)
        if value is None:
            continue
        low, high = figures.spread(workload, one.subject, metric)
        ratio = ""
        if peer and value and one.system == OURS:
            times = value / peer if about.more_is_better else peer / value
            ratio = f"{times:6.1f} x the best peer"
        between = f"({_number(low)} to {_number(high)})"
        figure = f"{_number(value):>10} {about.unit:7}{between:22}{ratio}"
        print(f"  {about.title:38}{one.subject:24}{figure}".rstrip())


def _best_peer(workload: str, metric: str, subjects: list[Measurement], figures: Figures) -> float | None:
    values = [figures.median(workload, one.subject, metric) for one in subjects if one.system != OURS]
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    return max(measured) if METRICS[metric].more_is_better else min(measured)


def _print_share(figures: Figures) -> None:
    """How much of what the store can write the engine uses."""
    rows = figures.median("store", OURS, "rows")
    for variant in ("1000 at once", "100 at once"):
        steps = figures.median("throughput", f"{OURS} {variant}", "steps")
        if rows is not None and steps is not None:
            print(f"\nthe engine, {variant}, makes {steps / rows:.0%} of the rows the store alone can write")


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
