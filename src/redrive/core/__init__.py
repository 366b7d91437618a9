"""The pure engine: values in, values out. No I/O, no clock, no randomness, no async."""
