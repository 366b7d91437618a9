"""Notifications of failures: mail, chats, signed webhooks and the inbox. The outbox feeds them.

Facts are written with the failure, as messages on the topic `redrive.notices`. `digest` collects them in
lanes and sends the first of a lane at once, later ones together. `channels` has the destinations, and the sinks that
send to them.
"""
