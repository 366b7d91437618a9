"""The desk of a server: the calls of an app, over HTTP.

    client             requests with the token, answers as JSON, problems as errors
    desk               the classes of the desk as proxies, and the few calls that differ from their operation
    backend            the backend of a remote worker, whose calls are requests
    worker_connection  the connections of a remote worker, which are kept
    worker_protocol    the records of remote workers        step_worker_protocol  the records of step workers
    sealing            encryption of what is sent, decryption of what is received

The server knows the user from the token, so `by` is not sent. Without a tenant, the server takes that of the token;
an owner may name another one, or `*` for all.
"""
