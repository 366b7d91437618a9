"""Telling people: email, chats, signed webhooks and the inbox. The outbox feeds it (`chores/relay.py`).

facts       written with the failure, as a message on the topic `redrive.notices`
teller      puts them into lanes; tells the first of a lane at once, the others together once in a while
sinks       bring what is told to people, one message for each of them, retried until it arrives
"""

from redrive.notify.channels import Channels
from redrive.notify.sinks import notify_sinks
from redrive.notify.teller import Teller
from redrive.notify.words import Words

__all__ = ["Channels", "Teller", "Words", "notify_sinks"]
