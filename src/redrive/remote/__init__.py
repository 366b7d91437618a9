"""The desk of a server: the calls of an app, over HTTP.

    client    one connection: requests with the token, answers as JSON, problems as errors
    desk      the classes of the desk as proxies, and the few calls that differ from their operation

The server knows the user from the token, so `by` is not sent. Without a tenant, the server takes that of the token;
an owner may name another one, or `*` for all.
"""
