"""The product's own benchmarks, with comparable systems beside it.

    ./dev bench                     all but the big ones, on SQLite and PostgreSQL; the best of three rounds
    ./dev bench --quick             one short round
    ./dev bench --on postgres       one of the two stores; PostgreSQL on a throw-away server
    ./dev bench --store URL         the same on a PostgreSQL server that is there already
    ./dev bench --only growth       one workload, perhaps a big one
    ./dev bench profile             where the time of a step goes

Each figure is measured in a separate process, on a separate store. Rounds alternate between the systems, so that
other load on the machine affects all of them alike.
"""
