"""The pure engine: outcome -> decide -> transition. It has no I/O, no clock, no randomness and no async."""
