"""The desk of a server somewhere else: the same calls as an app's, over HTTP.

    client    one connection, the token, errors from problems     reading   JSON as the desk's records
    runs, letters, circuits, outbox, settings, sagas, people, notifications
                                                                  one module for each kind of thing, with
                                                                  the calls of the desk's class of that kind
    place     all of them: what commands work on instead of an app

Who does something is known from the token, so `by` is not sent. No tenant means the token's own; an owner may
name another, or `*` for all.
"""
