"""Peers: comparable systems, each in a separate environment, running the same workloads.

A peer's packages are never installed beside Redrive's. The scripts here run inside the peers' own
environments: they import their peer, the standard library and `bench.cpu`, and nothing else.
"""
