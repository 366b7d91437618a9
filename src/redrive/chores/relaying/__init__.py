"""The parts of a relay (`chores/relay.py`): what it has in hand, its lines, its courier, its suspects."""
