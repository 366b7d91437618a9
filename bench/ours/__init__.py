"""Redrive's side of the workloads."""
