"""Metrics, log lines and traces.

Whatever is counted or logged about decisions comes from transitions that were applied, and is heard where
they are applied (`settle/settler.py`), so that a worker, the reaper and a person are heard alike.
"""
