"""Where messages go: webhooks, functions of this process, brokers. `chores/relay.py` carries them there."""

from redrive.sinks.message import Message, received
from redrive.sinks.sink import Sink, SinkDefinition

__all__ = ["Message", "Sink", "SinkDefinition", "received"]
