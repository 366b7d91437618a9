"""Bridges to systems that have queues already. A bridge is sources and sinks; `redrive bridge` serves one."""
