"""Claim, execute, settle: what a worker process does. `loop` is the place to begin reading."""
