"""`python -m bench`: measure, print a table, keep the figures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.calm import wait_for_calm
from bench.machine import facts
from bench.peers.environments import PACKAGES, Missing, make_environment
from bench.plan import POSTGRES, SQLITE, WORKLOADS, plan
from bench.processes import measure
from bench.report import Figures, print_facts, print_tables
from bench.server import Server, running, throw_away
from bench.stores import FOLDER, Stores, prepare

ROUNDS = 3


def main() -> int:
    arguments = read_arguments()
    if arguments.what == "walk":
        from bench.walk import walk

        walk()
        return 0
    prepare()
    on = [POSTGRES] if arguments.store else arguments.on or [SQLITE, POSTGRES]
    with server_for(on, arguments.store) as server:
        if arguments.what == "profile":
            from bench.profile import profile

            profile(Stores(server), on[-1])
        else:
            run(arguments, on, server)
    return 0


def run(arguments: argparse.Namespace, on: list[str], server: Server | None) -> None:
    """Measure in rounds and show what came out."""
    machine = facts(FOLDER, server)
    print_facts(machine)
    peers = [] if arguments.without_peers else [peer for peer in PACKAGES if has(peer)]
    wanted = plan(on, quick=arguments.quick, only=arguments.only, peers=peers)
    figures = Figures()
    for number in range(1, 2 if arguments.quick else arguments.rounds + 1):
        for one in wanted:
            calm = not arguments.calm or wait_for_calm(FOLDER, arguments.calm)
            how = "" if calm else " (the machine is busy)"
            say(f"round {number}: {one.workload} on {one.on}, {one.subject}{how}")
            figures.add(one, measure(one, Stores(server)))
    say("")
    print_tables(wanted, figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures.to_json(machine), indent=2) + "\n", encoding="utf-8")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["run", "profile", "walk"],
        default="run",
        help="measure (default); profile a step; count the files, functions and calls up of one run",
    )
    parser.add_argument("--on", action="append", choices=[SQLITE, POSTGRES], help="one of the two stores")
    parser.add_argument("--quick", action="store_true", help="one round of a fifth of the size")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="rounds to take the best of")
    parser.add_argument("--only", action="append", default=[], choices=WORKLOADS, metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to a file")
    parser.add_argument(
        "--calm", type=float, metavar="SECONDS", help="wait so long for an idle machine before each measurement"
    )
    parser.add_argument("--without-peers", action="store_true", help="measure Redrive alone")
    parser.add_argument(
        "--store",
        metavar="URL",
        help="a superuser's URL of a PostgreSQL server to use instead of a throw-away one; each measurement "
        "creates a database there, and removes it",
    )
    parser.epilog = "workloads: " + ", ".join(WORKLOADS)
    return parser.parse_args()


@contextmanager
def server_for(on: list[str], url: str | None) -> Iterator[Server | None]:
    """Start the PostgreSQL server that the chosen workloads need, if any does."""
    if POSTGRES not in on:
        yield None
    elif url is not None:
        yield running(url)
    else:
        with throw_away() as server:
            yield server


def has(peer: str) -> bool:
    """Install a peer if it is missing; say so where that cannot be."""
    try:
        make_environment(peer)
    except Missing as error:
        say(f"without {peer}: {error}")
        return False
    return True


def say(text: str) -> None:
    """Progress, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


sys.exit(main())
