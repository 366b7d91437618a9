"""The product's own benchmarks, with a comparable system beside it.

    ./dev bench                 everything, medians of three rounds
    ./dev bench --quick         one short round
    ./dev bench profile         where the time of a step goes

Each figure is measured in a process of its own, on a store of its own; rounds alternate between the
systems, so that what else happens on the machine hits all of them alike.
"""
