"""`python -m bench`: measure, print a table, keep the figures."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.machine import facts
from bench.peers import Missing, make_environment, measure_peer
from bench.plan import OURS, WORKLOADS, Measurement, plan
from bench.processes import measure_ours
from bench.report import Figures, print_facts, print_tables
from bench.stores import FOLDER, prepare

ROUNDS = 3


def main() -> int:
    arguments = read_arguments()
    if arguments.what == "profile":
        from bench.profile import profile

        profile()
        return 0
    prepare()
    machine = facts(FOLDER)
    print_facts(machine)
    peers = not arguments.without_peers and has_peer()
    wanted = plan(quick=arguments.quick, only=arguments.only, peers=peers)
    figures = Figures()
    for number in range(1, 2 if arguments.quick else ROUNDS + 1):
        for one in wanted:
            say(f"round {number}: {one.workload}, {one.subject}")
            figures.add(one, measure(one, arguments.store))
    say("")
    print_tables(wanted, figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures.to_json(machine), indent=2) + "\n", encoding="utf-8")
    return 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["run", "profile"], default="run")
    parser.add_argument("--quick", action="store_true", help="one round of a fifth of the size")
    parser.add_argument("--only", action="append", default=[], choices=WORKLOADS, metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to a file")
    parser.add_argument("--without-peers", action="store_true", help="measure Redrive alone")
    parser.add_argument(
        "--store", metavar="URL", help="a store to use instead of fresh SQLite files; it should be empty"
    )
    parser.epilog = "workloads: " + ", ".join(WORKLOADS)
    return parser.parse_args()


def has_peer() -> bool:
    try:
        make_environment()
    except Missing as error:
        say(f"without peers: {error}")
        return False
    return True


def measure(one: Measurement, store: str | None) -> dict[str, float]:
    return measure_ours(one, store) if one.system == OURS else measure_peer(one)


def say(text: str) -> None:
    """Progress, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


sys.exit(main())
